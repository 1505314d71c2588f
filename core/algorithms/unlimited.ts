import type { Algorithm, AnyAlgorithm } from "./algorithm.ts";

/** By the algorithm that is closed. */
const known = new Map<AnyAlgorithm, AnyAlgorithm>();

/**
 * An algorithm whose limit is 0: it denies every cost, for ever, and looks find nothing left. It keeps no state, so what
 * was consumed under another limit is forgotten with it, as far as time would have let it matter. Leases that were given
 * under another limit go on until they end.
 *
 * It has the name of the algorithm that it closes, so that a policy may be closed and opened again.
 */
export function zeroLimit(algorithm: AnyAlgorithm): AnyAlgorithm {
  const made = known.get(algorithm) ?? closing(algorithm);
  known.set(algorithm, made);
  return made;
}

function closing(open: AnyAlgorithm): AnyAlgorithm {
  const { isPoolable: _, ...algorithm } = open;
  const isLeasing = algorithm.leasing !== undefined;
  const kept = isLeasing ? algorithm : { ...algorithm, ...STATELESS };
  return {
    ...kept,
    capacity: () => 0,
    ...(algorithm.limitNow && { limitNow: () => 0 }),
    quota: (config) => ({ ...algorithm.quota(config), units: 0 }),
    localDecisions: () => ({ admits: false, denies: !isLeasing }),
    decide: (_config, state, _nowMs, cost) =>
      cost === 0
        ? { allowed: true, state: isLeasing ? state : undefined, ...NOTHING_LEFT }
        : { allowed: false, reason: "cost-over-limit", retryAfterMs: null, ...NOTHING_LEFT },
    forecast: () => ({
      debit: () => undefined,
      take: () => undefined,
      passesAtMs: (atMs, cost) => (cost === 0 ? atMs : Infinity),
      isCertain: () => true,
    }),
  };
}

const NOTHING_LEFT = { remaining: 0, resetAfterMs: 0 };

/** What an algorithm does that keeps no state, whatever it decides. */
const STATELESS = {
  isStateless: true,
  wholeFromMs: () => 0,
  noteHold: () => undefined,
  debit: () => undefined,
  mostDebit: () => Infinity,
  credit: () => undefined,
  uncharge: () => undefined,
  wholeAtMs: () => -Infinity,
  covers: (_config: object, _stored: unknown, ahead: number, _state: unknown, outstanding: number) =>
    outstanding <= ahead,
  pack: () => ({ record: null }),
  unpack: () => undefined,
  used: () => 0,
} as const;

/**
 * Unlimited: every cost passes, and nothing is counted. For customers without a limit, and for a rule that is to be
 * lifted without being taken out.
 *
 * There is no state, so an isolate decides alone and nothing is stored. Figures have to be numbers, so `limit` and
 * `remaining` are the largest cost that a call may have. They stay that, whatever is taken or held.
 *
 * The bound: none. What it is bad at: saying how much was used. A rule with a limit of 1,000,000,000 counts.
 */
export const unlimited: Algorithm<object, undefined> = {
  ...STATELESS,
  name: "unlimited",
  fields: {},
  configure: () => ({}),
  capacity: () => MAX_COST,
  quota: () => ({ units: MAX_COST }),
  localDecisions: () => ({ admits: true, denies: true }),
  scale: (config) => config,
  decide: (_config, _state, _nowMs, cost) =>
    cost <= MAX_COST
      ? { allowed: true, state: undefined, ...FIGURES }
      : { allowed: false, reason: "cost-over-limit", retryAfterMs: null, ...FIGURES },
  forecast: () => ({
    debit: () => undefined,
    take: () => undefined,
    passesAtMs: (atMs, cost) => (cost <= MAX_COST ? atMs : Infinity),
    isCertain: () => true,
  }),
};

/** No call may cost more (core/policies/policy-fields.ts). */
const MAX_COST = 1_000_000_000;
const FIGURES = { remaining: MAX_COST, resetAfterMs: 0 };
