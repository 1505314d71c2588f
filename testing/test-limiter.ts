/** A limiter that records its calls, and fails when a test says so. */
import {
  type KeyRequest,
  type LimitAllRequest,
  type Limiter,
  type LimiterCalls,
  withRelease,
} from "../client/limiter.ts";
import { type Address, ADDRESSES } from "../client/transports/transport.ts";
import type { Decision } from "../core/protocol/decision.ts";
import { Problem, PROBLEMS } from "../core/protocol/problems.ts";

/** The name of a call. */
export type Method = Exclude<keyof LimiterCalls, "reserve">;

const { reserve: _, ...METHODS } = ADDRESSES;

/** One call that was made. */
export interface Call {
  readonly method: Method;
  /** The call's argument, copied when the call was made: programs may change and reuse the object. */
  readonly asked: unknown;
  /** The answer. Absent: there is none yet, or the call failed. */
  readonly answer?: unknown;
  /** What was thrown. */
  readonly error?: unknown;
}

/** A part of a call's argument. Fields that are not named may have any value. */
export type AskedLike = Readonly<Record<string, unknown>>;

/** A limiter for tests. */
export interface TestLimiter extends Limiter {
  /** The calls since the beginning, or since `forget`, in their order. */
  readonly calls: readonly Call[];
  /** The calls of this name whose argument has these fields. */
  asked(method: Method, like?: AskedLike): readonly Call[];
  /** Forgets the calls. Units that they took stay taken. */
  forget(): void;
  /**
   * From now on calls fail: with `error`, or without one as if the limiter could not be reached. Then decisions follow the
   * policy's `onFailure`, and any other call throws a `LimiterError` of status 503.
   */
  fail(error?: Error): void;
  /** Calls do not fail any more. */
  recover(): void;
}

/** Makes any limiter a `TestLimiter`. @param policy the policy of calls that name none */
export function testLimiter(inner: Limiter, policy?: string): TestLimiter {
  const calls: Call[] = [];
  let failing: { readonly error: Error | undefined } | undefined;
  const answer = (method: Method, asked: unknown): Promise<unknown> => {
    if (failing === undefined) return (inner[method] as (params: unknown) => Promise<unknown>)(asked);
    if (failing.error !== undefined) return Promise.reject(failing.error);
    return degraded(inner, method, asked, policy);
  };
  const recorded = (method: Method) => async (asked: unknown) => {
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
  const methods = Object.keys(METHODS).map((method) => [method, recorded(method as Method)]);
  const recording = Object.fromEntries(methods) as Pick<Limiter, Method>;
  return {
    ...recording,
    // The end of an `await using` block is recorded as any other release.
    acquire: async (asked) => withRelease(await recording.acquire(asked), (id) => recording.release({ id })),
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
  const expected = `${times === undefined ? "a call" : `${times} calls`} ${method}(${JSON.stringify(like)})`;
  const all = limiter.calls.map((call) => `  ${call.method}(${JSON.stringify(call.asked) ?? ""})`);
  const lines = all.length === 0 ? "  nothing" : all.join("\n");
  throw new Error(`expected ${expected}, and ${found} were made; all calls:\n${lines}`);
}

/** Fails if such a call was made. @throws Error with all calls that were made */
export function assertNotAsked(
  limiter: Pick<TestLimiter, "calls">,
  method: Method,
  like: AskedLike = {},
): void {
  assertAsked(limiter, method, like, 0);
}

function callsLike(calls: readonly Call[], method: Method, like: AskedLike = {}): readonly Call[] {
  return calls.filter((call) => call.method === method && isLike(call.asked ?? {}, like));
}

/** Whether all fields of `like` are the same in `value`. Arrays must have the same length. */
function isLike(value: unknown, like: unknown): boolean {
  if (typeof like !== "object" || like === null) return Object.is(value, like);
  if (typeof value !== "object" || value === null) return false;
  if (Array.isArray(like) && (!Array.isArray(value) || value.length !== like.length)) return false;
  const fields = value as Readonly<Record<string, unknown>>;
  return Object.entries(like).every(([name, each]) => isLike(fields[name], each));
}

/** A copy of plain data. Anything else, such as a signal or a function, is not copied. @param copies for circles */
function copyOf(value: unknown, copies: Map<unknown, unknown> = new Map()): unknown {
  if (typeof value !== "object" || value === null) return value;
  const before = copies.get(value);
  if (before !== undefined) return before;
  const prototype: unknown = Object.getPrototypeOf(value);
  const isPlain = prototype === Object.prototype || prototype === null;
  if (!isPlain && !Array.isArray(value)) return value;
  const copy = Array.isArray(value) ? [] : (Object.create(prototype as object | null) as object);
  copies.set(value, copy);
  for (const [name, each] of Object.entries(value))
    Object.defineProperty(copy, name, { value: copyOf(each, copies), enumerable: true });
  return copy;
}

/** What a client answers if its limiter cannot be reached. */
async function degraded(
  limiter: Pick<Limiter, "policies">,
  method: Method,
  asked: unknown,
  defaultPolicy = "",
) {
  const { mayDegrade }: Address = ADDRESSES[method];
  if (mayDegrade !== true)
    throw new Problem(PROBLEMS.unavailable, "the limiter did not answer: the test says so").toError();
  const { policies } = await limiter.policies();
  const decide = ({ policy: name = defaultPolicy, key }: KeyRequest): Decision => {
    const policy = policies.find((each) => each.name === name);
    const limits = policy?.rules.map(({ capacity }) => Number(capacity)) ?? [];
    return {
      success: policy?.shadow === true || policy?.onFailure === "open",
      policy: name,
      key,
      limit: Math.min(...limits, Number.MAX_SAFE_INTEGER),
      reason: "degraded",
      source: "fallback",
      rules: [],
    };
  };
  if (method !== "limitAll" && method !== "limitAny") return decide(asked as KeyRequest);
  const { checks } = asked as LimitAllRequest;
  // The first check that is not answered ends a call that charges one.
  const decisions = (method === "limitAll" ? checks : checks.slice(0, 1)).map(decide);
  if (method === "limitAny") {
    const success = decisions.some((decision) => decision.success);
    return { success, chosen: success ? 0 : null, decisions };
  }
  return { success: decisions.every(({ success }) => success), decisions };
}
