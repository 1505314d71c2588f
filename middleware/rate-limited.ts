/** Rate limiting of requests, without a framework. */
import type { CallFields, LimitAllRequest, Limiter, LimitRequest, PriorityName } from "../client/limiter.ts";
import { SYSTEM_TIME, type Time } from "../core/clock.ts";
import { allDeniedBody, anyDeniedBody, deniedBody } from "../core/protocol/denied-body.ts";
import { type Caller, sleep, waits } from "./callers.ts";
import {
  type Given,
  type GivenFields,
  type InBackground,
  requireLimiter,
  valueOf,
  valuesOf,
} from "./options.ts";
import { unlessRefused } from "./refused-calls.ts";
import { headerPolicies, type Outcome } from "./request-limits.ts";
import { LEFT, refusalOf, requireKeySize, SKIPPED, type Verdict, verdictOn } from "./verdict.ts";

export type DecidingLimiter = Pick<Limiter, "limit" | "limitAll" | "limitAny" | "policies">;

interface Keyed<Args extends readonly unknown[]> {
  readonly key: Given<Args, string>;
}

/** What a request takes of a key. Without `policy` the limiter's own decides. */
export type Check<Args extends readonly unknown[]> = Keyed<Args> &
  GivenFields<Args, CallFields<"takes", "plan" | "cost" | "limits" | "group">>;

export interface SharedOptions<Args extends readonly unknown[]> {
  /** Which requests pass without a decision. */
  readonly skip?: (...args: Args) => boolean | Promise<boolean>;
  /** For tests. Absent: the real clock and timers. */
  readonly time?: Time;
}

/** One check, which may wait, or several: all pass or nothing is taken, or with `any` the first that admits is charged. */
export type Checks<Args extends readonly unknown[]> =
  | (Keyed<Args> &
      GivenFields<Args, CallFields<"takes", "plan" | "priority" | "cost" | "limits" | "group">> & {
        /** The longest wait, in milliseconds. The policy must allow it with `maxWait`. */
        readonly waitMs?: number;
        readonly limits?: never;
        readonly mode?: never;
      })
  | {
      readonly limits: readonly Check<Args>[];
      readonly priority?: Given<Args, PriorityName>;
      /** Absent: `all`. */
      readonly mode?: "all" | "any";
      readonly key?: never;
      readonly waitMs?: never;
    };

export type DecideOptions<Args extends readonly unknown[]> = SharedOptions<Args> &
  Checks<Args> & { readonly limiter: Given<Args, DecidingLimiter> };

/**
 * Decides a request, notes the decision, and waits for its `delayMs`. A caller that leaves meanwhile is not served.
 * Refusals of the limiter are the application's errors.
 */
export async function rateLimited<Args extends readonly unknown[]>(
  request: object,
  options: DecideOptions<Args>,
  args: Args,
  inBackground: InBackground,
  caller: Caller,
): Promise<Verdict> {
  const { skip, time = SYSTEM_TIME } = options;
  if (skip !== undefined && (await skip(...args))) return SKIPPED;
  const limiter = requireLimiter(await valueOf(options.limiter, args));
  // It does not fail, and the decision need not wait for it.
  const listed = headerPolicies(limiter, time, inBackground);
  const signal = waits(options) ? caller.signal : undefined;
  let outcome: Outcome;
  try {
    outcome = await decide(limiter, options, args, signal);
  } catch (error) {
    return refusalOf(error, signal);
  }
  if (signal?.aborted === true) return LEFT;
  const policies = await listed;
  const { success, decisions, chosen } = outcome;
  const bodyOf = () => {
    if (chosen !== undefined) return anyDeniedBody({ success, chosen, decisions });
    const [first] = decisions;
    return first !== undefined && decisions.length === 1 ? deniedBody(first) : allDeniedBody(decisions);
  };
  const verdict = verdictOn(request, outcome, policies, bodyOf, time);
  const delayMs = success ? Math.max(...decisions.map((each) => each.delayMs ?? 0)) : 0;
  if (delayMs === 0) return verdict;
  return await sleep(time, delayMs, caller.signal).then(
    () => verdict,
    () => LEFT,
  );
}

async function decide<Args extends readonly unknown[]>(
  limiter: DecidingLimiter,
  options: DecideOptions<Args>,
  args: Args,
  signal: AbortSignal | undefined,
): Promise<Outcome> {
  if (options.limits !== undefined) {
    const priority = await valuesOf<LimitRequest>(options, ["priority"], args);
    const checks = await Promise.all(options.limits.map((check) => checkOf(check, args)));
    const request = { checks, ...priority } as LimitAllRequest;
    const decided = await unlessRefused<Outcome>(() =>
      options.mode === "any" ? limiter.limitAny(request) : limiter.limitAll(request),
    );
    return { ...decided, ownLimits: checks.map(({ limits }) => limits) };
  }
  const check = await checkOf(options, args);
  const decision = await unlessRefused(() => limiter.limit({ ...check, ...(signal && { signal }) }));
  return { success: decision.success, decisions: [decision], ownLimits: [check.limits] };
}

const FIELDS = ["waitMs", "priority", "policy", "cost", "plan", "limits", "group", "key"] as const;

async function checkOf<Args extends readonly unknown[]>(check: Check<Args>, args: Args) {
  const values = await valuesOf<LimitRequest>(check, FIELDS, args);
  requireKeySize(check.key, values.key);
  return values;
}
