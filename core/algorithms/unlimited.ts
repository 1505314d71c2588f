import type { Algorithm } from "./algorithm.ts";
import { STATELESS } from "./closed.ts";

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
  capacity: () => MOST_COST,
  quota: () => ({ units: MOST_COST }),
  localDecisions: () => ({ admits: true, denies: true }),
  scale: (config) => config,
  decide: (_config, _state, _nowMs, cost) =>
    cost <= MOST_COST
      ? { allowed: true, state: undefined, ...FIGURES }
      : { allowed: false, reason: "cost-over-limit", retryAfterMs: null, ...FIGURES },
  forecast: () => ({
    debit: () => undefined,
    take: () => undefined,
    passesAtMs: (atMs, cost) => (cost <= MOST_COST ? atMs : Infinity),
    isCertain: () => true,
  }),
};

/** No call may cost more (core/policies/policy-fields.ts). */
const MOST_COST = 1_000_000_000;
const FIGURES = { remaining: MOST_COST, resetAfterMs: 0 };
