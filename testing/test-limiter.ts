/** A limiter that records its calls, and fails when a test says so. */
import { FailureLimits } from "../client/failure-limits.ts";
import {
  type LimitAllRequest,
  type Limiter,
  type LimiterCalls,
  type LimitRequest,
  withRelease,
} from "../client/limiter.ts";
import { allFailed, anyFailed } from "../client/remote/several-keys.ts";
import { type Address, ADDRESSES } from "../client/transports/transport.ts";
import { readClockMs } from "../core/clock.ts";
import type { PolicyView } from "../core/policies/policy.ts";
import { type Decision, degradedDecision } from "../core/protocol/decision.ts";
import { orThrow, Problem, PROBLEMS } from "../core/protocol/problems.ts";
import { oneOfNames, violation } from "../core/violations.ts";
import { type Degrading, problemOf } from "../worker/embedded/memory-limiter.ts";
import type { ManualClock } from "./manual-clock.ts";

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

/** What a client has by itself. */
interface Own {
  readonly policy: string | undefined;
  readonly limits: FailureLimits;
  readonly nowMs: () => number;
}

/**
 * Makes any limiter a `TestLimiter`.
 *
 * @param policy the policy of calls that name none
 * @param clock by which a limit in `onFailure` is counted. Absent: the real one
 */
export function testLimiter(
  inner: Limiter,
  policy?: string,
  clock?: Pick<ManualClock, "nowMs">,
): TestLimiter {
  const own = { policy, limits: new FailureLimits(), nowMs: () => clock?.nowMs() ?? readClockMs() };
  const calls: Call[] = [];
  let failing: { readonly error: Error | undefined } | undefined;
  const answer = (method: Method, asked: unknown): Promise<unknown> => {
    if (failing === undefined) return (inner[method] as (params: unknown) => Promise<unknown>)(asked);
    if (failing.error !== undefined) return Promise.reject(failing.error);
    return degraded(inner, method, asked, own);
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

/** What a client answers if its limiter cannot be reached; it refuses what a limiter in its process would. */
async function degraded(inner: Pick<Limiter, "policies">, method: Method, asked: unknown, own: Own) {
  const { mayDegrade }: Address = ADDRESSES[method];
  if (mayDegrade !== true)
    throw new Problem(PROBLEMS.unavailable, "the limiter did not answer: the test says so").toError();
  const { policies } = await inner.policies();
  const isSeveral = method === "limitAll" || method === "limitAny";
  const request = withPolicy(asked, isSeveral ? undefined : own.policy);
  const checks = Array.isArray(request.checks)
    ? request.checks.map((each) => withPolicy(each, own.policy))
    : [];
  const all: readonly LimitRequest[] = isSeveral ? checks : [request];
  // Without policies it refuses nothing, as `unlimited`.
  if (policies.length > 0) {
    const input = Array.isArray(request.checks) ? { ...request, checks } : request;
    orThrow(problemOf(method as Degrading, input));
    for (const { policy = "" } of all) orThrow(known(policies, policy));
  }
  const isByBucket =
    method === "limit" ? request.force !== true : method === "limitAny" || request.atomic === false;
  const failed = ({ policy = "", key, cost = 1 }: LimitRequest): Decision => {
    const view = (policies.find(({ name }) => name === policy) ?? {
      ...UNLISTED,
      name: policy,
    }) as unknown as PolicyView;
    return isByBucket ? own.limits.decide(view, key, cost, own.nowMs()) : degradedDecision(view, key);
  };
  if (method === "limitAll") return allFailed(all, failed);
  return method === "limitAny" ? anyFailed(all, failed) : failed(request);
}

const UNLISTED = { rules: [{ capacity: Number.MAX_SAFE_INTEGER }], shadow: false, onFailure: "closed" };

type Asked = LimitRequest & Partial<LimitAllRequest>;

/** A call or check without its signal, and with the policy of those that name none. */
function withPolicy(asked: unknown, byDefault: string | undefined): Asked {
  const { signal: _signal, ...request } = Object(asked) as Asked & { readonly signal?: unknown };
  const { policy = byDefault } = request;
  return { ...request, ...(policy !== undefined && { policy }) };
}

function known(policies: readonly { readonly name: string }[], policy: string): Problem | undefined {
  const names = policies.map(({ name }) => name);
  if (names.includes(policy)) return undefined;
  return new Problem(PROBLEMS.policyNotFound, violation(["policy"], policy, oneOfNames(policy, names)));
}
