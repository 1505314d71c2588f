/** How long a cost has to wait, alone or behind callers in the queue. */
import { type Cost, costOf, type NamingPlan, type Rule } from "../policies/policy.ts";
import { advance, place, underRule, UNTOUCHED } from "./account.ts";
import { type Account, Outlook, type RuleAccount, seenByGroup } from "./hold.ts";

export interface QueuedCost extends NamingPlan {
  readonly cost: Cost;
  readonly ttlMs: number;
  /** The instant at which this caller gives up. */
  readonly untilMs: number;
  /** For each rule, units kept from this call for more important ones. */
  readonly apart?: readonly number[] | undefined;
  /** Whose call it is, where groups share a rule, and the caller that names it. */
  readonly group?: string | undefined;
  readonly namedBy?: string | undefined;
  /** Callers with the same one make the same call: the first that is served takes units for all. */
  readonly idempotencyKey?: string | undefined;
}

/** A call in line, with the rules as its plan has them; absent: as the call behind it has them. */
export interface PlannedCost extends QueuedCost {
  readonly ruleAccounts?: readonly RuleAccount[] | undefined;
}

type Waited = Pick<QueuedCost, "cost" | "apart" | "group">;

/**
 * The exact wait for a cost behind the callers in the queue, if no other call comes and every lease runs to its end;
 * `null`: never admitted. It simulates the queue: each waiter gets its lease when the rules admit it, or gives up at
 * `untilMs`. Time only moves forward, so the queue takes one walk through the holds, and one more for each change of the plan.
 *
 * @param inForce the rules of the plan in force, which debit the holds that expire; absent: the call's own
 */
export function waitBehindMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly PlannedCost[],
  cost: Cost,
  nowMs: number,
  inForce = ruleAccounts,
): number | null {
  const future = new Future(ruleAccounts, inForce, waiters.length > 0);
  const served = new Set<string>();
  let atMs = nowMs;
  for (const waiter of waiters) {
    const { idempotencyKey, untilMs, ttlMs } = waiter;
    if (idempotencyKey !== undefined && served.has(idempotencyKey)) continue;
    future.seenBy(waiter.ruleAccounts ?? ruleAccounts, atMs);
    const as = { ...waiter, apart: waiter.apart ?? [] };
    const passesAtMs = future.passesAtMs(atMs, as, untilMs);
    const isServed = passesAtMs <= untilMs;
    atMs = isServed ? passesAtMs : Math.max(atMs, untilMs);
    future.moveTo(atMs);
    if (!isServed) continue;
    // A share's wait is only the time until the next request.
    if (future.passesAtMs(atMs, as, atMs) <= atMs) future.take(atMs, waiter, atMs + ttlMs);
    if (idempotencyKey !== undefined) served.add(idempotencyKey);
  }
  future.seenBy(ruleAccounts, atMs);
  const passesAtMs = future.passesAtMs(atMs, { cost });
  return passesAtMs === Infinity ? null : passesAtMs - nowMs;
}

interface Take {
  readonly atMs: number;
  readonly of: Pick<QueuedCost, "cost" | "group" | "namedBy">;
  readonly endsAtMs: number;
}

/** So many holds are debited one by one; the wait behind more of them, under another plan than theirs, is about right. */
const MAX_ENDS = 1_000;

/** The accounts of a key as its line is served, by the rules of one plan after another. */
class Future {
  readonly #inForce: readonly RuleAccount[];
  #seen: readonly RuleAccount[];
  /** As of the last change of the plan, and what has been taken since. */
  #accounts: readonly Account[];
  #takes: Take[] = [];
  #outlooks: ReturnType<typeof outlooksOf>;
  readonly #isQueue: boolean;

  constructor(own: readonly RuleAccount[], inForce: readonly RuleAccount[], isQueue: boolean) {
    this.#inForce = inForce;
    this.#seen = own;
    this.#accounts = own.map(({ account }) => account);
    this.#isQueue = isQueue;
    this.#outlooks = outlooksOf(own, isQueue);
  }

  /** Another plan decides. What time returns is counted by the plan of each call that takes, as the object does. */
  seenBy(seen: readonly RuleAccount[], atMs: number): void {
    if (seen !== this.#seen) this.#beginAt(atMs, seen);
  }

  #beginAt(atMs: number, seen: readonly RuleAccount[]): void {
    this.#accounts = this.#accounts.map((account, index) => this.#broughtTo(atMs, account, index));
    this.#takes = [];
    this.#seen = seen;
    this.#outlooks = outlooksOf(
      seen.map(({ rule }, index) => ({
        rule,
        account: underRule(rule, this.#accounts[index] ?? UNTOUCHED, atMs),
      })),
      this.#isQueue,
    );
  }

  #broughtTo(atMs: number, before: Account, index: number): Account {
    const { rule } = this.#seen[index] as RuleAccount;
    const inForce = this.#inForce[index]?.rule ?? rule;
    let account = before;
    for (const { atMs: takenMs, of, endsAtMs } of this.#takes) {
      account = taken(rule, advance(inForce, account, takenMs), of, takenMs, endsAtMs);
    }
    return advance(inForce, account, atMs);
  }

  /** As of one `Outlook`. The key debits a hold that expires by the plan in force, so each begins another walk. */
  passesAtMs(fromMs: number, waited: Waited, untilMs = Infinity): number {
    let atMs = fromMs;
    for (let ends = 0; ; ends += 1) {
      const passesAtMs = this.#passesAtMs(atMs, waited, untilMs);
      const endMs = ends < MAX_ENDS ? this.#nextEndMs() : Infinity;
      if (passesAtMs < endMs || endMs > untilMs || endMs === Infinity) return passesAtMs;
      this.#beginAt(endMs, this.#seen);
      atMs = Math.max(atMs, endMs);
    }
  }

  /** When the next hold of a rate expires that another plan than that in force sees. */
  #nextEndMs(): number {
    let nextMs = Infinity;
    for (const [index, { rule }] of this.#seen.entries()) {
      if (rule.lease !== undefined || rule.quota === this.#inForce[index]?.rule.quota) continue;
      nextMs = Math.min(nextMs, this.#accounts[index]?.holds[0]?.expiresAtMs ?? Infinity);
    }
    return nextMs;
  }

  /** The latest of the rules. */
  #passesAtMs(fromMs: number, { cost, apart, group }: Waited, untilMs: number): number {
    let latestMs = fromMs;
    for (const [index, { rule, outlook }] of this.#outlooks.entries()) {
      const as = { group, apart: apart && (apart[index] ?? 0) };
      latestMs = Math.max(latestMs, outlook.passesAtMs(fromMs, costOf(rule, cost), untilMs, as));
      if (latestMs === Infinity) break;
    }
    return latestMs;
  }

  moveTo(atMs: number): void {
    for (const { outlook } of this.#outlooks) outlook.moveTo(atMs);
  }

  take(atMs: number, of: Take["of"], endsAtMs: number): void {
    this.#takes.push({ atMs, of, endsAtMs });
    for (const { rule, outlook } of this.#outlooks)
      outlook.take(atMs, costOf(rule, of.cost), endsAtMs, of.group);
  }
}

function taken(rule: Rule, account: Account, of: Take["of"], atMs: number, endsAtMs: number): Account {
  const units = costOf(rule, of.cost);
  if (units === 0) return account;
  if (rule.lease !== undefined) {
    const hold = { id: `${atMs} ${account.holds.length}`, units, expiresAtMs: endsAtMs, group: of.group };
    return place(account, hold);
  }
  const { algorithm, config } = seenByGroup(rule, of.group, of.namedBy);
  return { ...account, state: algorithm.debit(config, account.state, atMs, units) };
}

function outlooksOf(ruleAccounts: readonly RuleAccount[], isQueue: boolean) {
  return ruleAccounts.map(({ rule, account: { state, holds } }) => ({
    rule,
    outlook: new Outlook(rule, state, holds, isQueue),
  }));
}

/**
 * The wait behind the queue if every held or leased unit came back unused now; `null`: never admitted. Only a refund,
 * a reset or a leaving waiter shortens it.
 */
export function leastWaitMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly PlannedCost[],
  cost: Cost,
  nowMs: number,
): number | null {
  if (ruleAccounts.some(({ rule }) => costOf(rule, cost) > rule.capacity)) return null;
  // A share's wait is only the time until its next request to the pool.
  const isRate = ({ rule }: RuleAccount) => rule.lease === undefined && rule.algorithm.isShare !== true;
  const ratesOf = (all: readonly RuleAccount[]) =>
    all.filter(isRate).map(({ rule, account: { state } }) => ({ rule, account: { state, holds: [] } }));
  const rates = ratesOf(ruleAccounts);
  const byPlan = new Map(waiters.map(({ ruleAccounts: planned }) => [planned, planned && ratesOf(planned)]));
  const ahead = waiters.map((waiter) => ({
    ...waiter,
    ruleAccounts: byPlan.get(waiter.ruleAccounts),
    apart: waiter.apart?.filter((_, index) => ruleAccounts.slice(index, index + 1).some(isRate)),
  }));
  return rates.length === 0 ? 0 : waitBehindMs(rates, ahead, cost, nowMs);
}
