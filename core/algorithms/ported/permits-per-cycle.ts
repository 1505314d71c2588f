import type { Algorithm, AlgorithmDecision, ConfigProblem, Forecast, Uses } from "../algorithm.ts";

/**
 * Permits per cycle, as resilience4j's RateLimiter has them: each cycle of `window` brings `limit` permits. What is
 * not used of a cycle is lost; and who finds too few may reserve those of cycles to come, and is told to wait for them
 * (`delayMs`), if they come within `timeout`.
 *
 * resilience4j counts the permits that are left, and a reservation makes them negative. Here the state is what has
 * been *spent*, so that an untouched quota is 0 whatever the policy says. Every new cycle takes `limit` off it:
 *
 *     cycle(t) = floor(t / window)
 *     spent(now) = max(0, spent - limit * (cycle(now) - cycle(at)))
 *     cycles to wait = ceil((spent + outstanding + cost - limit) / limit), at least 0
 *     a cost passes when the last of these cycles begins within `timeout`; delayMs is until it begins
 *
 * Example: limit 10 per 1,000 ms, timeout 1,000 ms. At 1,300 ms a call takes 8. A cost of 5 takes the 2 that are left
 * and 3 of the next cycle: it is told to wait 700 ms. After it 7 of that cycle are left. A cost of 8 would need a
 * permit of the cycle that begins at 3,000 ms. That is more than 1,000 ms away until 2,000 ms: it is denied for 700 ms.
 *
 * In resilience4j cycles begin when a limiter is made. A key here is not made: it is there when it is asked for, and
 * forgotten when its quota is whole. So all cycles begin at the Unix epoch, as if every limiter had been made then. A
 * window of a day begins at midnight UTC.
 *
 * The bound, in any interval of L ms: it touches at most `ceil(L / window) + 1` cycles, which is so many times `limit`,
 * and `ceil(timeout / window)` times `limit` that are reserved. Callers that wait as told go on with at most
 * `limit * (ceil(L / window) + 1)` units, and the largest cost less 1, since a cost goes on as a whole when the last
 * of its permits comes. Its worst boundary is that between two cycles: twice the limit within a millisecond. What it is
 * bad at: a steady flow, since all who wait for a cycle go on at its first millisecond.
 *
 * When `timeout` is not a whole number of windows, more is offered late in a cycle, when one more cycle is within
 * reach: `limit * (1 + floor((now mod window + timeout) / window))`. `capacity` is the most of it, which resilience4j
 * would admit too; an untouched quota offers that only in the last part of each cycle, and less before.
 */
export interface PermitsPerCycleConfig {
  /** Permits of a cycle. */
  readonly limit: number;
  readonly windowMs: number;
  /** A reserved cycle begins within so long; 0: nothing is reserved. */
  readonly timeoutMs: number;
}

export interface PermitsPerCycleState {
  /** Permits spent in the cycle of `atMs`; more than `limit` are reserved ones. */
  readonly spent: number;
  readonly atMs: number;
  /** The policy that `spent` was counted under. */
  readonly limit: number;
  readonly windowMs: number;
}

type Config = PermitsPerCycleConfig;
type State = PermitsPerCycleState;
/** 30 days. No caller waits for so long. */
const MAX_TIMEOUT_MS = 2_592_000_000;
/** A double represents every integer up to here exactly. */
const MAX_SPENT = 2 ** 53;

export const permitsPerCycle: Algorithm<Config, State> = {
  name: "permits-per-cycle",
  fields: { limit: "units", window: "duration", timeout: "duration?" },

  configure(fields): Config | ConfigProblem {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const timeoutMs = Number(fields["timeout"] ?? 0);
    const config = { limit, windowMs, timeoutMs };
    if (timeoutMs > MAX_TIMEOUT_MS)
      return { problem: { field: "timeout", allowed: `at most ${MAX_TIMEOUT_MS} ms` } };
    if (capacityOf(config) > MAX_SPENT) {
      const most = (Math.floor(MAX_SPENT / limit) - 1) * windowMs;
      const allowed = `at most ${most} ms with ${limit} permits each ${windowMs} ms (so that counting stays exact)`;
      return { problem: { field: "timeout", allowed } };
    }
    return config;
  },

  capacity: capacityOf,
  quota: (config) => ({ units: config.limit, windowMs: config.windowMs }),

  // An isolate that spends permits does not know how many are reserved before it, so it cannot tell a delay.
  localDecisions: ({ timeoutMs }) => ({ admits: timeoutMs === 0, denies: true }),
  wholeFromMs: ({ limit, windowMs }, missing) => Math.ceil(missing / limit) * windowMs,

  scale(config, part) {
    const limit = Math.floor(config.limit * part);
    return limit < 1 ? undefined : { ...config, limit };
  },

  decide(config, state, nowMs, cost, outstanding): AlgorithmDecision<State> {
    const { limit, windowMs } = config;
    const atMs = stamp(state, nowMs);
    const cycle = Math.floor(atMs / windowMs);
    const spent = spentAt(config, state, nowMs);
    const left = limit * (1 + cyclesWithin(config, atMs)) - spent - outstanding;
    const wholeAfterMs = (used: number) =>
      used === 0 ? 0 : (cycle + Math.ceil(used / limit)) * windowMs - nowMs;
    if (cost > 0 && cost > left) {
      const isNever = cost + outstanding > capacityOf(config);
      return {
        allowed: false,
        reason: cost > capacityOf(config) ? "cost-over-limit" : "quota",
        retryAfterMs: isNever ? null : passesAtMs(config, spent, atMs, cost + outstanding) - nowMs,
        remaining: Math.max(0, left),
        resetAfterMs: wholeAfterMs(spent),
      };
    }
    const cycles = cost === 0 ? 0 : cyclesToWait(limit, spent + outstanding + cost);
    return {
      allowed: true,
      state: stateOf(config, spent + cost, atMs),
      remaining: Math.max(0, left - cost),
      resetAfterMs: wholeAfterMs(spent + cost),
      ...(cycles > 0 && { delayMs: (cycle + cycles) * windowMs - nowMs }),
    };
  },

  noteHold: (_, state) => state,

  debit(config, state, nowMs, units) {
    const spent = Math.min(spentAt(config, state, nowMs) + units, MAX_SPENT);
    return stateOf(config, spent, stamp(state, nowMs));
  },

  credit(config, state, nowMs, units) {
    return stateOf(config, Math.max(0, spentAt(config, state, nowMs) - units), stamp(state, nowMs));
  },

  uncharge(config, state, nowMs, units, atMs) {
    const since = Math.max(0, cycleOf(config, nowMs) - cycleOf(config, atMs));
    return permitsPerCycle.credit(config, state, nowMs, Math.max(0, units - config.limit * since));
  },

  wholeAtMs(config, state, uses) {
    const forecast = forecastOf(config, state);
    if (uses !== undefined) forecast.debit(uses);
    const after = forecast.state;
    if (after === undefined) return -Infinity;
    const spent = spentAt(config, after, after.atMs);
    return (cycleOf(config, after.atMs) + Math.ceil(spent / config.limit)) * config.windowMs;
  },

  forecast: forecastOf,

  covers(config, stored, ahead, state, outstanding, nowMs) {
    // Before the instant of the state nothing comes back to it, but to what is stored.
    const atMs = stamp(state, nowMs);
    const held = ahead - outstanding;
    const storedSpent = spentAt(config, stored as State | undefined, atMs);
    return held >= 0 && storedSpent + held >= spentAt(config, state, atMs);
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as State,
  used: (record) => (record as State | null)?.spent ?? 0,
};

/** All permits of this cycle and of those that begin within the timeout, late in a cycle, when they are most. */
function capacityOf({ limit, windowMs, timeoutMs }: Config): number {
  return limit * (1 + Math.ceil(timeoutMs / windowMs));
}

function cycleOf({ windowMs }: Config, atMs: number): number {
  return Math.floor(atMs / windowMs);
}

/** How many cycles begin within the timeout. */
function cyclesWithin(config: Config, atMs: number): number {
  return cycleOf(config, atMs + config.timeoutMs) - cycleOf(config, atMs);
}

/** How many cycles have to begin until so many permits have come, those of the present cycle included. */
function cyclesToWait(limit: number, permits: number): number {
  return Math.max(0, Math.ceil((permits - limit) / limit));
}

/**
 * The first instant at which a cost that is denied passes; `cost` with what is outstanding. Time does not move the
 * cycle in which its last permit comes as long as something is spent, and when nothing is, that cycle is in reach of
 * the timeout before the next one could move it.
 */
function passesAtMs(config: Config, spent: number, atMs: number, cost: number): number {
  const { limit, windowMs, timeoutMs } = config;
  return (cycleOf(config, atMs) + cyclesToWait(limit, spent + cost)) * windowMs - timeoutMs;
}

function forecastOf(config: Config, state: State | undefined): StateForecast<Config, State> {
  return new StateForecast(permitsPerCycle, config, state, config.timeoutMs % config.windowMs === 0);
}

/** Permits spent at `nowMs`. When the clock runs backwards, nothing comes back. */
function spentAt(config: Config, state: State | undefined, nowMs: number): number {
  if (state === undefined) return 0;
  const isUnchanged = state.windowMs === config.windowMs && state.limit === config.limit;
  // A quota that shrinks begins empty, and not with a debt of a hundred cycles.
  const spent = isUnchanged ? state.spent : Math.min(state.spent, capacityOf(config));
  const cycles = Math.max(0, cycleOf(config, nowMs) - cycleOf(config, state.atMs));
  return Math.max(0, spent - config.limit * cycles);
}

/** The instant of the next state: it never goes backwards. */
function stamp(state: State | undefined, nowMs: number): number {
  return state === undefined ? nowMs : Math.max(state.atMs, nowMs);
}

function stateOf({ limit, windowMs }: Config, spent: number, atMs: number): State | undefined {
  return spent === 0 ? undefined : { spent, atMs, limit, windowMs };
}

type Parts<AnyConfig extends object, AnyState> = Pick<Algorithm<AnyConfig, AnyState>, "debit" | "decide">;

/**
 * A state that is played forward by the functions of its algorithm. It makes a state for each unit that is used on the
 * way, so it is for algorithms whose states are a few numbers.
 */
class StateForecast<AnyConfig extends object, AnyState> implements Forecast {
  readonly #algorithm: Parts<AnyConfig, AnyState>;
  readonly #config: AnyConfig;
  readonly #isSteady: boolean;
  #state: AnyState | undefined;
  #atMs = -Infinity;

  /**
   * @param isSteady the instant at which a cost passes stays what it is when units that are outstanding are used
   * meanwhile
   */
  constructor(
    algorithm: Parts<AnyConfig, AnyState>,
    config: AnyConfig,
    state: AnyState | undefined,
    isSteady: boolean,
  ) {
    this.#algorithm = algorithm;
    this.#config = config;
    this.#state = state;
    this.#isSteady = isSteady;
  }

  /** The state as far as it was played. */
  get state(): AnyState | undefined {
    return this.#state;
  }

  debit({ endsMs, units }: Uses, from = 0, to = endsMs.length): void {
    for (let index = from; index < to; index += 1) this.take(endsMs[index] ?? 0, units[index] ?? 0);
  }

  take(atMs: number, units: number): void {
    this.#atMs = Math.max(this.#atMs, atMs);
    this.#state = this.#algorithm.debit(this.#config, this.#state, this.#atMs, units);
  }

  passesAtMs(atMs: number, cost: number, outstanding: number): number {
    const decision = this.#algorithm.decide(this.#config, this.#state, atMs, cost, outstanding);
    return decision.allowed ? atMs : atMs + (decision.retryAfterMs ?? Infinity);
  }

  isCertain(): boolean {
    return this.#isSteady;
  }
}
