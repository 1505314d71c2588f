import {
  type Algorithm,
  type AlgorithmDecision,
  configProblem,
  type Rate,
  type Refilled,
  type Uses,
} from "./algorithm.ts";

/**
 * Token bucket: `limit` units per window, refilled continuously, at most `burst` at once.
 *
 * The textbook stores the remaining tokens as a fraction, and adds `elapsed * limit / window` on every call. Fractions
 * are rounded, so after a few million calls the bucket has drifted from its rate. Here a token is `windowMs` parts,
 * and each millisecond returns `limit` parts: both are integers at any rate.
 *
 * The state is what has been *spent*, not what remains (the "leaky bucket as a meter" of ITU-T I.371). What remains is
 * `burst * windowMs - spent`. An untouched bucket is 0 under every policy, so when a policy changes, the consumption
 * stays and the new limit applies at once.
 *
 *     spent(now) = max(0, spent - limit * (now - at))
 *     a cost passes when  spent(now) + (outstanding + cost) * windowMs  <=  burst * windowMs
 *
 * Example: limit 3 per 1,000 ms, burst 3. At 0 ms three units are taken: 3,000 parts are spent. The fourth unit needs
 * spent <= 2,000, so it waits ceil(1,000 / 3) = 334 ms: at 333 ms spent is 2,001 (denied), at 334 ms 1,998 (passes).
 *
 * The bound, in any interval of L ms: burst + limit * L / windowMs units. It is reached when a full bucket is emptied
 * at once and each further unit is taken as soon as it returns. That is the worst boundary: nearly burst + limit units
 * in one window. What it is bad at: "never more than `limit` in any window", which needs a sliding log.
 *
 * A charge of n units can be returned later by name, as long as the bucket has not refilled them:
 *
 *     max(0, n * windowMs - limit * (now - at))  parts
 *
 * Why that keeps the bound: let V be what remains plus what could be returned of each charge. A charge moves parts
 * from the first to the second, and a refund moves them back. In a millisecond what remains grows by at most `limit`;
 * anything that could be returned shrinks by as much. So V never exceeds `burst`, and units taken in an interval and
 * not returned are at most that and what was refilled meanwhile: the same bound. At the rates of several plans the state
 * counts what was refilled (`refilledAt`).
 *
 * Counting is exact while every sum is at most 2^53, so `burst * windowMs` may not exceed that.
 */

type Config = TokenBucketConfig;
type State = TokenBucketState;

export const tokenBucket: Algorithm<Config, State> = {
  name: "token-bucket",
  isPoolable: true,
  fields: { limit: "units", window: "duration", burst: "units?" },

  configure(fields) {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const burst = Number(fields["burst"] ?? limit);
    if (burst * windowMs > MAX_PARTS) {
      const max = Math.floor(MAX_PARTS / windowMs);
      return configProblem(
        burst === limit ? "limit" : "burst",
        `at most ${max} with a window of ${windowMs} ms (burst * windowMs may not exceed 2^53, so that ` +
          "counting stays exact); the same rate over a shorter window allows more",
      );
    }
    const min = minBurst(limit, windowMs);
    if (burst < min)
      return configProblem(
        "burst",
        `at least ${min} for ${limit} per ${windowMs} ms: waits are whole milliseconds, so with less, callers that ` +
          "wait for `retryAfterMs` cannot reach that rate",
      );
    return { limit, windowMs, burst };
  },

  capacity: (config) => config.burst,
  quota: (config) => ({ units: config.limit, windowMs: config.windowMs }),
  localDecisions: () => ({ admits: true, denies: true }),
  refillMs: ({ windowMs, limit }, missing) => Math.ceil((missing * windowMs) / limit),

  // The window grows and the limit stays, so the rate is not rounded: a sixth of 5 in 15 min is 5 in 90 min.
  scale({ limit, windowMs, burst }, part) {
    const scaled = Math.floor(burst * part);
    return scaled < 1 ? undefined : { limit, windowMs: Math.ceil(windowMs / part), burst: scaled };
  },

  lessRate,
  withoutRate,

  decide(config, state, nowMs, cost, outstanding): AlgorithmDecision<State> {
    const { limit, windowMs, burst } = config;
    const spent = spentAt(config, state, nowMs);
    const unheldParts = (burst - outstanding) * windowMs;
    const costParts = cost * windowMs;
    const room = unheldParts - costParts;
    if (cost === 0 || spent <= room) {
      const spentAfter = spent + costParts;
      return {
        allowed: true,
        state: stateOf(config, spentAfter, state, nowMs),
        remaining: Math.max(0, Math.floor((room - spent) / windowMs)),
        resetAfterMs: Math.ceil(spentAfter / limit),
      };
    }
    return {
      allowed: false,
      reason: cost > burst ? "cost-over-limit" : "quota",
      retryAfterMs: room < 0 ? null : Math.ceil((spent - room) / limit),
      remaining: Math.max(0, Math.floor((unheldParts - spent) / windowMs)),
      resetAfterMs: Math.ceil(spent / limit),
    };
  },

  debit(config, state, nowMs, units, capacity = 0) {
    const before = spentAt(config, state, nowMs);
    const all = before + units * config.windowMs;
    const spent = Math.min(all, mostSpent(config, before, capacity));
    const beyond = beyondAt(config, state, nowMs);
    return stateOf(config, spent, state, nowMs, capacity > config.burst ? beyond + all - spent : beyond);
  },

  maxDebit: (config, state, nowMs) =>
    Math.floor((MAX_PARTS - spentAt(config, state, nowMs)) / config.windowMs),

  credit(config, state, nowMs, units, chargedMs, capacity = Infinity, returned?) {
    const atMs = chargedMs ?? nowMs;
    // Above 2^53 the product is not exact, but no charge is that large: the result is 0 either way.
    const refilled = returned ?? config.limit * Math.max(0, nowMs - atMs);
    const parts = Math.max(0, units * config.windowMs - refilled);
    const [spent, beyond] = [spentAt(config, state, nowMs), beyondAt(config, state, nowMs)];
    // What was charged to a larger bucket is first of what the bucket could not hold when it shrank.
    const isLarger = chargedMs !== undefined && capacity > config.burst;
    const left = Math.max(0, spent + (isLarger ? beyond : 0) - parts);
    const leftSpent = Math.min(spent, left);
    return stateOf(config, leftSpent, state, nowMs, isLarger ? left - leftSpent : beyond);
  },

  untouchedAtMs(config, state, uses) {
    const forecast = forecastOf(config, state);
    if (uses !== undefined) forecast.debit(uses);
    return forecast.untouchedAtMs();
  },

  // What was spent beyond a bucket that shrank counts when it grows again.
  outlastsMs: (config, state) => state.atMs + Math.ceil(totalOf(state, config) / config.limit),

  forecast: forecastOf,
  refilled: refilledAt,

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const heldParts = (ahead - outstanding) * config.windowMs;
    // If the clock was set back, the state is refilled only from its own instant on.
    const atMs = stamp(state, nowMs);
    const storedSpent = spentAt(config, stored as State | undefined, atMs);
    return heldParts >= 0 && storedSpent + heldParts >= spentAt(config, state, atMs);
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as State,
  used(record) {
    if (record === null) return 0;
    const { spentParts, totalParts, windowMs } = record as State;
    return Math.ceil((totalParts ?? spentParts) / windowMs);
  },
};

function forecastOf(config: Config, state: State | undefined) {
  const { limit, windowMs, burst } = config;
  let sinceMs = state?.atMs ?? -Infinity;
  let spentParts = spentAt(config, state, sinceMs);
  const spent = (atMs: number) => Math.max(0, spentParts - limit * Math.max(0, atMs - sinceMs));
  const debit = ({ endsMs, units, capacity }: Uses, from = 0, to = endsMs.length) => {
    // Copies: a thousand holds take a third of the time.
    let [parts, lastMs] = [spentParts, sinceMs];
    for (let index = from; index < to; index += 1) {
      const atMs = Math.max(endsMs[index] ?? 0, lastMs);
      const left = Math.max(0, parts - limit * (atMs - lastMs));
      parts = Math.min(left + (units[index] ?? 0) * windowMs, mostSpent(config, left, capacity));
      lastMs = atMs;
    }
    [spentParts, sinceMs] = [parts, lastMs];
  };
  return {
    debit,
    take: (atMs: number, units: number) => debit({ endsMs: [atMs], units: [units] }),
    passesAtMs(atMs: number, cost: number, outstanding: number) {
      if (cost === 0) return atMs;
      const room = (burst - outstanding) * windowMs - cost * windowMs;
      return room < 0 ? Infinity : atMs + Math.ceil(Math.max(0, spent(atMs) - room) / limit);
    },
    // Up to half of the maximum, the division above is exact too.
    isCertain: (atMs: number, outstanding: number) =>
      atMs >= sinceMs && spentParts + outstanding * windowMs <= MAX_PARTS / 2,
    untouchedAtMs: () => sinceMs + Math.ceil(spentParts / limit),
  };
}

export interface TokenBucketConfig {
  readonly limit: number;
  readonly windowMs: number;
  readonly burst: number;
}

/** Stored: never rename a field. */
export interface TokenBucketState {
  /** Parts spent at `atMs`; one unit is `windowMs` parts. More than `burst * windowMs` is debt. */
  readonly spentParts: number;
  /** The window and the burst under which `spentParts` was counted. Another policy converts it. */
  readonly windowMs: number;
  readonly burst: number;
  readonly atMs: number;
  /** The value if the bucket had never shrunk: it counts when the bucket grows again. Default: `spentParts`. */
  readonly totalParts?: number;
  /** Since when something has been spent without a pause. Absent: an earlier version wrote the state. */
  readonly sinceMs?: number;
  /** What time has returned since then. Default: 0. */
  readonly refilledParts?: number;
}

/** Parts spent at `nowMs`. When the clock runs backwards, nothing is returned. */
function spentAt(config: Config, state: State | undefined, nowMs: number): number {
  if (state === undefined) return 0;
  // At most the new burst, so a bucket that shrinks begins empty, not with a debt of a hundred windows.
  const spent = isUnder(config, state)
    ? state.spentParts
    : Math.min(totalOf(state, config), config.burst * config.windowMs);
  // Above 2^53 the product is not exact, but no bucket spends that much: the result is 0 either way.
  const refilled = config.limit * Math.max(0, nowMs - state.atMs);
  return Math.max(0, spent - refilled);
}

/** The most that may be spent after units of a bucket of this capacity: a larger one leaves no debt. */
function mostSpent({ burst, windowMs }: Config, spent: number, capacity = 0): number {
  return capacity > burst ? Math.max(spent, burst * windowMs) : MAX_PARTS;
}

/** The difference to `spentAt` if the bucket had never shrunk below its consumption. */
function beyondAt(config: Config, state: State | undefined, nowMs: number): number {
  if (state === undefined || (state.totalParts === undefined && isUnder(config, state))) return 0;
  const refilled = config.limit * Math.max(0, nowMs - state.atMs);
  return Math.max(0, totalOf(state, config) - refilled - spentAt(config, state, nowMs));
}

/** What time has returned since the bucket was last full. Before it can be too large to be counted it begins again. */
function refilledAt(config: Config, state: State | undefined, nowMs: number): Refilled {
  const { limit, windowMs: perUnit } = config;
  const begun = { sinceMs: stamp(state, nowMs), parts: 0, perUnit };
  if (state?.sinceMs === undefined) return begun;
  const more = limit * Math.max(0, nowMs - state.atMs);
  if (totalOf(state, config) <= more) return begun;
  const parts = scaledUp(state.refilledParts ?? 0, state.windowMs, perUnit) + more;
  return parts > MAX_PARTS / 2 ? begun : { sinceMs: state.sinceMs, parts, perUnit };
}

function isUnder({ windowMs, burst }: Config, state: State): boolean {
  return state.windowMs === windowMs && state.burst === burst;
}

/** All that was spent, in parts of a policy, rounded up so that a change never creates units. */
function totalOf({ spentParts, totalParts, windowMs: before }: State, { windowMs }: Config): number {
  return scaledUp(totalParts ?? spentParts, before, windowMs);
}

function scaledUp(parts: number, from: number, to: number): number {
  if (from === to) return parts;
  return Number((BigInt(parts) * BigInt(to) + BigInt(from) - 1n) / BigInt(from));
}

/** The instant of the next state: it never goes backwards. */
export function stamp(state: { readonly atMs: number } | undefined, nowMs: number): number {
  return state === undefined ? nowMs : Math.max(state.atMs, nowMs);
}

/** The state after one that has become this. */
function stateOf(
  config: Config,
  spentParts: number,
  before: State | undefined,
  nowMs: number,
  beyond = beyondAt(config, before, nowMs),
): State | undefined {
  if (spentParts === 0 && beyond === 0) return undefined;
  const { windowMs, burst } = config;
  const { sinceMs, parts: refilledParts } = refilledAt(config, before, nowMs);
  const state = { spentParts, windowMs, burst, atMs: stamp(before, nowMs), sinceMs, refilledParts };
  return beyond === 0 ? state : { ...state, totalParts: Math.min(spentParts + beyond, MAX_PARTS) };
}

/** The bucket without a part of its rate, rounded down. */
export function lessRate<Bucket extends Pick<Config, "limit" | "windowMs">>(
  config: Bucket,
  { units, windowMs }: Rate,
): Bucket | undefined {
  const less = Math.ceil(units / (windowMs / config.windowMs));
  return config.limit <= less ? undefined : { ...config, limit: config.limit - less };
}

export function withoutRate<Bucket extends Pick<Config, "limit">>(config: Bucket): Bucket {
  return { ...config, limit: 0 };
}

/**
 * The smallest burst with which a token bucket reaches its rate for a caller that waits for `retryAfterMs`.
 *
 * Waits are full milliseconds, so such a caller comes up to a millisecond late, and the bucket loses what it has no
 * room for in that time. 600 a second with a burst of 1: a unit returns every 1.67 ms, the caller waits 2 ms, and a
 * third of a unit is lost each time. That makes 500 a second.
 *
 * A unit is `windowMs` parts, and a millisecond returns `limit` parts. Everything that ever remains in a bucket that
 * begins full is a multiple of g, the greatest common divisor of the two. A caller that is denied one unit finds less
 * than a unit, so at most `windowMs - g` parts, and a millisecond later at most
 *
 *     windowMs - g + limit  parts
 *
 * A bucket with room for these loses nothing. And it needs that room: while nothing is lost, the remainder goes
 * through all possible multiples of g, as steps of `limit` around a circle of `windowMs` do.
 */
export function minBurst(limit: number, windowMs: number): number {
  return 1 + Math.ceil((limit - divisorOf(limit, windowMs)) / windowMs);
}

export function divisorOf(a: number, b: number): number {
  let [larger, smaller] = [a, b];
  while (smaller > 0) [larger, smaller] = [smaller, larger % smaller];
  return larger;
}

/** A double represents every integer up to here exactly. */
export const MAX_PARTS = 2 ** 53;
/** Rates of parts are in units per so many windows: one would round the rates of many holders to few units, or none. */
export const RATE_WINDOWS = 1_000;
