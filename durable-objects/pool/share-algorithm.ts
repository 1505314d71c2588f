/** A region's share of a pool, as an algorithm: it decides with the region's units. */
import { outstandingOf } from "../../core/accounts/account.ts";
import type { Algorithm, AnyAlgorithm, LeaseTerms, Leasing } from "../../core/algorithms/algorithm.ts";
import { replay } from "../../core/algorithms/forecast.ts";
import { type Cost, costOf, type Policy, type Rule } from "../../core/policies/policy.ts";
import { maxUnits, spendableMs } from "../../core/reservations/sizing.ts";
import type { KeyState, RuleState } from "../keys/key-state.ts";
import type { PoolGrant, PoolRule } from "./protocol.ts";

interface ShareConfig extends LeaseTerms {
  readonly capacity: number;
  readonly isLeased: boolean;
  /** The rule of the pool. */
  readonly pooled: PoolRule;
}

/** A region's units of one rule. */
interface ShareState {
  /** Including units that isolates hold or callers lease: they are outstanding, as in any account. */
  readonly units: number;
  /** How far the pool was over its limit, which was lowered: as many are not spent or leased again. */
  readonly surplus: number;
  /** Units of a rate that were used since the share began. */
  readonly used: number;
  /** From then on units of a rate may not be spent. Leases end by the key's `endsByMs` instead. */
  readonly endsAtMs: number;
  /** The pool's last answer: units left, when a denied cost might pass, and when the quota is full. */
  readonly left: number;
  readonly retryAtMs: number;
  readonly wholeAtMs: number;
  /** The fencing token of the latest lease. The next lease gets one more. */
  readonly fencingToken: number;
  /** How many leases expired instead of being released. */
  readonly reclaimed: number;
  /** This object's id in the pool. It is stored with slots: a restarted object still has them. */
  readonly holder: string;
}

const NO_SHARE: ShareState = {
  units: 0,
  surplus: 0,
  used: 0,
  endsAtMs: -Infinity,
  left: 0,
  retryAtMs: -Infinity,
  wholeAtMs: -Infinity,
  fencingToken: 0,
  reclaimed: 0,
  holder: "",
};

/** The policy as a region's object decides it: every rule is a share of the pool's rule. */
export function sharesOf(policy: Policy): Policy {
  const [first, ...others] = policy.rules;
  const plans = policy.plans && new Map([...policy.plans].map(([plan, each]) => [plan, sharesOf(each)]));
  return { ...policy, rules: [shareOf(first), ...others.map(shareOf)], ...(plans && { plans }) };
}

/** The pool's rules, from a policy that `sharesOf` made. */
export function pooledRules({ rules }: Policy): PoolRule[] {
  return rules.map(({ config }) => (config as ShareConfig).pooled);
}

export function isLogged({ config }: Rule): boolean {
  return (config as ShareConfig).pooled.algorithm === "sliding-log";
}

function shareOf(rule: Rule): Rule {
  const { capacity, lease } = rule;
  const terms = lease ?? { ttlMs: 0, maxTtlMs: 0, maxWaitMs: 0, maxWaiters: 0 };
  // The script reads the fields of the algorithms' configurations.
  const fields = rule.config as Omit<PoolRule, "name" | "algorithm">;
  const pooled = { ...fields, name: rule.name, algorithm: rule.algorithm.name };
  const config: ShareConfig = { ...terms, capacity, isLeased: lease !== undefined, pooled };
  const localDecisions = rule.algorithm.localDecisions(rule.config);
  const algorithm = {
    ...(lease === undefined ? share : { ...share, leasing }),
    localDecisions: () => localDecisions,
    quota: () => rule.quota,
  } as AnyAlgorithm;
  return { ...rule, algorithm, config };
}

const leasing: Leasing<ShareConfig, ShareState> = {
  terms: (config) => config,
  fencingToken: (state) => state.fencingToken,
  resumed: (fencingToken) => ({ ...NO_SHARE, fencingToken }),
  reclaimed: (state) => state.reclaimed,
};

/** The wait of a denial without one from the pool, in milliseconds: others may return units at any time. */
const RETRY_MS = 250;

const share: Algorithm<ShareConfig, ShareState> = {
  name: "share",
  isShare: true,
  fields: {},
  configure: () => ({ problem: { field: "algorithm", allowed: "one of the registry" } }),
  capacity: ({ capacity }) => capacity,
  quota: ({ capacity }) => ({ units: capacity }),
  localDecisions: () => ({ admits: true, denies: true }),
  refillMs: () => 0,
  scale: () => undefined,

  decide({ capacity, isLeased }, state = NO_SHARE, nowMs, cost, outstanding) {
    const units = isLeased || nowMs < state.endsAtMs ? state.units - state.surplus : 0;
    const free = Math.max(0, units - outstanding);
    const resetAfterMs = Math.max(0, state.wholeAtMs - nowMs);
    const remaining = free - cost;
    if (remaining < 0) {
      const waitMs = state.retryAtMs > nowMs ? state.retryAtMs - nowMs : RETRY_MS;
      const denial = { allowed: false, remaining: free, resetAfterMs } as const;
      if (cost > capacity) return { ...denial, reason: "cost-over-limit", retryAfterMs: null };
      return { ...denial, reason: "quota", retryAfterMs: waitMs };
    }
    if (cost === 0) return { allowed: true, state, remaining, resetAfterMs };
    const after = isLeased
      ? { ...state, fencingToken: state.fencingToken + 1 }
      : { ...state, units: state.units - cost, used: state.used + cost };
    return { allowed: true, state: after, remaining, resetAfterMs };
  },

  debit({ isLeased }, state = NO_SHARE, _, units) {
    if (units === 0) return state;
    if (isLeased) return { ...state, reclaimed: state.reclaimed + 1 };
    return { ...state, units: state.units - units, used: state.used + units };
  },

  credit: (_, state) => state,
  untouchedAtMs: (_, state = NO_SHARE) => state.endsAtMs,

  forecast: (config, state) => replay(share, config, state, () => true),

  // Shares are not stored: after a crash the pool counts their units as used when the hold expires.
  covers: () => true,
  pack: ({ isLeased }, { holder }) => ({ record: isLeased ? { holder } : undefined }),
  used: () => 0,
  unpack: (_, record) => ({ ...NO_SHARE, holder: (record as Pick<ShareState, "holder">).holder }),
};

/** An isolate that requests units while its region calls the pool. */
export interface LentShare {
  readonly holder: string;
  readonly units: readonly number[];
}

export function stateOf({ account }: RuleState): ShareState {
  return (account.state ?? NO_SHARE) as ShareState;
}

export function updateShare(keyState: KeyState, ruleState: RuleState, change: Partial<ShareState>): void {
  const { account } = ruleState;
  keyState.replaceAccount(ruleState, { ...account, state: { ...stateOf(ruleState), ...change } });
}

/** Units that no isolate holds and no caller leases. */
export function freeUnits(ruleState: RuleState): number {
  return stateOf(ruleState).units - outstandingOf(ruleState.account);
}

/** How long until expiring leases of this region free `units`, in milliseconds; `undefined`: never. */
export function leaseWaitMs(ruleState: RuleState, units: number, nowMs: number): number | undefined {
  let missing = units - freeUnits(ruleState);
  for (const hold of ruleState.account.holds) {
    missing -= hold.units;
    if (missing <= 0) return Math.max(1, hold.expiresAtMs - nowMs);
  }
  return undefined;
}

/** Slots without a lease, of the rule that has most of them. */
export function idleSlots({ ruleStates }: KeyState): number {
  const leased = ruleStates.filter(({ rule }) => rule.lease !== undefined);
  return Math.max(0, ...leased.map(freeUnits));
}

/** By rule: units that isolates want. */
export function lentUnits({ ruleStates, holders }: KeyState, nowMs: number, lending?: LentShare): number[] {
  return ruleStates.map(({ rule }, index) => {
    const units = lending?.units[index] ?? 0;
    return units + holders.others(lending?.holder, rule.name, maxUnits(rule), nowMs).wanted;
  });
}

/** Keeps a share's wanted units, until its time is over, and outstanding ones. Returns how many; others go. */
export function keepUnits(keyState: KeyState, ruleState: RuleState, wanted: number, nowMs: number): number {
  const { account, rule } = ruleState;
  const state = stateOf(ruleState);
  const outstanding = outstandingOf(account);
  const isLeased = rule.lease !== undefined;
  const endsAtMs = isLeased ? keyState.endsByMs : state.endsAtMs;
  const units = nowMs < endsAtMs ? state.units : Math.min(state.units, outstanding);
  // Leases read from storage have their slots, even if the share is unknown.
  const min = isLeased ? outstanding : Math.min(units, outstanding);
  const kept = Math.max(0, min, Math.min(units, wanted));
  updateShare(keyState, ruleState, { units: kept });
  return kept;
}

/** Adds the pool's grant of a rule, with the admitted cost of slots. `reported`: units used. */
export function addUnits(
  keyState: KeyState,
  ruleState: RuleState,
  units: number,
  granted: PoolGrant,
  reported: number,
  sentAtMs: number,
): void {
  const state = stateOf(ruleState);
  if (ruleState.rule.lease !== undefined) {
    const fencingToken = Math.max(state.fencingToken, Number(granted.fencingToken ?? 0) - 1);
    return updateShare(keyState, ruleState, { units: state.units + units, fencingToken });
  }
  const endsAtMs = sentAtMs + spendableMs(granted.ttlMs);
  if (!granted.isNew) return updateShare(keyState, ruleState, { units: state.units + units, endsAtMs });
  // The pool has counted the old units as used, or will: the region reports none, and drops isolates' holds.
  keyState.replaceAccount(ruleState, { state, holds: [] });
  updateShare(keyState, ruleState, { units, used: reported, endsAtMs });
}

/** A cost as units of each rule. */
export function costsOf({ ruleStates }: Pick<KeyState, "ruleStates">, cost: Cost): number[] {
  return ruleStates.map(({ rule }) => costOf(rule, cost));
}
