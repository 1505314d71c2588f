/** One decision on a request, as its options say. */
import type { LimitAllRequest, LimitRequest, Limiter } from "../client/limiter.ts";
import { SYSTEM_TIME, type Time } from "../core/clock.ts";
import type { Cost } from "../core/policies/policy.ts";
import type { Decision } from "../core/protocol/decision.ts";
import { valueOf, type Given } from "./given.ts";
import { keyOf } from "./key-refused.ts";

/** The calls of a limiter that deciding needs. */
export type DecidingLimiter = Pick<Limiter, "limit" | "limitAll" | "policies">;

/** What is taken of which key. Each may be a function of the request. */
export interface Check<Args extends readonly unknown[]> {
  /** Absent: the limiter's own. */
  readonly policy?: Given<Args, string>;
  readonly key: Given<Args, string>;
  /** Absent: 1. */
  readonly cost?: Given<Args, Cost>;
}

/** What all middleware may be told. */
export interface SharedOptions<Args extends readonly unknown[]> {
  /** How important the request is: one of the policy's priorities. */
  readonly priority?: Given<Args, string>;
  /** Which requests go on without being asked about. */
  readonly skip?: (...args: Args) => boolean | Promise<boolean>;
  /** The clock and the timers, for tests. Absent: the real ones. */
  readonly time?: Time;
}

/** One check, which may wait for its turn, or several that pass together or take nothing. */
export type Checks<Args extends readonly unknown[]> =
  | (Check<Args> & {
      /** The longest wait for its turn, in milliseconds: the policy must allow it with `maxWait`. */
      readonly waitMs?: number;
      readonly limits?: never;
    })
  | { readonly limits: readonly Check<Args>[]; readonly key?: never };

/** What deciding on a request needs. */
export type DecideOptions<Args extends readonly unknown[]> = SharedOptions<Args> &
  Checks<Args> & { readonly limiter: Given<Args, DecidingLimiter> };

/** What was decided. */
export interface Outcome {
  readonly success: boolean;
  /** One for each check, in their order. */
  readonly decisions: readonly Decision[];
}

/** Asks the limiter. What it throws is the application's error. */
export async function decide<Args extends readonly unknown[]>(
  limiter: DecidingLimiter,
  options: DecideOptions<Args>,
  args: Args,
): Promise<Outcome> {
  const priority = options.priority === undefined ? undefined : await valueOf(options.priority, args);
  const important = priority === undefined ? {} : { priority };
  if (options.limits !== undefined) {
    const checks = await Promise.all(options.limits.map((check) => asked(check, args)));
    return await limiter.limitAll({ checks, ...important } satisfies LimitAllRequest);
  }
  const { waitMs } = options;
  const check = await asked(options, args);
  const whole = { ...check, ...important, ...(waitMs !== undefined && { waitMs }) } satisfies LimitRequest;
  const decision = await limiter.limit(whole);
  return { success: decision.success, decisions: [decision] };
}

/** Waits as long as an admitted request should before it goes on: see `delayMs` of a decision. */
export async function waitItsDelay({ success, decisions }: Outcome, time = SYSTEM_TIME): Promise<void> {
  if (!success) return;
  const delayMs = Math.max(...decisions.map((each) => each.delayMs ?? 0));
  if (delayMs > 0) await new Promise<void>((done) => time.after(delayMs, done));
}

async function asked<Args extends readonly unknown[]>({ policy, key, cost }: Check<Args>, args: Args) {
  return {
    ...(policy !== undefined && { policy: await valueOf(policy, args) }),
    key: await keyOf(key, args),
    ...(cost !== undefined && { cost: await valueOf(cost, args) }),
  };
}
