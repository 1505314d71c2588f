import { type Algorithm, type ConfigProblem, configProblem } from "../algorithm.ts";
import { afterUses } from "../forecast.ts";
import {
  MAX_PARTS,
  stamp,
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
} from "../token-bucket.ts";

/**
 * Smooth warming up, as Guava's RateLimiter.create(rate, warmupPeriod): after a pause the limiter is cold, and permits
 * take up to `coldFactor` times as long until it has warmed up. It is for upstreams that are slow after a pause, with
 * empty caches or closed connections.
 *
 * As in smooth-bursty.ts a call does not wait for its own permits, but for those of earlier calls. Permits are stored
 * while no call comes, but stored ones are not free. With `stable = window / limit`, half a warm-up's worth of them
 * (`warmup / stable / 2`) takes `stable` each. Those above, `2 * warmup / (stable + coldFactor * stable)`, take longer
 * the more are stored: from `stable` up to `coldFactor * stable`. So taking them takes `warmup`, and so does storing
 * all.
 *
 *     interval |            * coldFactor * stable           the time of permits is the area under the line
 *              |        *
 *              |    *
 *              | * * * * * - - - - stable
 *              +----------+--------+---> permits stored
 *              0          half     all
 *
 * There are two counts. *When* a call proceeds is Guava's: what is owed, and what is stored. *Whether* it passes is
 * decided by a token bucket at the warm rate, since Guava admits into an endless future. That bucket's size keeps all
 * delays within `maxDelay`: a cold storage takes `warmup * (coldFactor - 1) / (coldFactor + 1)` longer than its
 * permits would when warm, and the rest of `maxDelay` is the bucket:
 *
 *     capacity = limit * (maxDelay - warmup * (coldFactor - 1) / (coldFactor + 1)) / window,  rounded down
 *
 * So every property of a token bucket holds here. Time is counted in integer parts of a millisecond, and stored
 * permits in parts that any `coldFactor` divides, so nothing drifts. Only the area of the slope is rounded: up, by
 * less than 2 parts (`2 / limit` ms) from one pause to the next. Delays are rounded up to full milliseconds.
 *
 * Example, from Guava's tests: limit 2 per 1,000 ms, warmup 4 s. Eight calls after a pause, each as soon as the one
 * before has waited: 0, 1,375, 1,125, 875, 625, 500, 500 and 500 ms.
 *
 * The bound, in any interval of L ms: `capacity + limit * L / window` units are admitted. Callers that keep their
 * delays proceed with at most `limit * (L + 1) / window` units and the largest cost; stored permits do not add to it.
 * The worst boundary: a large call at a quiet time, which proceeds at once. What it is bad at: keys with few calls,
 * which stay cold.
 */
export interface SmoothWarmingUpConfig extends TokenBucketConfig {
  /** The time in which a cold limiter warms up under full load, and an idle one becomes cold. */
  readonly warmupMs: number;
  /** The first permit takes this many times `window / limit`. */
  readonly coldFactor: number;
}

/** Whether a call passes (the bucket), when it proceeds, and the policy of these counts. */
export interface SmoothWarmingUpState extends TokenBucketState, Warmth, SmoothWarmingUpConfig {}

type Config = SmoothWarmingUpConfig;
type State = SmoothWarmingUpState;
const DEFAULT_COLD_FACTOR = 3;
const MAX_COLD_FACTOR = 1_000;

export const smoothWarmingUp: Algorithm<Config, State> = {
  name: "smooth-warming-up",
  fields: {
    limit: "units",
    window: "duration",
    warmup: "duration",
    coldFactor: "integer?",
    maxDelay: "duration?",
  },

  configure(fields): Config | ConfigProblem {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const warmupMs = Number(fields["warmup"]);
    const coldFactor = Number(fields["coldFactor"] ?? DEFAULT_COLD_FACTOR);
    if (coldFactor > MAX_COLD_FACTOR) return configProblem("coldFactor", `at most ${MAX_COLD_FACTOR}`);
    const maxMs = Math.floor(MAX_PARTS / (limit * (coldFactor + 5)));
    const exactly = `with a limit of ${limit} (so that counting stays exact)`;
    if (warmupMs > maxMs) return configProblem("warmup", `at most ${maxMs} ms ${exactly}`);
    const coldMs = (warmupMs * (coldFactor - 1)) / (coldFactor + 1);
    const maxDelayMs = Number(fields["maxDelay"] ?? windowMs + Math.ceil(coldMs));
    const field = fields["maxDelay"] === undefined ? "window" : "maxDelay";
    if (maxDelayMs > maxMs) return configProblem(field, `at most ${maxMs} ms ${exactly}`);
    const scaled = limit * (maxDelayMs * (coldFactor + 1) - warmupMs * (coldFactor - 1));
    const burst = Math.floor(scaled / (windowMs * (coldFactor + 1)));
    const minMs = Math.ceil(windowMs / limit + coldMs);
    if (burst < 1)
      return configProblem("maxDelay", `at least ${minMs} ms, so that one unit passes when cold`);
    return { limit, windowMs, burst, warmupMs, coldFactor };
  },

  capacity: (config) => config.burst,
  quota: (config) => ({ units: config.limit, windowMs: config.windowMs }),
  // An isolate that spends units does not know what is owed, so it cannot compute a delay.
  localDecisions: () => ({ admits: false, denies: true }),

  refillMs: (config, missing) =>
    Math.ceil((missing * config.windowMs + extraParts(config, 0, true) + 1) / config.limit) + config.warmupMs,

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
      const afterMs = resetAfterMs(before);
      return { ...decision, state: afterMs === 0 ? undefined : state, resetAfterMs: afterMs };
    }
    const after = afterTaking(config, before, cost);
    // Held units are paid before this call proceeds, as if they were taken.
    const { owedParts } = afterTaking(config, before, outstanding);
    return {
      ...decision,
      state: stateOf(config, decision.state, after, stamp(state, nowMs)),
      resetAfterMs: resetAfterMs(after),
      ...(owedParts > 0 && { delayMs: Math.ceil(owedParts / config.limit) }),
    };
  },

  debit(config, state, nowMs, units, capacity = 0) {
    const after = afterTaking(config, warmthAt(config, state, nowMs), units);
    const bucket = tokenBucket.debit(config, state, nowMs, units, capacity);
    const mostParts = capacity > config.burst ? mostOwed(config, bucket?.spentParts ?? 0, after) : Infinity;
    const warmth = { ...after, owedParts: Math.min(after.owedParts, mostParts) };
    return stateOf(config, bucket, warmth, stamp(state, nowMs));
  },

  credit(config, state, nowMs, units, atMs = nowMs, capacity = Infinity, returned?) {
    const parts = returned ?? config.limit * Math.max(0, nowMs - atMs);
    const after = afterReturning(config, warmthAt(config, state, nowMs), units, parts);
    const bucket = tokenBucket.credit(config, state, nowMs, units, atMs, capacity, returned);
    return stateOf(config, bucket, after, stamp(state, nowMs));
  },

  untouchedAtMs(config, state, uses) {
    const after = afterUses(smoothWarmingUp, config, state, uses);
    if (after === undefined) return -Infinity;
    return after.atMs + smoothWarmingUp.decide(config, after, after.atMs, 0, 0).resetAfterMs;
  },

  forecast: (config, state) => tokenBucket.forecast(config, state),
  refilled: (...at) => tokenBucket.refilled?.(...at),
  outlastsMs: (...of) => tokenBucket.outlastsMs?.(...of) ?? -Infinity,

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

/** When the clock runs backwards, nothing is paid. */
function warmthAt(config: Config, state: State | undefined, nowMs: number): Warmth {
  if (state === undefined) return COLD;
  const parts = config.limit * Math.max(0, nowMs - state.atMs);
  if (isSamePolicy(state, config)) return afterParts(config, state, parts);
  // The spent parts of the bucket under the new policy bound the debt.
  const { spentParts } = tokenBucket.credit(config, state, state.atMs, 0) ?? { spentParts: 0 };
  return afterParts(config, convertWarmth(state, config, state, spentParts), parts);
}

function stateOf(
  { limit, windowMs, burst, warmupMs, coldFactor }: Config,
  bucket: TokenBucketState | undefined,
  { owedParts, missing, isFilled }: Warmth,
  atMs: number,
): State | undefined {
  const spentParts = bucket?.spentParts ?? 0;
  if (bucket === undefined && owedParts === 0 && missing === 0) return undefined;
  const policy = { limit, windowMs, burst, warmupMs, coldFactor };
  return { ...bucket, spentParts, atMs, ...policy, owedParts, missing, isFilled };
}

/**
 * What is owed and stored at an instant, in integers. `owedParts` is the time of permits already taken: `limit` parts
 * are a millisecond, and `windowMs` parts a permit of a warm limiter. While something is owed, the storage does not
 * change; then it fills. `missing` is how far the storage is from full, which is cold. It fills by `coldFactor + 5`
 * for each part of idle time, and a permit takes `2 * windowMs * (coldFactor + 1)` out of it.
 */
interface Warmth {
  readonly owedParts: number;
  readonly missing: number;
  /** The storage has filled since a permit was last taken. */
  readonly isFilled: boolean;
}

const COLD: Warmth = { owedParts: 0, missing: 0, isFilled: true };

/** A full storage. Its upper part, `4 * warmup * limit`, is cold. */
function storageOf({ limit, warmupMs, coldFactor }: Config): number {
  return warmupMs * limit * (coldFactor + 5);
}

function afterParts(config: Config, warmth: Warmth, parts: number): Warmth {
  const paid = Math.min(parts, warmth.owedParts);
  // Above 2^53 the product is not exact, but no storage is that large: nothing is missing either way.
  const filled = Math.min(warmth.missing, (parts - paid) * (config.coldFactor + 5));
  return {
    owedParts: warmth.owedParts - paid,
    missing: warmth.missing - filled,
    isFilled: warmth.isFilled || filled > 0,
  };
}

function afterTaking(config: Config, warmth: Warmth, units: number): Warmth {
  if (units === 0) return warmth;
  const missing = Math.min(storageOf(config), warmth.missing + units * permitOf(config));
  const extra = extraParts(config, warmth.missing, warmth.isFilled) - extraParts(config, missing, false);
  const owedParts = Math.min(warmth.owedParts + units * config.windowMs + extra, MAX_PARTS);
  return { owedParts, missing, isFilled: false };
}

/** Returns units taken `parts` of time ago to the storage, minus what filled it, and off the debt, minus payments. */
function afterReturning(config: Config, warmth: Warmth, units: number, parts: number): Warmth {
  const unpaid = Math.max(0, units * config.windowMs - parts);
  const idle = Math.max(0, parts - units * config.windowMs * config.coldFactor);
  const back = Math.max(0, units * permitOf(config) - idle * (config.coldFactor + 5));
  const missing = Math.max(0, warmth.missing - back);
  const extra = extraParts(config, missing, false) - extraParts(config, warmth.missing, false);
  const owedParts = Math.max(0, warmth.owedParts - unpaid - extra);
  return { owedParts, missing, isFilled: true };
}

function partsUntilCold({ coldFactor }: Config, { owedParts, missing }: Warmth): number {
  return owedParts + Math.ceil(missing / (coldFactor + 5));
}

function isSamePolicy(one: Config, other: Config): boolean {
  const isSameRate = one.limit === other.limit && one.windowMs === other.windowMs;
  return isSameRate && one.warmupMs === other.warmupMs && one.coldFactor === other.coldFactor;
}

/** The same under another policy: as many permits are owed, up to its `spentParts`, and as many stored, rounded up. */
function convertWarmth(from: Config, to: Config, warmth: Warmth, spentParts: number): Warmth {
  const share = (value: number, of: number, by: number) => (BigInt(value) * BigInt(of)) / BigInt(by);
  const missing = Number(share(warmth.missing, storageOf(to), storageOf(from)));
  const owed = Number(-share(-warmth.owedParts, to.windowMs, from.windowMs));
  return { owedParts: Math.min(owed, mostOwed(to, spentParts, { missing })), missing, isFilled: true };
}

/** What so many spent parts owe at most: each permit has cost as much as it would from cold. */
function mostOwed(config: Config, spentParts: number, { missing }: Pick<Warmth, "missing">): number {
  return spentParts + extraParts(config, 0, true) - extraParts(config, missing, false);
}

function permitOf({ windowMs, coldFactor }: Config): number {
  return 2 * windowMs * (coldFactor + 1);
}

/**
 * The extra parts of the stored cold permits, compared with warm ones, when `missing` is missing. The price falls
 * evenly from the first to the last of them, so the sum grows with the square of their number:
 *
 *     cold^2 * (coldFactor - 1) / (16 * (coldFactor + 1) * warmup * limit)
 *
 * It is rounded down, and up where taking begins: permits taken one by one cost the same as at once, and never less
 * than without rounding.
 */
function extraParts(config: Config, missing: number, isBegin: boolean): number {
  const { limit, warmupMs, coldFactor } = config;
  const cold = 4 * warmupMs * limit - missing;
  if (cold <= 0 || coldFactor === 1) return 0;
  const divisor = BigInt(16 * (coldFactor + 1)) * BigInt(warmupMs * limit);
  const dividend = BigInt(cold) ** 2n * BigInt(coldFactor - 1);
  return Number((dividend + (isBegin || missing === 0 ? divisor - 1n : 0n)) / divisor);
}
