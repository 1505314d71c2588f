import type { Algorithm } from "./algorithm.ts";
import { MOST_PARTS } from "./bucket-forecast.ts";
import type { ConfigProblem } from "./fields.ts";
import { tokenBucket, type TokenBucketConfig, type TokenBucketState } from "./token-bucket.ts";
import {
  afterParts,
  afterReturning,
  afterTaking,
  COLD,
  coldParts,
  convertWarmth,
  isSamePolicy,
  partsUntilCold,
  type WarmUpConfig,
  type Warmth,
} from "./warm-up.ts";

/**
 * Smooth warming up, as Guava's RateLimiter.create(rate, warmupPeriod): after a pause the limiter is cold, and permits
 * take up to `coldFactor` times as long, until it has warmed up. It is for what is slow after a pause: caches that are
 * empty, connections that are closed.
 *
 * As in smooth-bursty.ts nobody waits for its own permits, but for those that the calls before it took. And permits are
 * stored while nobody calls, but stored ones are not free. With `stable = window / limit`, half a warm-up's worth of them
 * (`warmup / stable / 2`) takes `stable` each. Those above, `2 * warmup / (stable + coldFactor * stable)`, take longer
 * the more are stored: from `stable` up to `coldFactor * stable`. So taking them takes `warmup`, and so does storing all.
 *
 *     interval |            * coldFactor * stable           what permits take is the area under the line
 *              |        *
 *              |    *
 *              | * * * * * - - - - stable
 *              +----------+--------+---> permits stored
 *              0          half     all
 *
 * Two questions are two counts. *When* a call goes on is Guava's (warm-up.ts): what is owed, and what is stored.
 * *Whether* it passes is a token bucket's at the warm rate, since Guava admits into a future without end. That bucket is
 * so large that nobody is told to wait for longer than `maxDelay`: a cold storage takes `warmup * (coldFactor - 1) /
 * (coldFactor + 1)` longer than its permits would when warm, and what is left of `maxDelay` is the bucket:
 *
 *     capacity = limit * (maxDelay - warmup * (coldFactor - 1) / (coldFactor + 1)) / window,  rounded down
 *
 * So all that holds of a token bucket holds here. Time is counted in whole parts of a millisecond, and permits that are
 * stored in parts that any `coldFactor` divides, so nothing drifts. Only the area of the slope is rounded: up, by less
 * than 2 parts (`2 / limit` ms) from one pause to the next, and the storage has so much less time to fill. Delays are
 * rounded to whole milliseconds, up.
 *
 * Example, from Guava's tests: limit 2 per 1,000 ms, warmup 4 s. Eight calls after a pause, each as soon as the one
 * before has waited: 0, 1,375, 1,125, 875, 625, 500, 500 and 500 ms.
 *
 * The bound, in any interval of L ms: `capacity + limit * L / window` units are admitted. Callers that wait as told go on
 * with at most `limit * (L + 1) / window` units and the largest cost; the storage never makes it more. Its worst
 * boundary: a large call at a quiet time, which goes on at once. What it is bad at: a key that is asked for now and then
 * stays cold for ever.
 */
export interface SmoothWarmingUpConfig extends TokenBucketConfig, WarmUpConfig {}

/** The bucket that says whether a call passes, and what says when it goes on. */
export interface SmoothWarmingUpState extends TokenBucketState, Warmth {
  /** The policy, beside the bucket's part, under which the rest was counted. */
  readonly limit: number;
  readonly warmupMs: number;
  readonly coldFactor: number;
}

type Config = SmoothWarmingUpConfig;
type State = SmoothWarmingUpState;
const DEFAULT_COLD_FACTOR = 3;
const MOST_COLD_FACTOR = 1_000;

export const smoothWarmingUp: Algorithm<Config, State> = {
  name: "smooth-warming-up",
  fields: {
    limit: "units",
    window: "duration",
    warmup: "duration",
    coldFactor: "units?",
    maxDelay: "duration?",
  },

  configure(fields): Config | ConfigProblem {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const warmupMs = Number(fields["warmup"]);
    const coldFactor = Number(fields["coldFactor"] ?? DEFAULT_COLD_FACTOR);
    const problemOf = (field: string, allowed: string) => ({ problem: { field, allowed } });
    if (coldFactor > MOST_COLD_FACTOR) return problemOf("coldFactor", `at most ${MOST_COLD_FACTOR}`);
    const mostMs = Math.floor(MOST_PARTS / (limit * (coldFactor + 5)));
    const exactly = `with a limit of ${limit} (so that counting stays exact)`;
    if (warmupMs > mostMs) return problemOf("warmup", `at most ${mostMs} ms ${exactly}`);
    const coldMs = (warmupMs * (coldFactor - 1)) / (coldFactor + 1);
    const maxDelayMs = Number(fields["maxDelay"] ?? windowMs + Math.ceil(coldMs));
    const field = fields["maxDelay"] === undefined ? "window" : "maxDelay";
    if (maxDelayMs > mostMs) return problemOf(field, `at most ${mostMs} ms ${exactly}`);
    const scaled = limit * (maxDelayMs * (coldFactor + 1) - warmupMs * (coldFactor - 1));
    const burst = Math.floor(scaled / (windowMs * (coldFactor + 1)));
    const leastMs = Math.ceil(windowMs / limit + coldMs);
    if (burst < 1) return problemOf("maxDelay", `at least ${leastMs} ms, so that one unit passes when cold`);
    return { limit, windowMs, burst, warmupMs, coldFactor };
  },

  capacity: (config) => config.burst,
  quota: (config) => ({ units: config.limit, windowMs: config.windowMs }),

  // An isolate that spends units does not know what is owed, so it cannot tell a delay.
  localDecisions: () => ({ admits: false, denies: true }),

  wholeFromMs: (config, missing) =>
    Math.ceil((missing * config.windowMs + coldParts(config) + 1) / config.limit) + config.warmupMs,

  scale(config, part) {
    const scaled = tokenBucket.scale(config, part);
    return scaled && { ...config, ...scaled };
  },

  decide(config, state, nowMs, cost, outstanding) {
    const decision = tokenBucket.decide(config, state, nowMs, cost, outstanding);
    const before = warmthAt(config, state, nowMs);
    const resetAfterMs = (warmth: Warmth) =>
      Math.max(decision.resetAfterMs, Math.ceil(partsUntilCold(config, warmth) / config.limit));
    if (!decision.allowed) {
      const { reason, retryAfterMs, remaining } = decision;
      return { allowed: false, reason, retryAfterMs, remaining, resetAfterMs: resetAfterMs(before) };
    }
    if (cost === 0) {
      const wholeAfterMs = resetAfterMs(before);
      return { ...decision, state: wholeAfterMs === 0 ? undefined : state, resetAfterMs: wholeAfterMs };
    }
    const after = afterTaking(config, before, cost);
    // Units that are held are paid for before this call goes on, as if they were taken.
    const { owedParts } = afterTaking(config, before, outstanding);
    return {
      ...decision,
      state: stateOf(config, decision.state, after, stamp(state, nowMs)),
      resetAfterMs: resetAfterMs(after),
      ...(owedParts > 0 && { delayMs: Math.ceil(owedParts / config.limit) }),
    };
  },

  noteHold: (_, state) => state,

  debit(config, state, nowMs, units) {
    // Nothing was taken: whether the storage has filled since units were is still to be told.
    if (units === 0) return state;
    const after = afterTaking(config, warmthAt(config, state, nowMs), units);
    return stateOf(config, tokenBucket.debit(config, state, nowMs, units), after, stamp(state, nowMs));
  },

  credit: (config, state, nowMs, units) => smoothWarmingUp.uncharge(config, state, nowMs, units, nowMs),

  uncharge(config, state, nowMs, units, atMs) {
    const parts = config.limit * Math.max(0, nowMs - atMs);
    const after = afterReturning(config, warmthAt(config, state, nowMs), units, parts);
    return stateOf(
      config,
      tokenBucket.uncharge(config, state, nowMs, units, atMs),
      after,
      stamp(state, nowMs),
    );
  },

  wholeAtMs(config, state, uses) {
    let after = state;
    for (const [index, endMs] of (uses?.endsMs ?? []).entries())
      after = smoothWarmingUp.debit(config, after, endMs, uses?.units[index] ?? 0);
    if (after === undefined) return -Infinity;
    return after.atMs + smoothWarmingUp.decide(config, after, after.atMs, 0, 0).resetAfterMs;
  },

  forecast: (config, state) => tokenBucket.forecast(config, state),

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const owedParts = (of: State | undefined, units: number) =>
      afterTaking(config, warmthAt(config, of, nowMs), units).owedParts;
    return (
      tokenBucket.covers(config, stored, ahead, state, outstanding, nowMs) &&
      owedParts(stored as State | undefined, ahead) >= owedParts(state, outstanding)
    );
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as State,
  used: (record) => tokenBucket.used(record),
};

/** What is owed and stored at `nowMs`. When the clock runs backwards, nothing is paid. */
function warmthAt(config: Config, state: State | undefined, nowMs: number): Warmth {
  if (state === undefined) return COLD;
  const parts = config.limit * Math.max(0, nowMs - state.atMs);
  if (isSamePolicy(state, config)) return afterParts(config, state, parts);
  // What is spent of the bucket under the new policy bounds what may be owed.
  const { spentParts } = tokenBucket.credit(config, state, state.atMs, 0) ?? { spentParts: 0 };
  return afterParts(config, convertWarmth(state, config, state, spentParts), parts);
}

/** The instant of the next state: it never goes backwards. */
function stamp(state: State | undefined, nowMs: number): number {
  return state === undefined ? nowMs : Math.max(state.atMs, nowMs);
}

function stateOf(
  { limit, windowMs, burst, warmupMs, coldFactor }: Config,
  bucket: TokenBucketState | undefined,
  { owedParts, missing, isFilled }: Warmth,
  atMs: number,
): State | undefined {
  const spentParts = bucket?.spentParts ?? 0;
  if (spentParts === 0 && owedParts === 0 && missing === 0) return undefined;
  const policy = { limit, windowMs, burst, warmupMs, coldFactor };
  return { spentParts, atMs, ...policy, owedParts, missing, isFilled };
}
