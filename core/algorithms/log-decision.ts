/** How the sliding log decides, and how units join it: the essay is in sliding-log.ts. */
import type { AlgorithmDecision, Denial } from "./algorithm-decision.ts";
import { add, begin, countedAt, emptyAtMs, leavesAtMs, MOST_COUNTED, type UnitLog } from "./unit-log.ts";

export interface SlidingLogConfig {
  readonly limit: number;
  readonly windowMs: number;
  /** 0: calls may come at any distance. */
  readonly minIntervalMs: number;
  /** A denied call is logged as if it had passed. */
  readonly countDenied: boolean;
}

export interface SlidingLogState extends UnitLog {
  /** When the last call passed or, with `countDenied`, was made: `minInterval` begins here. */
  readonly lastMs: number;
}

type State = SlidingLogState;
type Config = SlidingLogConfig;

/** Decides on a cost, as `Algorithm.decide` says. */
export function decideByLog(
  config: Config,
  state: State | undefined,
  nowMs: number,
  cost: number,
  outstanding: number,
): AlgorithmDecision<State> {
  const { minIntervalMs, limit, countDenied } = config;
  const free = limit - countedAt(state, config.windowMs, nowMs) - outstanding;
  const isTooSoon = minIntervalMs > 0 && state !== undefined && nowMs < state.lastMs + minIntervalMs;
  if (cost > 0 && (cost > free || isTooSoon)) {
    const denied = deny(config, state, nowMs, cost, outstanding);
    if (!countDenied || cost > limit) return { allowed: false, ...denied };
    const after = logged(config, state, nowMs, cost, limit);
    // The figures are those with this call. Why it was denied, it was before it was counted.
    const { reason } = denied;
    const counted = { ...deny(config, after, nowMs, cost, outstanding), reason, state: after };
    return { allowed: false, ...denied, counted };
  }
  const isWhole = state === undefined || wholeMs(config, state) <= nowMs;
  const untaken = isWhole ? undefined : state;
  const after = cost === 0 ? untaken : logged(config, state, nowMs, cost, MOST_COUNTED);
  const isSpaced = isTooSoon || (cost > 0 && minIntervalMs > 0);
  const resetAfterMs = wholeAfterMs(config, after, nowMs);
  return { allowed: true, state: after, ...figuresOf(config, free - cost, isSpaced), resetAfterMs };
}

/** The state with `units` more at `nowMs`. Of all its units only the newest `most` go on counting. */
export function logged(
  config: Config,
  state: State | undefined,
  nowMs: number,
  units: number,
  most: number,
  lastMs = nowMs,
): State {
  // When nothing in the log counts any more, a new log begins.
  const isOver = state !== undefined && wholeMs(config, state) <= nowMs && state.openMs < nowMs;
  const log = state === undefined || isOver ? begin(nowMs) : state;
  const added = add(log, config.windowMs, nowMs, units, most);
  return { ...added, lastMs: isOver ? lastMs : Math.max(state?.lastMs ?? 0, lastMs) };
}

/** The instant from which the state equals an untouched one. */
function wholeMs({ windowMs, minIntervalMs }: Config, state: State): number {
  const emptyMs = emptyAtMs(state, windowMs);
  return minIntervalMs === 0 ? emptyMs : Math.max(emptyMs, state.lastMs + minIntervalMs);
}

function wholeAfterMs(config: Config, state: State | undefined, nowMs: number): number {
  return state === undefined ? 0 : Math.max(0, wholeMs(config, state) - nowMs);
}

/** What is left: under `minInterval` the largest cost that passes now may be 0 while there is quota. */
function figuresOf({ minIntervalMs }: Config, free: number, isTooSoon: boolean) {
  const left = Math.max(0, free);
  if (minIntervalMs === 0) return { remaining: left };
  return { remaining: isTooSoon ? 0 : left, quotaRemaining: left };
}

function deny(
  config: Config,
  state: State | undefined,
  nowMs: number,
  cost: number,
  outstanding: number,
): Denial {
  const { limit, windowMs, minIntervalMs } = config;
  const free = limit - countedAt(state, windowMs, nowMs) - outstanding;
  const fits = state === undefined || cost <= free;
  const quotaMs = fits ? nowMs : leavesAtMs(state, windowMs, nowMs, cost - free);
  const intervalMs = state === undefined || minIntervalMs === 0 ? nowMs : state.lastMs + minIntervalMs;
  return {
    reason: cost > limit ? "cost-over-limit" : intervalMs > quotaMs ? "min-interval" : "quota",
    retryAfterMs: cost + outstanding > limit ? null : Math.max(quotaMs, intervalMs) - nowMs,
    ...figuresOf(config, free, intervalMs > nowMs),
    resetAfterMs: wholeAfterMs(config, state, nowMs),
  };
}
