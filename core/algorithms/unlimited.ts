import { type Algorithm, type AnyAlgorithm, MAX_UNITS } from "./algorithm.ts";
import { END_MS } from "./credits.ts";
import { constantForecast } from "./forecast.ts";

/** By the algorithm whose limit is 0. */
const [ofPolicies, ofPlans] = [new Map<AnyAlgorithm, AnyAlgorithm>(), new Map<AnyAlgorithm, AnyAlgorithm>()];

/**
 * A limit of 0 denies every cost, and leases last until they end. A policy's has no state: consumption is forgotten. That of
 * a plan has the state of other plans, with a configuration that is not of 0. It has the name of the algorithm that it
 * replaces, so the limit may be raised again. Callers read that no time helps.
 */
export function zeroLimit(algorithm: AnyAlgorithm, isOfPlan: boolean): AnyAlgorithm {
  const made = isOfPlan ? ofPlans : ofPolicies;
  const zero = made.get(algorithm) ?? closed(algorithm, isOfPlan);
  made.set(algorithm, zero);
  return zero;
}

function closed(open: AnyAlgorithm, isOfPlan: boolean): AnyAlgorithm {
  const { isPoolable: _, ...algorithm } = open;
  const isLeasing = algorithm.leasing !== undefined;
  const hasState = isLeasing || isOfPlan;
  return {
    ...algorithm,
    ...(!hasState && STATELESS),
    ...(!isLeasing && { isClosed: true }),
    capacity: () => 0,
    ...(algorithm.limitNow && { limitNow: () => 0 }),
    quota: (config) => ({ ...algorithm.quota(config), units: 0 }),
    localDecisions: () => ({ admits: false, denies: !isLeasing }),
    ...((isLeasing || !isOfPlan) && { fullAtMs: () => END_MS }),
    decide(_config, state, nowMs, cost) {
      const left = { remaining: 0, resetAfterMs: Math.max(0, END_MS - nowMs) };
      return cost === 0
        ? { allowed: true, state: hasState ? state : undefined, ...left }
        : { allowed: false, reason: "cost-over-limit", retryAfterMs: null, ...left };
    },
    forecast: () => constantForecast((atMs, cost) => (cost === 0 ? atMs : Infinity)),
  };
}

const STATELESS = {
  isStateless: true,
  refillMs: () => 0,
  debit: () => undefined,
  maxDebit: () => Infinity,
  credit: () => undefined,
  untouchedAtMs: () => -Infinity,
  covers: (_config: object, _stored: unknown, ahead: number, _state: unknown, outstanding: number) =>
    outstanding <= ahead,
  pack: () => ({ record: null }),
  unpack: () => undefined,
  used: () => 0,
} as const;

/**
 * Unlimited: every cost passes, and nothing is counted, so an isolate decides alone. For customers without a limit,
 * and to lift a rule without removing it. `limit` and `remaining` are the largest cost that a call may have.
 *
 * The bound: none. What it is bad at: reporting usage. A rule with a limit of 1,000,000,000 counts.
 */
export const unlimited: Algorithm<object, undefined> = {
  ...STATELESS,
  name: "unlimited",
  fields: {},
  configure: () => ({}),
  capacity: () => MAX_UNITS,
  quota: () => ({ units: MAX_UNITS }),
  localDecisions: () => ({ admits: true, denies: true }),
  scale: (config) => config,
  decide: (_config, _state, _nowMs, cost) =>
    cost <= MAX_UNITS
      ? { allowed: true, state: undefined, ...ALL_LEFT }
      : { allowed: false, reason: "cost-over-limit", retryAfterMs: null, ...ALL_LEFT },
  forecast: () => constantForecast((atMs, cost) => (cost <= MAX_UNITS ? atMs : Infinity)),
};

const ALL_LEFT = { remaining: MAX_UNITS, resetAfterMs: 0 };
