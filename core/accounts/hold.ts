/** Holds, and lists of them in the order in which they expire. The lists are values: none is ever changed. */
import type { Forecast, Uses } from "../algorithms/algorithm.ts";
import { search } from "../algorithms/log/unit-log.ts";
import { type Cost, costOf, type Rule } from "../policies/policy.ts";

/** Units that are set apart for a holder. */
export interface Hold {
  /** Unique within its account. */
  readonly id: string;
  readonly units: number;
  /** From this instant on the units count as used; those of a lease are free. */
  readonly expiresAtMs: number;
  /** From this instant on its holder spends none of it. Absent: from `expiresAtMs` on. */
  readonly spendableUntilMs?: number;
  /** The hold is in storage too, so it is still there after a crash. */
  readonly isStored?: boolean;
  /** It belongs to a call on several keys, which ends it within moments: see operations/turns.ts. */
  readonly isProvisional?: boolean;
  /** Nobody has it: it stands for units that may have been given out before a crash (storage/write-behind.ts). */
  readonly isRestored?: boolean;
}

/** The sums of a list. */
export interface HeldUnits {
  readonly all: number;
  /** Of holds that are in memory only. */
  readonly unstored: number;
  readonly provisional: number;
  readonly restored: number;
}

interface Columns extends Uses {
  readonly ids: readonly string[];
  readonly sums: HeldUnits;
}

/**
 * A call walks through a list several times, and there may be thousands of holds: objects that lie all over memory. So
 * the columns of a list are made once, and handed on to the list that is made from it. The first list hardly ever needs
 * them again, and a garbage collection of young objects would keep what a `WeakMap` has: half a megabyte a call.
 */
const known = new WeakMap<readonly Hold[], Columns>();

/** The units of all holds in a list. */
export function heldUnits(holds: readonly Hold[]): HeldUnits {
  return columnsOf(holds).sums;
}

/** The holds as units that will be used. */
export function usesOf(holds: readonly Hold[]): Uses {
  return columnsOf(holds);
}

/** The hold with this id; `undefined`: the list has none. */
export function holdWith(holds: readonly Hold[], id: string): Hold | undefined {
  return holds[columnsOf(holds).ids.indexOf(id)];
}

/** The list with one more hold, behind those that expire at the same instant. */
export function withHold(holds: readonly Hold[], hold: Hold): readonly Hold[] {
  const { ids, endsMs, units, sums } = columnsOf(holds);
  const index = indexAfter(endsMs, hold.expiresAtMs);
  const longer = holds.toSpliced(index, 0, hold);
  known.set(longer, {
    ids: ids.toSpliced(index, 0, hold.id),
    endsMs: endsMs.toSpliced(index, 0, hold.expiresAtMs),
    units: units.toSpliced(index, 0, hold.units),
    sums: summed(sums, hold, hold.units),
  });
  known.delete(holds);
  return longer;
}

/** The list without a hold; the list itself when it has no such hold. */
export function withoutHold(holds: readonly Hold[], id: string): readonly Hold[] {
  const { ids, endsMs, units, sums } = columnsOf(holds);
  const index = ids.indexOf(id);
  const hold = holds[index];
  if (hold === undefined) return holds;
  const shorter = holds.toSpliced(index, 1);
  known.set(shorter, {
    ids: ids.toSpliced(index, 1),
    endsMs: endsMs.toSpliced(index, 1),
    units: units.toSpliced(index, 1),
    sums: summed(sums, hold, -hold.units),
  });
  known.delete(holds);
  return shorter;
}

/** How many of these ends, in their order, are at this instant or before. */
export function indexAfter(endsMs: readonly number[], atMs: number): number {
  return search(0, endsMs.length, (index) => (endsMs[index] ?? Infinity) > atMs);
}

const NOTHING: HeldUnits = { all: 0, unstored: 0, provisional: 0, restored: 0 };

function columnsOf(holds: readonly Hold[]): Columns {
  const columns = known.get(holds) ?? {
    ids: holds.map(({ id }) => id),
    endsMs: holds.map(({ expiresAtMs }) => expiresAtMs),
    units: holds.map(({ units }) => units),
    sums: holds.reduce((sums, hold) => summed(sums, hold, hold.units), NOTHING),
  };
  known.set(holds, columns);
  return columns;
}

function summed(sums: HeldUnits, hold: Hold, units: number): HeldUnits {
  return {
    all: sums.all + units,
    unstored: sums.unstored + (hold.isStored === true ? 0 : units),
    provisional: sums.provisional + (hold.isProvisional === true ? units : 0),
    restored: sums.restored + (hold.isRestored === true ? units : 0),
  };
}

/** One rule's state and holds, for one key. */
export interface Account {
  /** `undefined`: an untouched quota. */
  readonly state: unknown;
  /** In the order in which they expire. */
  readonly holds: readonly Hold[];
}

/** A rule of a policy, and a key's account of it. */
export interface RuleAccount {
  readonly rule: Rule;
  readonly account: Account;
}

/**
 * One account as it will be, if every hold is used when it expires, every lease runs to its end, and no call comes.
 *
 * Time moves on in it, and never back. So each hold is met once, however many questions are asked on the way.
 */
export class Outlook {
  readonly #rule: Rule;
  readonly #forecast: Forecast;
  readonly #holds: Uses;
  #nextHold = 0;
  /** The ends and the units of leases that begin on the way, in the order of their ends. */
  readonly #leasesEndMs: number[] = [];
  readonly #leased: number[] = [];
  #nextLease = 0;
  #outstanding: number;

  constructor(rule: Rule, state: unknown, holds: readonly Hold[]) {
    this.#rule = rule;
    this.#forecast = rule.algorithm.forecast(rule.config, state);
    this.#holds = usesOf(holds);
    this.#outstanding = heldUnits(holds).all;
  }

  /**
   * The first instant, `fromMs` or later, at which a cost passes. `Infinity`: there is none, or none up to `untilMs`;
   * it may also be a later one. Time moves on, at most to that instant or to `untilMs`.
   *
   * @param apart units that are kept for more important calls; absent: as the rule says
   */
  passesAtMs(fromMs: number, cost: number, untilMs = Infinity, apart = this.#rule.apart ?? 0): number {
    // What a share says is the pool's word, and the pool knows of the units that are held here.
    if (this.#rule.algorithm.isShare === true)
      return this.#forecast.passesAtMs(fromMs, cost, this.#outstanding + apart);
    const fitsAtMs = cost === 0 ? fromMs : this.#fitsAtMs(fromMs, cost + apart, untilMs);
    // Units that are leased are all that a lease waits for, where the limit stays as it is.
    const isFixed = this.#rule.algorithm.limitNow === undefined;
    if (fitsAtMs === Infinity || (this.#rule.lease !== undefined && isFixed)) return fitsAtMs;
    for (let atMs = fitsAtMs; ; atMs = this.#nextMs()) {
      this.moveTo(atMs);
      const taken = this.#outstanding + apart;
      const passesAtMs = this.#forecast.passesAtMs(atMs, cost, taken);
      const isCertain = passesAtMs <= this.#nextMs() || this.#forecast.isCertain(atMs, taken);
      if (isCertain) return passesAtMs;
      if (this.#nextMs() > untilMs) return Infinity;
    }
  }

  /** The first instant at which the capacity has room for a cost beside what is outstanding. */
  #fitsAtMs(fromMs: number, cost: number, untilMs: number): number {
    const { endsMs, units } = this.#holds;
    const [leasesEndMs, leased] = [this.#leasesEndMs, this.#leased];
    const { capacity, apart = 0 } = this.#rule;
    let missing = cost + this.#outstanding - capacity - apart;
    let atMs = fromMs;
    let hold = this.#nextHold;
    let lease = this.#nextLease;
    let leaseMs = leasesEndMs[lease] ?? Infinity;
    while (missing > 0) {
      const holdMs = hold < endsMs.length ? (endsMs[hold] ?? Infinity) : Infinity;
      atMs = holdMs < leaseMs ? holdMs : leaseMs;
      if (atMs === Infinity || atMs > untilMs) return Infinity;
      if (holdMs === atMs) {
        missing -= units[hold] ?? 0;
        hold += 1;
      } else {
        missing -= leased[lease] ?? 0;
        lease += 1;
        leaseMs = leasesEndMs[lease] ?? Infinity;
      }
    }
    return atMs;
  }

  /** Ends what expires at this instant or before. */
  moveTo(atMs: number): void {
    const { endsMs, units } = this.#holds;
    const from = this.#nextHold;
    let [to, ended] = [from, 0];
    for (; to < endsMs.length && (endsMs[to] ?? 0) <= atMs; to += 1) ended += units[to] ?? 0;
    this.#forecast.debit(this.#holds, from, to);
    this.#outstanding -= ended;
    this.#nextHold = to;
    for (; (this.#leasesEndMs[this.#nextLease] ?? Infinity) <= atMs; this.#nextLease += 1)
      this.#outstanding -= this.#leased[this.#nextLease] ?? 0;
  }

  /** Takes a cost that passes at this instant. If the rule leases, the units are free again at `endsAtMs`. */
  take(atMs: number, units: number, endsAtMs: number): void {
    if (units === 0) return;
    this.#forecast.take(atMs, units);
    if (this.#rule.lease === undefined) return;
    const index = indexAfter(this.#leasesEndMs, endsAtMs);
    this.#leasesEndMs.splice(index, 0, endsAtMs);
    this.#leased.splice(index, 0, units);
    this.#outstanding += units;
  }

  #nextMs(): number {
    return Math.min(
      this.#holds.endsMs[this.#nextHold] ?? Infinity,
      this.#leasesEndMs[this.#nextLease] ?? Infinity,
    );
  }
}

/* How long a cost has to wait, alone or behind callers that wait already. Pure. */

/** A caller in the queue. */
export interface QueuedCost {
  readonly cost: Cost;
  /** How long the lease will last: callers behind this one may have to wait for its end. */
  readonly ttlMs: number;
  /** The instant at which this caller gives up. */
  readonly untilMs: number;
  /** Of each rule, units that this call may not have, since they are kept for more important ones. Absent: none. */
  readonly apart?: readonly number[] | undefined;
  /** Callers with the same one make the same call: the first that is served takes units for all. */
  readonly idempotencyKey?: string | undefined;
}

/**
 * The exact wait in milliseconds for a cost behind the callers in the queue; `null`: the cost never passes. It is
 * exact if no other call comes and every lease runs to its end. It plays the queue through: each waiter in turn gets
 * its lease as soon as the rules admit it, or gives up at `untilMs`.
 *
 * Time only moves on: nobody looks further ahead than to the instant at which its wait ends. So the whole queue takes
 * one walk through the holds.
 */
export function waitBehindMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly QueuedCost[],
  cost: Cost,
  nowMs: number,
): number | null {
  const joint = new JointOutlook(ruleAccounts);
  const served = new Set<string>();
  let atMs = nowMs;
  for (const waiter of waiters) {
    const { idempotencyKey } = waiter;
    if (idempotencyKey !== undefined && served.has(idempotencyKey)) continue;
    const passesAtMs = joint.passesAtMs(atMs, waiter.cost, waiter.untilMs, waiter.apart ?? []);
    const isServed = passesAtMs <= waiter.untilMs;
    atMs = isServed ? passesAtMs : Math.max(atMs, waiter.untilMs);
    joint.moveTo(atMs);
    if (!isServed) continue;
    joint.take(atMs, waiter.cost, atMs + waiter.ttlMs, waiter.apart ?? []);
    if (idempotencyKey !== undefined) served.add(idempotencyKey);
  }
  const passesAtMs = joint.passesAtMs(atMs, cost);
  return passesAtMs === Infinity ? null : passesAtMs - nowMs;
}

/**
 * The wait in milliseconds for a cost behind the callers in the queue if every unit that is held or leased came back
 * unused at this instant; `null`: the cost never passes. What rates have used is all that such a call waits for, so
 * nothing but a refund, a reset or a waiter that goes ends its wait sooner.
 */
export function leastWaitMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly QueuedCost[],
  cost: Cost,
  nowMs: number,
): number | null {
  if (ruleAccounts.some(({ rule }) => costOf(rule, cost) > rule.capacity)) return null;
  // What a share says of its wait is only when to ask the pool again.
  const isRate = ({ rule }: RuleAccount) => rule.lease === undefined && rule.algorithm.isShare !== true;
  const rates = ruleAccounts
    .filter(isRate)
    .map(({ rule, account: { state } }) => ({ rule, account: { state, holds: [] } }));
  const ahead = waiters.map((waiter) => ({
    ...waiter,
    apart: waiter.apart?.filter((_, index) => ruleAccounts.slice(index, index + 1).some(isRate)),
  }));
  return rates.length === 0 ? 0 : waitBehindMs(rates, ahead, cost, nowMs);
}

/**
 * The wait in milliseconds until every rule admits a cost: the longest of the rules; `null`: the cost never passes.
 */
export function jointWaitMs(ruleAccounts: readonly RuleAccount[], cost: Cost, nowMs: number): number | null {
  const passesAtMs = new JointOutlook(ruleAccounts).passesAtMs(nowMs, cost);
  return passesAtMs === Infinity ? null : passesAtMs - nowMs;
}

/** The outlooks of all rules of a policy. */
class JointOutlook {
  readonly #outlooks: readonly (readonly [Rule, Outlook])[];

  constructor(ruleAccounts: readonly RuleAccount[]) {
    this.#outlooks = ruleAccounts.map(({ rule, account: { state, holds } }) => [
      rule,
      new Outlook(rule, state, holds),
    ]);
  }

  /** As of one `Outlook`: the latest of the rules. */
  passesAtMs(fromMs: number, cost: Cost, untilMs?: number, apart?: readonly number[]): number {
    let latestMs = fromMs;
    for (const [index, [rule, outlook]] of this.#outlooks.entries()) {
      const kept = apart === undefined ? undefined : (apart[index] ?? 0);
      latestMs = Math.max(latestMs, outlook.passesAtMs(fromMs, costOf(rule, cost), untilMs, kept));
      if (latestMs === Infinity) break;
    }
    return latestMs;
  }

  moveTo(atMs: number): void {
    for (const [, outlook] of this.#outlooks) outlook.moveTo(atMs);
  }

  /** Takes a cost if every rule admits it. */
  take(atMs: number, cost: Cost, endsAtMs: number, apart: readonly number[]): void {
    // The wait that a share names is only when to ask again.
    if (this.passesAtMs(atMs, cost, atMs, apart) > atMs) return;
    for (const [rule, outlook] of this.#outlooks) outlook.take(atMs, costOf(rule, cost), endsAtMs);
  }
}
