/**
 * The arithmetic of accounts in the plainest way: it tries one hold after another with the algorithms' own
 * states, and plays queues through with full decisions. Production code must agree, faster.
 */
import { type JointDecision, type Taking, advance } from "../../core/accounts/account.ts";
import { type Account, type Hold, heldUnits, type RuleAccount } from "../../core/accounts/hold.ts";
import type { QueuedCost } from "../../core/accounts/queue-waits.ts";
import type { Denial } from "../../core/algorithms/algorithm.ts";
import type { TokenBucketState } from "../../core/algorithms/token-bucket.ts";
import { type Cost, costOf, type Rule } from "../../core/policies/policy.ts";
import type { RuleDecision } from "../../core/protocol/answers.ts";
import { type AccountDecision } from "./decide.ts";

/**
 * The exact wait in milliseconds for a cost behind the queue, if no other call comes and every lease runs to
 * its end; `null`: never. Each waiter gets its lease as soon as the rules admit it, or gives up at `untilMs`.
 */
export function waitBehindMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly QueuedCost[],
  cost: Cost,
  nowMs: number,
): number | null {
  let [current, atMs] = [ruleAccounts, nowMs];
  const moveTo = (toMs: number) => {
    atMs = toMs;
    current = current.map(({ rule, account }) => ({ rule, account: advance(rule, account, toMs) }));
  };
  for (const [index, waiter] of waiters.entries()) {
    const waitMs = jointWaitMs(current, waiter.cost, atMs);
    if (waitMs === null || atMs + waitMs > waiter.untilMs) {
      moveTo(Math.max(atMs, waiter.untilMs));
      continue;
    }
    moveTo(atMs + waitMs);
    const lease = { id: `waiter ${index}`, expiresAtMs: atMs + waiter.ttlMs };
    const { accounts } = decideTogether(current, atMs, waiter.cost, { lease });
    current = current.map(({ rule, account }, each) => ({ rule, account: accounts?.[each] ?? account }));
  }
  const waitMs = jointWaitMs(current, cost, atMs);
  return waitMs === null ? null : atMs + waitMs - nowMs;
}

/** The wait in milliseconds until every rule admits a cost: the longest of the rules; `null`: never. */
function jointWaitMs(ruleAccounts: readonly RuleAccount[], cost: Cost, nowMs: number): number | null {
  let longest = 0;
  for (const { retryAfterMs } of withoutTaking(ruleAccounts, nowMs, cost)) {
    if (retryAfterMs === null) return null;
    longest = Math.max(longest, retryAfterMs);
  }
  return longest;
}
/** Decides a cost under all rules, all or nothing. Pure. */
export function decideTogether(
  ruleAccounts: readonly RuleAccount[],
  nowMs: number,
  cost: Cost,
  taking: Taking = {},
): JointDecision {
  const accounts: Account[] = [];
  const rules: RuleDecision[] = [];
  for (const { rule, account } of ruleAccounts) {
    const units = costOf(rule, cost);
    const decision = decide(rule, account, nowMs, units);
    if (!decision.allowed) return denied(ruleAccounts, nowMs, cost);
    const held = units === 0 ? account : taken(rule, account, decision.account, nowMs, units, taking);
    accounts.push(held ?? decision.account);
    const said = held === undefined ? decision : decide(rule, held, nowMs, 0);
    rules.push(ruleDecision(rule, nowMs, account, said));
  }
  return { admitted: true, accounts, rules };
}

/** Every rule's decision on a cost. Nothing is taken, so the values are the current ones. */
export function withoutTaking(
  ruleAccounts: readonly RuleAccount[],
  nowMs: number,
  cost: Cost,
): RuleDecision[] {
  return ruleAccounts.map(({ rule, account }) => lookAt(rule, account, nowMs, costOf(rule, cost)));
}

function lookAt(rule: Rule, account: Account, nowMs: number, cost: number): RuleDecision {
  const decision = decide(rule, account, nowMs, cost);
  if (!decision.allowed || cost === 0) return ruleDecision(rule, nowMs, account, decision);
  const { reason, success, retryAfterMs } = ruleDecision(rule, nowMs, account, decision);
  return {
    ...ruleDecision(rule, nowMs, account, decide(rule, account, nowMs, 0)),
    reason,
    success,
    retryAfterMs,
  };
}

/** The account with the units held or leased; `undefined`: the units are used at once. */
function taken(
  rule: Rule,
  before: Account,
  after: Account,
  nowMs: number,
  units: number,
  { hold, lease }: Taking,
): Account | undefined {
  if (rule.lease !== undefined) return lease && place(after, { ...lease, units, isStored: true });
  const { capacity } = rule;
  return hold && noted(rule, before, nowMs, { ...hold, units, isStored: true, capacity });
}

/** A denial, with the new accounts when a rule counts denials. A cost that can never pass is not counted. */
function denied(ruleAccounts: readonly RuleAccount[], nowMs: number, cost: Cost): JointDecision {
  const decided = ruleAccounts.map((each) => ({
    ...each,
    decision: decide(each.rule, each.account, nowMs, costOf(each.rule, cost)),
  }));
  const isNever = decided.some(({ decision }) => !decision.allowed && decision.retryAfterMs === null);
  let hasCounted = false;
  const accounts: Account[] = [];
  const rules = decided.map(({ rule, account, decision }) => {
    const counted = decision.allowed || isNever ? undefined : decision.counted;
    hasCounted ||= counted !== undefined;
    accounts.push(counted?.account ?? account);
    if (counted !== undefined) return ruleDecision(rule, nowMs, account, { ...counted, allowed: false });
    return decision.allowed
      ? lookAt(rule, account, nowMs, costOf(rule, cost))
      : ruleDecision(rule, nowMs, account, decision);
  });
  return hasCounted ? { admitted: false, accounts, rules } : { admitted: false, rules };
}

function ruleDecision(rule: Rule, nowMs: number, account: Account, decision: AccountDecision): RuleDecision {
  const { allowed, remaining, quotaRemaining, resetAfterMs } = decision;
  const { name, algorithm, config, capacity } = rule;
  return {
    name,
    success: allowed,
    limit: algorithm.limitNow?.(config, account.state, nowMs) ?? capacity,
    remaining,
    ...(quotaRemaining !== undefined && { quotaRemaining }),
    resetAfterMs,
    retryAfterMs: allowed ? 0 : decision.retryAfterMs,
    reason: allowed ? "ok" : decision.reason,
  };
}
function noted(rule: Rule, { state, holds }: Account, nowMs: number, hold: Hold): Account {
  return place({ state: rule.algorithm.noteHold?.(rule.config, state, nowMs) ?? state, holds }, hold);
}

/** The account must have been advanced to `nowMs`. */
function decide(rule: Rule, account: Account, nowMs: number, cost: number): AccountDecision {
  const outstanding = outstandingOf(account);
  const decision = rule.algorithm.decide(rule.config, account.state, nowMs, cost, outstanding);
  // The values of a share are the pool's, and the pool knows of the units that are held here.
  const isExact = outstanding === 0 || rule.algorithm.isShare === true;
  if (decision.allowed) {
    const { state, remaining, quotaRemaining } = decision;
    const after = { state, holds: account.holds };
    const resetAfterMs = isExact ? decision.resetAfterMs : wholeAtMs(rule, after, nowMs) - nowMs;
    const left = quotaRemaining === undefined ? {} : { quotaRemaining };
    return { allowed: true, account: after, remaining, ...left, resetAfterMs };
  }
  const { counted, ...denial } = decision;
  /** The denial with values for the case that every hold is used when it expires. */
  const withHolds = (of: Account, figures: Denial): Denial =>
    isExact
      ? figures
      : {
          ...figures,
          retryAfterMs: cost > rule.capacity ? null : ruleWaitMs(rule, of, nowMs, cost),
          resetAfterMs: wholeAtMs(rule, of, nowMs) - nowMs,
        };
  if (counted === undefined) return { ...withHolds(account, denial), allowed: false };
  const { state, ...countedDenial } = counted;
  const after = { state, holds: account.holds };
  return {
    ...withHolds(account, denial),
    allowed: false,
    counted: { ...withHolds(after, countedDenial), account: after },
  };
}

/** The first instant from `nowMs` on at which the account equals an untouched one without further calls. */
function wholeAtMs(rule: Rule, account: Account, nowMs: number): number {
  const last = account.holds.at(-1)?.expiresAtMs ?? nowMs;
  if (rule.lease !== undefined) return Math.max(last, nowMs);
  const { state } = advance(rule, account, last);
  if (state === undefined) return Math.max(last, nowMs);
  return Math.max(last, nowMs, rule.algorithm.untouchedAtMs(rule.config, state));
}

/** The exact wait for a cost within the capacity, if every hold is used when it expires; `null`: never. */
function ruleWaitMs(rule: Rule, account: Account, nowMs: number, cost: number): number | null {
  if (rule.algorithm.limitNow !== undefined) return adaptiveWaitMs(rule, account, nowMs, cost);
  if (rule.lease !== undefined) return leaseWaitMs(rule, account, nowMs, cost);
  const { holds } = account;
  let { state } = account;
  let [atMs, outstanding, next] = [nowMs, outstandingOf(account), 0];
  for (;;) {
    const decision = rule.algorithm.decide(rule.config, state, atMs, cost, outstanding);
    if (decision.allowed) return atMs - nowMs;
    const nextExpiryMs = holds[next]?.expiresAtMs;
    const passesAtMs = decision.retryAfterMs === null ? undefined : atMs + decision.retryAfterMs;
    if (nextExpiryMs === undefined || (passesAtMs !== undefined && passesAtMs <= nextExpiryMs)) {
      return passesAtMs === undefined ? null : passesAtMs - nowMs;
    }
    atMs = nextExpiryMs;
    for (let hold = holds[next]; hold !== undefined && hold.expiresAtMs <= atMs; hold = holds[next]) {
      state = rule.algorithm.debit(
        rule.config,
        state,
        hold.expiresAtMs,
        hold.units,
        heldUnits(holds).capacity,
      );
      outstanding -= hold.units;
      next += 1;
    }
  }
}

/** The same where the limit changes: when a lease ends, or learned values are forgotten. */
function adaptiveWaitMs(rule: Rule, account: Account, nowMs: number, cost: number): number | null {
  const endsMs = account.holds.map(({ expiresAtMs }) => expiresAtMs);
  const instants = [...endsMs, rule.algorithm.untouchedAtMs(rule.config, account.state)];
  for (const atMs of instants.filter((each) => each > nowMs).toSorted((a, b) => a - b)) {
    const later = advance(rule, account, atMs);
    if (decide(rule, later, atMs, cost).allowed) return atMs - nowMs;
  }
  return null;
}

/** The same for leases: the wait until enough of them have expired. */
function leaseWaitMs(rule: Rule, account: Account, nowMs: number, cost: number): number | null {
  let missing = cost + outstandingOf(account) - rule.capacity;
  for (const { units, expiresAtMs } of account.holds) {
    missing -= units;
    if (missing <= 0) return expiresAtMs - nowMs;
  }
  return null;
}
function place({ state, holds }: Account, hold: Hold): Account {
  const index = holds.findLastIndex(({ expiresAtMs }) => expiresAtMs <= hold.expiresAtMs);
  return { state, holds: holds.toSpliced(index + 1, 0, hold) };
}

function outstandingOf({ holds }: Account): number {
  let units = 0;
  for (const hold of holds) units += hold.units;
  return units;
}

/** By rule, the used and held units beyond its limit, if there are any: of a log, a larger one counts them. */
export function surplus(ruleAccounts: readonly RuleAccount[], nowMs: number): { surplus?: number[] } {
  const over = ruleAccounts.map(({ rule, account }) => {
    const outstanding = outstandingOf(account);
    if ("burst" in rule.config) {
      const state = rule.algorithm.debit(rule.config, account.state, nowMs, 0) as
        | TokenBucketState
        | undefined;
      const used = Math.ceil((state?.spentParts ?? 0) / (state?.windowMs ?? 1));
      return Math.max(0, used + outstanding - rule.capacity);
    }
    const max = 2 ** 20;
    const config = { ...rule.config, limit: max };
    const { remaining } = rule.algorithm.decide(config, account.state, nowMs, 0, outstanding);
    return Math.max(0, max - remaining - rule.capacity);
  });
  return over.some((units) => units > 0) ? { surplus: over } : {};
}
