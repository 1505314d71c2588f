/**
 * Accounts: for one key and one rule, the algorithm's state and the holds. A hold is units set aside for a holder (an
 * isolate or a caller).
 *
 * Every level holds units of the level beneath it, spends them without a message, and settles later. Held units are
 * not in the algorithm's state. They are `outstanding`: available are the units that the state offers minus these. A
 * debit happens only when a hold is settled or expires: at that instant, with the units really used (at expiry: all of
 * them). So unused units return without a credit.
 *
 * Why no bound is exceeded: the units used in any interval are, at its end, either debited or still outstanding. Both
 * together never exceed what the algorithm offers in that interval. Late messages, the order of holders and crashes do
 * not change that.
 *
 * A lease is a hold too. Its units are occupied, not used up, so they are free when it is settled or expires: the
 * debit of its algorithm takes no units.
 *
 * Pure: values in, values out, and time is an argument.
 */
import type { AlgorithmDecision, Denial, Outcome, PartOfGroup } from "../algorithms/algorithm.ts";
import { type Cost, costOf, isCuttable, type Rule } from "../policies/policy.ts";
import type { RuleDecision } from "../protocol/answers.ts";
import {
  type Account,
  capacityOf,
  configBeside,
  configOf,
  forecastConfig,
  heldUnder,
  heldUnits,
  type Hold,
  holdWith,
  Outlook,
  rateWindowMs,
  type RuleAccount,
  unitsToCome,
  usesOf,
  withHold,
  withoutHold,
} from "./hold.ts";
import { withJointWait } from "./joint-wait.ts";

type AnyDecision = AlgorithmDecision<unknown>;

export const UNTOUCHED: Account = { state: undefined, holds: [] };

/** A rule's decision, without the account after it. The account must have been advanced to `nowMs`. */
export function decideRule(rule: Rule, account: Account, nowMs: number, cost: number): AnyDecision {
  return withHolds(rule, account, nowMs, cost, decideState(rule, account, nowMs, cost));
}

/** A decision of the algorithm with the numbers if every hold is used when it expires. */
function withHolds(
  rule: Rule,
  account: Account,
  nowMs: number,
  cost: number,
  decision: AnyDecision,
): AnyDecision {
  const { state, holds } = account;
  // The numbers of a share are the pool's, which already include units held here.
  if (outstandingOf(account) === 0 || rule.algorithm.isShare === true) return decision;
  const resetAfterMs = (of: unknown) => fullAtMs(rule, { state: of, holds }, nowMs) - nowMs;
  if (decision.allowed)
    return { ...decision, resetAfterMs: resetAfterMs(cost === 0 ? state : decision.state) };
  const exact = <Known extends Denial>(of: unknown, denial: Known): Known => ({
    ...denial,
    retryAfterMs: waitMs(rule, { state: of, holds }, nowMs, cost),
    resetAfterMs: resetAfterMs(of),
  });
  const { counted } = decision;
  return { ...exact(state, decision), ...(counted && { counted: exact(counted.state, counted) }) };
}

/** Whether a cost would be admitted if no call on several keys held units. */
export function admitsUnprovisional(rule: Rule, account: Account, nowMs: number, cost: number): boolean {
  const { all, provisional } = heldUnits(account.holds);
  return decideState(rule, account, nowMs, cost, all - provisional).allowed;
}

/** The largest cost that would be admitted now. */
export function remainingOf(rule: Rule, account: Account, nowMs: number): number {
  return decideState(rule, account, nowMs, 0).remaining;
}

/** The part of the group that the rule's configuration names (`seenByGroup`); `undefined`: no groups share the rule. */
export function partOfGroup(rule: Rule, { state, holds }: Account, nowMs: number): PartOfGroup | undefined {
  return rule.algorithm.partOfGroup?.(configBeside(rule, holds), state, nowMs);
}

/** The exact wait for a cost, if every hold is used when it expires; `null`: it is never admitted. */
export function waitMs(rule: Rule, { state, holds }: Account, nowMs: number, cost: number): number | null {
  const passesAtMs = new Outlook(rule, state, holds).passesAtMs(nowMs, cost);
  return passesAtMs === Infinity ? null : passesAtMs - nowMs;
}

/**
 * Debits every hold that has expired by `nowMs`, each at the instant when it expired. While holders have rates, the state
 * is brought to `nowMs`, so that each part of time is counted at the rate that was left then.
 */
export function advance(rule: Rule, account: Account, nowMs: number): Account {
  const { holds } = account;
  const rest = () => heldUnder(holds.slice(expired), heldUnits(holds).capacity);
  let [state, expired, left] = [account.state, 0, holds];
  for (let next = holds[0]; next !== undefined && next.expiresAtMs <= nowMs; next = holds[expired]) {
    state = stateAfter(rule, { state, holds: left }, next, next.expiresAtMs, next.units);
    expired += 1;
    if (next.rate !== undefined) left = rest();
  }
  if (expired > 0) left = rest();
  if (hasRates(account)) return broughtTo(rule, { state, holds: left }, nowMs);
  return expired === 0 ? account : { state, holds: left };
}

function hasRates({ holds }: Account): boolean {
  return holds.length > 0 && heldUnits(holds).rate.units > 0;
}

/** The account with its state brought to `nowMs`: then a holder may be given a rate. */
export function broughtTo(rule: Rule, { state, holds }: Account, nowMs: number): Account {
  return { state: rule.algorithm.debit(configBeside(rule, holds), state, nowMs, 0), holds };
}

/**
 * The account under another rule: its rates go on if the rule has them, and are otherwise held as units. They may be more
 * than a smaller rule has: then nothing returns until their holders have said that they have less.
 */
export function underRule(rule: Rule, account: Account, nowMs: number): Account {
  if (!hasRates(account)) return account;
  const { rate } = heldUnits(account.holds);
  const isSame = rate.windowMs === rateWindowMs(rule) && (rate.isHeld ?? !rule.algorithm.isCutByWindow);
  if (isSame && isCuttable(rule)) return account;
  const holds = account.holds.map((hold) => {
    const units = hold.units + unitsToCome(hold, nowMs);
    return { ...hold, units, rate: undefined };
  });
  return { state: account.state, holds: heldUnder(holds, heldUnits(account.holds).capacity) };
}

/** Adds a hold without checking that there are enough units: call `decide` first. */
export function place({ state, holds }: Account, hold: Hold): Account {
  return { state, holds: withHold(holds, hold) };
}

/** Adds a hold of a rate, and lets the algorithm note the instant of the call (`noteHold`). */
export function placeNoted(rule: Rule, account: Account, nowMs: number, hold: Hold): Account {
  const state = rule.algorithm.noteHold?.(rule.config, account.state, nowMs) ?? account.state;
  return place({ state, holds: account.holds }, { ...hold, capacity: capacityOf(rule) });
}

/** Moves the expiry of a hold. An unknown id changes nothing. */
export function extend(account: Account, id: string, expiresAtMs: number): Account {
  const hold = holdWith(account.holds, id);
  if (hold === undefined) return account;
  return place({ state: account.state, holds: withoutHold(account.holds, id) }, { ...hold, expiresAtMs });
}

/** Ends a hold with the units used, possibly more than were held. An unknown id changes nothing. */
export function settle(rule: Rule, account: Account, nowMs: number, id: string, used: number): Account {
  const hold = holdWith(account.holds, id);
  if (hold === undefined) return account;
  const state = stateAfter(rule, account, hold, nowMs, used);
  return { state, holds: withoutHold(heldUnder(account.holds, capacityOf(rule)), id) };
}

/** The state after units of a hold are used, and those that its holder used beyond it. */
function stateAfter(rule: Rule, { state, holds }: Account, hold: Hold, nowMs: number, used: number): unknown {
  const { algorithm } = rule;
  const config = configOf(rule, holds, hold);
  const beyond = Math.max(0, used - hold.units);
  const after = algorithm.debit(config, state, nowMs, used - beyond, heldUnits(holds).capacity);
  return beyond === 0 ? after : algorithm.debit(config, after, nowMs, beyond);
}

/**
 * Returns units; of a charge at `atMs`, under a quota of this capacity, not those that time has returned since. None
 * change nothing: under another plan a debt would be cut to what that plan's bucket can owe.
 */
export function refund(
  { algorithm, config }: Rule,
  account: Account,
  nowMs: number,
  ...charge: readonly [units: number, atMs?: number, capacity?: number, returned?: number]
): Account {
  if (charge[0] === 0) return account;
  return { ...account, state: algorithm.credit(config, account.state, nowMs, ...charge) };
}

export function outstandingOf({ holds }: Account): number {
  return heldUnits(holds).all;
}

export function unstoredOf({ holds }: Account): number {
  return heldUnits(holds).unstored;
}

/** Those units, and what their holders get by themselves: what an object that starts now must presume used. */
export function presumableOf(account: Account, nowMs: number): number {
  const units = unstoredOf(account);
  if (!hasRates(account)) return units;
  return account.holds.reduce((sum, hold) => sum + unitsToCome(hold, nowMs), units);
}

/** The units of holds that represent units given out before a crash. */
export function restoredOf({ holds }: Account): number {
  return heldUnits(holds).restored;
}

/** The first instant, `nowMs` or later, when the account equals an untouched one if no call comes. */
export function untouchedAtMs(rule: Rule, account: Account, nowMs: number): number {
  const { algorithm, config } = rule;
  const { state } = account;
  const lastsMs = state === undefined ? undefined : algorithm.outlastsMs?.(config, state);
  // What a limit has learned outlasts the leases.
  const learnedMs = algorithm.limitNow && algorithm.untouchedAtMs(config, state);
  return Math.max(settledAtMs(rule, account, nowMs), lastsMs ?? -Infinity, learnedMs ?? -Infinity);
}

/** The first instant, `nowMs` or later, when all units are back if no call comes. */
export function fullAtMs(rule: Rule, account: Account, nowMs: number): number {
  const fullMs = rule.algorithm.fullAtMs?.(rule.config, account.state, nowMs, usesOf(rule, account.holds));
  return settledAtMs(rule, account, nowMs, fullMs);
}

/** When nothing is held, and the state is absent or `fullMs` has come. An expired lease leaves no unit behind. */
function settledAtMs(rule: Rule, account: Account, nowMs: number, fullMs?: number): number {
  const ownMs = fullMs ?? (rule.lease === undefined ? emptyAtMs(rule, account) : nowMs);
  return Math.max(account.holds.at(-1)?.expiresAtMs ?? nowMs, nowMs, ownMs);
}

/** A call needs it twice, for its answer and for its write, so the last result per list of holds is kept. */
const known = new WeakMap<readonly Hold[], { rule: Rule; state: unknown; atMs: number }>();

function emptyAtMs(rule: Rule, { state, holds }: Account): number {
  const earlier = known.get(holds);
  if (earlier?.rule === rule && earlier.state === state) return earlier.atMs;
  const atMs = rule.algorithm.untouchedAtMs(forecastConfig(rule, holds), state, usesOf(rule, holds));
  known.set(holds, { rule, state, atMs });
  return atMs;
}

/** Units kept for more important calls count as held; a denial due only to them has the reason `shed`. */
function decideState(
  rule: Rule,
  { state, holds }: Account,
  nowMs: number,
  cost: number,
  held = heldUnits(holds).all,
): AnyDecision {
  const { algorithm, apart, capacity } = rule;
  const config = configBeside(rule, holds);
  if (apart === undefined) return algorithm.decide(config, state, nowMs, cost, held);
  const decision = algorithm.decide(config, state, nowMs, cost, held + apart);
  if (decision.allowed && decision.delayMs === undefined) return decision;
  const plain = algorithm.decide(config, state, nowMs, cost, held);
  if (decision.allowed) {
    const { delayMs: _, ...undelayed } = decision;
    // Kept units cause no delay: they are not on their way.
    const delayMs = plain.allowed ? plain.delayMs : undefined;
    return delayMs === undefined ? undelayed : { ...undelayed, delayMs };
  }
  // Such a denial is not caused by the caller, so it is not counted.
  const { counted: _, ...denied } = decision;
  if (cost > capacity) return { ...denied, reason: "cost-over-limit" };
  return plain.allowed ? { ...denied, reason: "shed" } : decision;
}

export interface Report {
  readonly outcome: Outcome;
  /** The duration of the call. Absent: unknown, so the algorithm learns nothing. */
  readonly durationMs?: number | undefined;
}

/** Ends a released lease, and lets the algorithm learn from it. An unknown id changes nothing. Pure. */
export function endLease(rule: Rule, account: Account, nowMs: number, id: string, report: Report): Account {
  if (holdWith(account.holds, id) === undefined) return account;
  const inFlight = outstandingOf(account);
  const ended = settle(rule, account, nowMs, id, 0);
  const { outcome, durationMs } = report;
  const { leasing } = rule.algorithm;
  if (leasing?.released === undefined || durationMs === undefined) return ended;
  const state = leasing.released(rule.config, ended.state, nowMs, { outcome, durationMs, inFlight });
  return { state, holds: ended.holds };
}

export interface Taking {
  /** The hold for the units of rules that do not lease; absent: these units are used at once. */
  readonly hold?: NewHold;
  /** The lease for the units of rules that lease. */
  readonly lease?: NewHold;
}

/** A hold without its units: each rule's part of the cost. */
export type NewHold = Omit<Hold, "units" | "isStored">;

export interface JointDecision {
  readonly admitted: boolean;
  /** The new accounts, in the order of the rules; absent: nothing has changed. */
  readonly accounts?: readonly Account[];
  readonly rules: readonly RuleDecision[];
}

/** A rule's decision on its units of a cost. */
interface DecidedRule extends RuleAccount {
  readonly units: number;
  readonly decision: AnyDecision;
}

function decideEach(ruleAccounts: readonly RuleAccount[], nowMs: number, cost: Cost): DecidedRule[] {
  return ruleAccounts.map(({ rule, account }) => {
    const units = costOf(rule, cost);
    return { rule, account, units, decision: decideState(rule, account, nowMs, units) };
  });
}

/** Decides on a cost under all rules: all or nothing. When one rule denies, no rule takes units. Pure. */
export function decideTogether(
  ruleAccounts: readonly RuleAccount[],
  nowMs: number,
  cost: Cost,
  taking: Taking = {},
): JointDecision {
  const decided = decideEach(ruleAccounts, nowMs, cost);
  const accounts: Account[] = [];
  const rules: RuleDecision[] = [];
  for (const { rule, account, units, decision } of decided) {
    if (!decision.allowed) return denyTogether(decided, nowMs);
    const kept = units === 0 ? undefined : rule.lease ? taking.lease : taking.hold;
    const hold = kept && { ...kept, units, isStored: true };
    const admitted = { state: decision.state, holds: heldUnder(account.holds, capacityOf(rule)) };
    const held = hold && (rule.lease ? place(admitted, hold) : placeNoted(rule, account, nowMs, hold));
    const taken = held ? decideRule(rule, held, nowMs, 0) : withHolds(rule, account, nowMs, units, decision);
    const after = held ?? (units === 0 ? account : admitted);
    accounts.push(after);
    rules.push(ruleDecision(rule, after, nowMs, taken, decision.delayMs));
  }
  return { admitted: true, accounts, rules };
}

/** Whether every rule admits a cost. Faster than `decideTogether`: it computes no wait. */
export function admitsTogether(ruleAccounts: readonly RuleAccount[], nowMs: number, cost: Cost): boolean {
  return ruleAccounts.every(
    ({ rule, account }) => decideState(rule, account, nowMs, costOf(rule, cost)).allowed,
  );
}

export function withoutTaking(each: readonly RuleAccount[], nowMs: number, cost: Cost): RuleDecision[] {
  return decideEach(each, nowMs, cost).map((decided) => {
    const { rule, account, decision } = decided;
    const delayMs = decision.allowed ? decision.delayMs : undefined;
    return ruleDecision(rule, account, nowMs, untaken(decided, nowMs), delayMs);
  });
}

/** The decision if the units are not taken: with their denial, or with all that remains. */
function untaken({ rule, account, units, decision }: DecidedRule, nowMs: number): AnyDecision {
  return decision.allowed
    ? decideRule(rule, account, nowMs, 0)
    : withHolds(rule, account, nowMs, units, decision);
}

/** A denial, with the new accounts when a rule counts denials. A cost above the limit is not counted. */
function denyTogether(each: readonly DecidedRule[], nowMs: number): JointDecision {
  const decided = each.map((one) => ({ ...one, decision: untaken(one, nowMs) }));
  const isNever = decided.some(({ decision }) => !decision.allowed && decision.retryAfterMs === null);
  let hasCounted = false;
  const accounts: Account[] = [];
  const alone = decided.map(({ rule, account, decision }) => {
    const counted = decision.allowed || isNever ? undefined : decision.counted;
    hasCounted ||= counted !== undefined;
    accounts.push(counted ? { state: counted.state, holds: account.holds } : account);
    return ruleDecision(rule, account, nowMs, counted ? { ...counted, allowed: false } : decision);
  });
  const rules = isNever ? alone : withJointWait(alone, each, accounts, nowMs);
  return hasCounted ? { admitted: false, accounts, rules } : { admitted: false, rules };
}

function ruleDecision(
  { name, algorithm, config, capacity, apart = 0 }: Rule,
  { state }: Account,
  nowMs: number,
  decision: AnyDecision,
  delayMs?: number,
): RuleDecision {
  const { allowed, remaining, quotaRemaining, resetAfterMs, share } = decision;
  const limitNow = algorithm.limitNow?.(config, state, nowMs);
  return {
    name,
    success: allowed,
    limit: limitNow === undefined ? capacity : Math.max(0, limitNow - apart),
    remaining,
    ...(quotaRemaining !== undefined && { quotaRemaining }),
    resetAfterMs,
    retryAfterMs: allowed ? 0 : decision.retryAfterMs,
    reason: allowed ? "ok" : decision.reason,
    ...(delayMs !== undefined && { delayMs }),
    ...(share !== undefined && { share }),
  };
}
