/** A limiter that remembers what it was asked, and fails when the test says so. */
import { type Limiter, withRelease } from "../client/limiter.ts";
import { callsLike, callsText, copyOf, METHODS, type AskedLike, type Call, type Method } from "./calls.ts";
import { degraded } from "./degraded.ts";

/** A limiter in the hands of a test. */
export interface TestLimiter extends Limiter {
  /** The calls since the beginning, or since `forget`, in their order. */
  readonly calls: readonly Call[];
  /** The calls of this name that said this, among others. */
  asked(method: Method, like?: AskedLike): readonly Call[];
  /** Forgets the calls. What they have taken stays taken. */
  forget(): void;
  /**
   * From now on calls fail. Without an error they are answered as when the limiter cannot be reached: decisions as
   * `onFailure` of their policy says, and any other call throws a `LimiterError` of status 503.
   */
  fail(error?: Error): void;
  /** Calls do not fail any more. */
  recover(): void;
}

/** A limiter as a test needs it, around any other. @param policy the policy of calls that name none */
export function testLimiter(inner: Limiter, policy?: string): TestLimiter {
  const calls: Call[] = [];
  let failing: { readonly error: Error | undefined } | undefined;
  const answer = (method: Method, asked: unknown): Promise<unknown> => {
    if (failing === undefined) return (inner[method] as (each: unknown) => Promise<unknown>)(asked);
    return failing.error === undefined
      ? degraded(inner, method, asked, policy)
      : Promise.reject(failing.error);
  };
  const watched = (method: Method) => async (asked: unknown) => {
    const call: { -readonly [Field in keyof Call]: Call[Field] } = { method, asked: copyOf(asked) };
    calls.push(call);
    try {
      call.answer = await answer(method, asked);
      return call.answer;
    } catch (error) {
      call.error = error;
      throw error;
    }
  };
  const made = Object.fromEntries(METHODS.map((method) => [method, watched(method)]));
  const watching = made as unknown as Pick<Limiter, Method>;
  return {
    ...watching,
    // The end of a block that has the lease is a release as any other.
    acquire: async (asked) => withRelease(await watching.acquire(asked), (id) => watching.release({ id })),
    close: () => inner.close(),
    [Symbol.asyncDispose]: () => inner.close(),
    get calls() {
      return calls;
    },
    asked: (method, like) => callsLike(calls, method, like),
    forget: () => void calls.splice(0),
    fail: (error) => {
      failing = { error };
    },
    recover: () => {
      failing = undefined;
    },
  };
}

/**
 * Fails unless such a call was made.
 *
 * @param times how often it must have been made. Absent: once or more
 * @throws Error with all calls that were made
 */
export function assertAsked(
  limiter: Pick<TestLimiter, "calls">,
  method: Method,
  like: AskedLike = {},
  times?: number,
): void {
  const found = callsLike(limiter.calls, method, like).length;
  if (times === undefined ? found > 0 : found === times) return;
  const wanted = times === undefined ? "a call" : `${times} calls`;
  const said = `${wanted} ${method}(${JSON.stringify(like)}), and ${found} were made`;
  throw new Error(`expected ${said}; all calls:\n${callsText(limiter.calls)}`);
}

/** Fails if such a call was made. @throws Error with all calls that were made */
export function assertNotAsked(
  limiter: Pick<TestLimiter, "calls">,
  method: Method,
  like: AskedLike = {},
): void {
  assertAsked(limiter, method, like, 0);
}
