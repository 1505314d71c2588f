import {
  type Algorithm,
  type AlgorithmDecision,
  type ConfigProblem,
  configProblem,
  type Refilled,
  scaleLimit,
} from "../algorithm.ts";
import { afterUses, replay } from "../forecast.ts";
import { MAX_PARTS, stamp } from "../token-bucket.ts";

/**
 * Permits per cycle, as in resilience4j's RateLimiter: each cycle of `window` brings `limit` permits. Unused permits
 * of a cycle are lost. If too few remain, a call may reserve permits of later cycles that begin within `timeout`, and
 * waits for them (`delayMs`).
 *
 * resilience4j counts the remaining permits, negative after a reservation. Here the state is what has been *spent*, so
 * an untouched quota is 0 under every policy. Every new cycle subtracts `limit`:
 *
 *     cycle(t) = floor(t / window)
 *     spent(now) = max(0, spent - limit * (cycle(now) - cycle(at)))
 *     cycles to wait = ceil((spent + outstanding + cost - limit) / limit), at least 0
 *     a cost passes when the last of these cycles begins within `timeout`; delayMs is until it begins
 *
 * Example: limit 10 per 1,000 ms, timeout 1,000 ms. At 1,300 ms a call takes 8. A cost of 5 takes the remaining 2 and
 * 3 of the next cycle: its delay is 700 ms. A cost of 8 would then need a permit of the cycle that begins at 3,000 ms,
 * more than 1,000 ms away until 2,000 ms: it is denied for 700 ms.
 *
 * In resilience4j cycles begin when a limiter is created. A key here is not created, and is forgotten when its quota
 * is untouched. So all cycles begin at the Unix epoch; those of a day begin at midnight UTC.
 *
 * The bound, in any interval of L ms: it meets at most `ceil(L / window) + 1` cycles of `limit` permits each, and
 * `ceil(timeout / window)` times `limit` may be reserved. Callers that keep their delays proceed with at most
 * `limit * (ceil(L / window) + 1)` units and the largest cost minus 1, since a cost proceeds when the last of its
 * permits comes. The worst boundary is between two cycles: twice the limit within a millisecond. What it is bad at: a
 * steady flow, since all callers that wait for a cycle proceed at its first millisecond.
 *
 * When `timeout` is not a multiple of the window, one more cycle is within reach late in a cycle: `limit * (1 +
 * floor((now mod window + timeout) / window))`. `capacity` is that maximum, which resilience4j admits too.
 */
export interface PermitsPerCycleConfig {
  readonly limit: number;
  readonly windowMs: number;
  /** A reserved cycle begins within this time; 0: nothing is reserved. */
  readonly timeoutMs: number;
}

export interface PermitsPerCycleState {
  /** Permits spent in the cycle of `atMs`; those above `limit` are reserved. */
  readonly spent: number;
  readonly atMs: number;
  readonly limit: number;
  readonly windowMs: number;
  /** The value if the quota had never shrunk: it counts when the quota grows again. Default: `spent`. */
  readonly total?: number;
  /** Since when something has been spent without a pause. Absent: an earlier version wrote the state. */
  readonly sinceMs?: number;
  /** The permits that cycles have returned since then. Default: 0. */
  readonly refilled?: number;
}

type Config = PermitsPerCycleConfig;
type State = PermitsPerCycleState;
/** 30 days: more than any caller waits. */
const MAX_TIMEOUT_MS = 2_592_000_000;

export const permitsPerCycle: Algorithm<Config, State> = {
  name: "permits-per-cycle",
  fields: { limit: "units", window: "duration", timeout: "duration?" },

  configure(fields): Config | ConfigProblem {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const timeoutMs = Number(fields["timeout"] ?? 0);
    const config = { limit, windowMs, timeoutMs };
    if (timeoutMs > MAX_TIMEOUT_MS) return configProblem("timeout", `at most ${MAX_TIMEOUT_MS} ms`);
    if (capacityOf(config) <= MAX_PARTS) return config;
    const maxMs = (Math.floor(MAX_PARTS / limit) - 1) * windowMs;
    const allowed = `at most ${maxMs} ms with ${limit} permits each ${windowMs} ms (so that counting stays exact)`;
    return configProblem("timeout", allowed);
  },

  capacity: capacityOf,
  quota: (config) => ({ units: config.limit, windowMs: config.windowMs }),
  // An isolate does not know how many permits are reserved before its own, so it cannot compute a delay.
  localDecisions: ({ timeoutMs }) => ({ admits: timeoutMs === 0, denies: true }),
  refillMs: ({ limit, windowMs }, missing) => Math.ceil(missing / limit) * windowMs,
  scale: scaleLimit,

  decide(config, state, nowMs, cost, outstanding): AlgorithmDecision<State> {
    const { limit, windowMs, timeoutMs } = config;
    const atMs = stamp(state, nowMs);
    const cycle = cycleOf(config, atMs);
    const spent = spentAt(config, state, nowMs);
    const left = limit * (1 + cycleOf(config, atMs + timeoutMs) - cycle) - spent - outstanding;
    const untouchedAfterMs = (used: number) =>
      used === 0 ? 0 : (cycle + Math.ceil(used / limit)) * windowMs - nowMs;
    if (cost > 0 && cost > left) {
      const isNever = cost + outstanding > capacityOf(config);
      // Time does not move the cycle of the last permit while something is spent; otherwise that cycle is within the
      // timeout before the next one could.
      const lastCycle = cycle + cyclesToWait(limit, spent + cost + outstanding);
      return {
        allowed: false,
        reason: cost > capacityOf(config) ? "cost-over-limit" : "quota",
        retryAfterMs: isNever ? null : lastCycle * windowMs - timeoutMs - nowMs,
        remaining: Math.max(0, left),
        resetAfterMs: untouchedAfterMs(spent),
      };
    }
    const cycles = cost === 0 ? 0 : cyclesToWait(limit, spent + outstanding + cost);
    return {
      allowed: true,
      state: stateOf(config, spent + cost, state, nowMs),
      remaining: Math.max(0, left - cost),
      resetAfterMs: untouchedAfterMs(spent + cost),
      ...(cycles > 0 && { delayMs: (cycle + cycles) * windowMs - nowMs }),
    };
  },

  debit(config, state, nowMs, units, capacity = 0) {
    const before = spentAt(config, state, nowMs);
    const most = capacityOf(config);
    const isLarger = capacity > most;
    const spent = Math.min(before + units, isLarger ? Math.max(before, most) : MAX_PARTS);
    const beyond = beyondAt(config, state, nowMs) + (isLarger ? before + units - spent : 0);
    return stateOf(config, spent, state, nowMs, beyond);
  },

  credit(config, state, nowMs, units, atMs = nowMs, capacity = 0, returned?) {
    const cycles = Math.max(0, cycleOf(config, nowMs) - cycleOf(config, atMs));
    const back = Math.max(0, units - (returned ?? config.limit * cycles));
    const [spent, beyond] = [spentAt(config, state, nowMs), beyondAt(config, state, nowMs)];
    // As of a token bucket: what was charged to a larger quota is first of what this one could not hold.
    const isLarger = capacity > capacityOf(config);
    const left = Math.max(0, spent + (isLarger ? beyond : 0) - back);
    const leftSpent = Math.min(spent, left);
    return stateOf(config, leftSpent, state, nowMs, isLarger ? left - leftSpent : beyond);
  },

  untouchedAtMs(config, state, uses) {
    const after = afterUses(permitsPerCycle, config, state, uses);
    if (after === undefined) return -Infinity;
    const spent = spentAt(config, after, after.atMs);
    return (cycleOf(config, after.atMs) + Math.ceil(spent / config.limit)) * config.windowMs;
  },

  // As of a token bucket.
  outlastsMs(config, { spent, total = spent, atMs }) {
    return (cycleOf(config, atMs) + Math.ceil(total / config.limit)) * config.windowMs;
  },

  // Otherwise an outstanding unit used late in a cycle moves the instant.
  forecast: (config, state) =>
    replay(permitsPerCycle, config, state, () => config.timeoutMs % config.windowMs === 0),

  refilled: refilledAt,

  covers(config, stored, ahead, state, outstanding, nowMs) {
    // Before its instant nothing is returned to the state, but to the stored one.
    const atMs = stamp(state, nowMs);
    const held = ahead - outstanding;
    const storedSpent = spentAt(config, stored as State | undefined, atMs);
    return held >= 0 && storedSpent + held >= spentAt(config, state, atMs);
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as State,
  used(record) {
    const { spent = 0, total = spent } = (record as State | null) ?? {};
    return total;
  },
};

/** The maximum, late in a cycle: its permits and those of all cycles that begin within the timeout. */
function capacityOf({ limit, windowMs, timeoutMs }: Config): number {
  return limit * (1 + Math.ceil(timeoutMs / windowMs));
}

function cycleOf({ windowMs }: Config, atMs: number): number {
  return Math.floor(atMs / windowMs);
}

/** How many cycles have to begin for this many permits, with those of the current cycle. */
function cyclesToWait(limit: number, permits: number): number {
  return Math.max(0, Math.ceil((permits - limit) / limit));
}

function spentAt(config: Config, state: State | undefined, nowMs: number): number {
  if (state === undefined) return 0;
  const isUnchanged = state.windowMs === config.windowMs && state.limit === config.limit;
  // A quota that shrinks begins empty, not with a debt of a hundred cycles.
  const spent = isUnchanged ? state.spent : Math.min(state.total ?? state.spent, capacityOf(config));
  return Math.max(0, spent - returnedSince(config, state, nowMs));
}

function returnedSince(config: Config, { atMs }: State, nowMs: number): number {
  return config.limit * Math.max(0, cycleOf(config, nowMs) - cycleOf(config, atMs));
}

/** The difference to `spentAt` if the quota had never shrunk below its consumption. */
function beyondAt(config: Config, state: State | undefined, nowMs: number): number {
  if (state === undefined) return 0;
  const total = (state.total ?? state.spent) - returnedSince(config, state, nowMs);
  return Math.max(0, total - spentAt(config, state, nowMs));
}

function refilledAt(config: Config, state: State | undefined, nowMs: number): Refilled {
  const begun = { sinceMs: stamp(state, nowMs), parts: 0, perUnit: 1 };
  if (state?.sinceMs === undefined) return begun;
  const more = returnedSince(config, state, nowMs);
  if ((state.total ?? state.spent) <= more) return begun;
  const parts = (state.refilled ?? 0) + more;
  return parts > MAX_PARTS / 2 ? begun : { sinceMs: state.sinceMs, parts, perUnit: 1 };
}

/** The state after one that has become this. */
function stateOf(
  config: Config,
  spent: number,
  before: State | undefined,
  nowMs: number,
  beyond = beyondAt(config, before, nowMs),
): State | undefined {
  if (spent === 0 && beyond === 0) return undefined;
  const { limit, windowMs } = config;
  const { sinceMs, parts } = refilledAt(config, before, nowMs);
  return {
    spent,
    atMs: stamp(before, nowMs),
    limit,
    windowMs,
    ...(beyond > 0 && { total: spent + beyond }),
    sinceMs,
    ...(parts > 0 && { refilled: parts }),
  };
}
