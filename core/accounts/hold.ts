/** Holds, and immutable lists of them in the order of expiry. */
import type { Forecast, Rate, Uses } from "../algorithms/algorithm.ts";
import { inGroup, withHeld } from "../algorithms/fair/fair.ts";
import type { HeldByName } from "../algorithms/fair/slot-shares.ts";
import { search } from "../algorithms/log/unit-log.ts";
import { RATE_WINDOWS } from "../algorithms/token-bucket.ts";
import type { Rule } from "../policies/policy.ts";

export interface Hold {
  readonly id: string;
  readonly units: number;
  /** From this instant on the units count as used; those of a lease are free. */
  readonly expiresAtMs: number;
  /** From this instant on its holder spends none of it. Absent: from `expiresAtMs` on. */
  readonly spendableUntilMs?: number;
  /** The capacity of their quota when they were taken: when they are used, it may be smaller. Absent: as it is then. */
  readonly capacity?: number | undefined;
  /** The hold is in storage too, so it survives a crash. */
  readonly isStored?: boolean;
  /** It belongs to a call on several keys, which ends it within moments. */
  readonly isProvisional?: boolean;
  /**
   * Its holder gets further units by itself, at this rate, and has `units` of them at most: a bucket of its own, cut from
   * the account's. Until the hold ends, the account refills that much slower.
   */
  readonly rate?: Rate | undefined;
  /** Of such a bucket: how many units it lacked when its holder last said so. The account's state has them all. */
  readonly lacks?: number;
  /** Whose it is, where groups share the quota. */
  readonly group?: string | undefined;
  /** Without a holder: units that may have been given out before a crash. */
  readonly isRestored?: boolean;
}

export interface HeldUnits {
  readonly all: number;
  readonly unstored: number;
  readonly provisional: number;
  readonly restored: number;
  /** The largest that the quota has had while any of them was held, as far as it is known. */
  readonly capacity: number;
  /** The sum of the rates of holders, in units per `windowMs` (0: none), which is the same for all. */
  readonly rate: Rate;
}

interface Columns extends Uses {
  readonly ids: readonly string[];
  readonly sums: HeldUnits;
  readonly byGroup: UnitsByGroup;
}

/**
 * A call walks through a list several times, and thousands of holds are scattered over memory, so the columns of a
 * list are built once, and moved to the list made from it. Values left in a `WeakMap` would survive garbage
 * collections of young objects: half a megabyte a call.
 */
const known = new WeakMap<readonly Hold[], Columns>();

export function heldUnits(holds: readonly Hold[]): HeldUnits {
  return columnsOf(holds).sums;
}

export function usesOf(rule: Pick<Rule, "algorithm" | "config">, holds: readonly Hold[]): Uses {
  const columns = columnsOf(holds);
  const { capacity } = columns.sums;
  return capacity <= capacityOf(rule) ? columns : { ...columns, capacity };
}

/** The same list, of a quota that has had this capacity. */
export function heldUnder(holds: readonly Hold[], capacity: number): readonly Hold[] {
  const columns = columnsOf(holds);
  if (holds.length === 0 || columns.sums.capacity >= capacity) return holds;
  const same = holds.slice();
  known.set(same, { ...columns, sums: { ...columns.sums, capacity } });
  return same;
}

/** The units that each group holds. */
export function heldByGroup(holds: readonly Hold[]): HeldByName {
  return columnsOf(holds).byGroup;
}

export function holdWith(holds: readonly Hold[], id: string): Hold | undefined {
  return holds[columnsOf(holds).ids.indexOf(id)];
}

/** The list with one more hold, behind those that expire at the same instant. */
export function withHold(holds: readonly Hold[], hold: Hold): readonly Hold[] {
  const { ids, endsMs, units, groups, sums, byGroup } = columnsOf(holds);
  const index = indexAfter(endsMs, hold.expiresAtMs);
  const named = groups ?? (hold.group === undefined ? undefined : ids.map(() => undefined));
  return movedTo(holds.toSpliced(index, 0, hold), holds, {
    ids: ids.toSpliced(index, 0, hold.id),
    endsMs: endsMs.toSpliced(index, 0, hold.expiresAtMs),
    units: units.toSpliced(index, 0, hold.units),
    groups: named?.toSpliced(index, 0, hold.group),
    sums: summed(sums, hold, 1),
    byGroup: counted(byGroup, hold, 1),
  });
}

export function withoutHold(holds: readonly Hold[], id: string): readonly Hold[] {
  const { ids, endsMs, units, groups, sums, byGroup } = columnsOf(holds);
  const index = ids.indexOf(id);
  const hold = holds[index];
  if (hold === undefined) return holds;
  if (ids.length === 1) return [];
  return movedTo(holds.toSpliced(index, 1), holds, {
    ids: ids.toSpliced(index, 1),
    endsMs: endsMs.toSpliced(index, 1),
    units: units.toSpliced(index, 1),
    groups: groups?.toSpliced(index, 1),
    sums: summed(sums, hold, -1),
    byGroup: counted(byGroup, hold, -1),
  });
}

function movedTo(holds: readonly Hold[], before: readonly Hold[], columns: Columns): readonly Hold[] {
  known.delete(before);
  known.set(holds, columns);
  return holds;
}

/** How many of these sorted ends are at this instant or before. */
function indexAfter(endsMs: readonly number[], atMs: number): number {
  return search(0, endsMs.length, (index) => (endsMs[index] ?? Infinity) > atMs);
}

const NO_RATE: Rate = { units: 0, windowMs: 0 };
const NOTHING: HeldUnits = { all: 0, unstored: 0, provisional: 0, restored: 0, capacity: 0, rate: NO_RATE };

function columnsOf(holds: readonly Hold[]): Columns {
  const columns = known.get(holds) ?? columnsFrom(holds);
  known.set(holds, columns);
  return columns;
}

function columnsFrom(holds: readonly Hold[]): Columns {
  const isShared = holds.some(({ group }) => group !== undefined);
  return {
    ids: holds.map(({ id }) => id),
    endsMs: holds.map(({ expiresAtMs }) => expiresAtMs),
    units: holds.map(({ units }) => units),
    groups: isShared ? holds.map(({ group }) => group) : undefined,
    sums: holds.reduce((sums, hold) => summed(sums, hold, 1), NOTHING),
    byGroup: isShared ? sumsByGroup(holds) : NOBODY,
  };
}

/** Units by group, which do not change: one that differs in a few groups has most of them in common with the one before. */
class UnitsByGroup implements HeldByName {
  readonly #most: ReadonlyMap<string, number>;
  /** Instead of those; 0: the group holds nothing. */
  readonly #others: ReadonlyMap<string, number>;
  readonly size: number;

  constructor(most: ReadonlyMap<string, number>, others: ReadonlyMap<string, number>, size: number) {
    this.#most = most;
    this.#others = others;
    this.size = size;
  }

  get(group: string): number | undefined {
    const units = this.#others.get(group) ?? this.#most.get(group);
    return units === 0 ? undefined : units;
  }

  with(group: string, units: number): UnitsByGroup {
    const size = this.size + (units === 0 ? 0 : 1) - (this.get(group) === undefined ? 0 : 1);
    const others = new Map(this.#others).set(group, units);
    return others.size > MAX_OTHERS
      ? new UnitsByGroup(new Map(new UnitsByGroup(this.#most, others, size)), NONE, size)
      : new UnitsByGroup(this.#most, others, size);
  }

  *[Symbol.iterator](): Generator<[string, number]> {
    for (const each of this.#most) if (!this.#others.has(each[0])) yield each;
    for (const each of this.#others) if (each[1] !== 0) yield each;
  }
}

/** As copying a thousand costs as much as looking them all up. */
const MAX_OTHERS = 32;
const NONE: ReadonlyMap<string, number> = new Map();
const NOBODY = new UnitsByGroup(NONE, NONE, 0);

function sumsByGroup(holds: readonly Hold[]): UnitsByGroup {
  const sums = new Map<string, number>();
  for (const { group, units } of holds)
    if (group !== undefined && units > 0) sums.set(group, (sums.get(group) ?? 0) + units);
  return new UnitsByGroup(sums, NONE, sums.size);
}

function counted(byGroup: UnitsByGroup, { group, units }: Hold, sign: 1 | -1): UnitsByGroup {
  return group === undefined ? byGroup : byGroup.with(group, (byGroup.get(group) ?? 0) + sign * units);
}

function summed(sums: HeldUnits, hold: Hold, sign: 1 | -1): HeldUnits {
  const units = sign * hold.units;
  return {
    all: sums.all + units,
    unstored: sums.unstored + (hold.isStored === true ? 0 : units),
    provisional: sums.provisional + (hold.isProvisional === true ? units : 0),
    restored: sums.restored + (hold.isRestored === true ? units : 0),
    capacity: Math.max(sums.capacity, hold.capacity ?? 0),
    rate:
      hold.rate === undefined ? sums.rate : { ...hold.rate, units: sums.rate.units + sign * hold.rate.units },
  };
}

/** That of the whole quota: `capacity` of a rule is without what is kept for more important calls. */
export function capacityOf({ algorithm, config }: Pick<Rule, "algorithm" | "config">): number {
  return algorithm.capacity(config);
}

/** Rates are in units per this time. */
export function rateWindowMs({ quota: { windowMs = 1 } }: Pick<Rule, "quota">): number {
  return RATE_WINDOWS * windowMs;
}

/** The most units that a holder gets at its rate from now on until its hold ends. */
export function unitsToCome({ rate, expiresAtMs }: Hold, nowMs: number): number {
  return rate === undefined ? 0 : Math.ceil((rate.units * Math.max(0, expiresAtMs - nowMs)) / rate.windowMs);
}

/** When the first rate of a holder ends, and the account refills faster; Infinity: none has one. */
export function rateEndsAtMs(holds: readonly Hold[]): number {
  if (heldUnits(holds).rate.units === 0) return Infinity;
  return holds.find(({ rate }) => rate !== undefined)?.expiresAtMs ?? Infinity;
}

/** The rule's configuration without the rates that holders have, and with what the holds of the call's group have. */
export function configBeside(rule: Rule, holds: readonly Hold[]): object {
  const { algorithm, config } = rule;
  if (holds.length === 0) return config;
  if (algorithm.isFair === true)
    return withHeld(config, { byGroup: heldByGroup(holds), uses: usesOf(rule, holds) });
  const { rate } = heldUnits(holds);
  if (rate.units === 0) return config;
  return algorithm.lessRate?.(config, rate) ?? algorithm.withoutRate?.(config) ?? config;
}

/** The same for a forecast. While holders have more than its rate, it is as if they had none: their next messages give it up. */
export function forecastConfig(rule: Rule, holds: readonly Hold[]): object {
  const { algorithm, config } = rule;
  const { rate } = heldUnits(holds);
  const isOver = rate.units > 0 && algorithm.lessRate?.(config, rate) === undefined;
  return isOver ? config : configBeside(rule, holds);
}

/** The same for what a hold takes: its group owes that. */
export function configOf(rule: Rule, holds: readonly Hold[], { group }: Hold): object {
  return inGroup(configBeside(rule, holds), group);
}

/** The rule as calls of a group see it. @param namedBy the caller that names it */
export function seenByGroup(rule: Rule, group: string | undefined, namedBy?: string): Rule {
  return rule.algorithm.isFair === true ? { ...rule, config: inGroup(rule.config, group, namedBy) } : rule;
}

/** One rule's state and holds, for one key. */
export interface Account {
  readonly state: unknown;
  readonly holds: readonly Hold[];
}

export interface RuleAccount {
  readonly rule: Rule;
  readonly account: Account;
}

/** The last instant at which a holder may spend units from this memory; -Infinity: none has any. */
export function spendableUntilMs({ holds }: Account): number {
  let untilMs = -Infinity;
  for (const { isStored, isRestored, expiresAtMs, spendableUntilMs: spentMs = expiresAtMs } of holds)
    if (isStored !== true && isRestored !== true) untilMs = Math.max(untilMs, spentMs);
  return untilMs;
}

interface QueuedAs {
  /** Units kept for more important calls. */
  readonly apart?: number | undefined;
  readonly group?: string | undefined;
}

/**
 * One account in the future, if every hold is used when it expires, every lease runs to its end, and no call comes.
 * Time only moves forward, so each hold is processed once.
 */
export class Outlook {
  readonly #rule: Rule;
  readonly #forecast: Forecast;
  readonly #holds: Uses;
  #nextHold = 0;
  readonly #leasesEndMs: number[] = [];
  readonly #leased: number[] = [];
  #nextLease = 0;
  #outstanding: number;

  constructor(rule: Rule, state: unknown, holds: readonly Hold[], isQueue = false) {
    this.#rule = rule;
    this.#forecast = rule.algorithm.forecast(forecastConfig(rule, holds), state, isQueue);
    this.#holds = usesOf(rule, holds);
    this.#outstanding = heldUnits(holds).all;
  }

  /**
   * The first instant, `fromMs` or later, when a cost is admitted; `Infinity`: none up to `untilMs`. Time moves at
   * most to the result or `untilMs`. @param of whose call it is; by default the rule says it
   */
  passesAtMs(fromMs: number, cost: number, untilMs = Infinity, of: QueuedAs = {}): number {
    const { apart = this.#rule.apart ?? 0, group } = of;
    // The pool's answer for a share already includes units held here.
    if (this.#rule.algorithm.isShare === true)
      return this.#forecast.passesAtMs(fromMs, cost, this.#outstanding + apart);
    const fitsAtMs = cost === 0 ? fromMs : this.#fitsAtMs(fromMs, cost + apart, untilMs);
    // With a fixed limit, and alone, a lease only waits for leased units.
    const { algorithm } = this.#rule;
    const isFixed = algorithm.limitNow === undefined && algorithm.isFair !== true;
    if (fitsAtMs === Infinity || (this.#rule.lease !== undefined && isFixed)) return fitsAtMs;
    for (let atMs = fitsAtMs; ; atMs = this.#nextMs()) {
      this.moveTo(atMs);
      const taken = this.#outstanding + apart;
      const passesAtMs = this.#forecast.passesAtMs(atMs, cost, taken, group);
      if (passesAtMs <= this.#nextMs()) return passesAtMs;
      // Units of a larger quota may not all count when they are used.
      const hasShrunk = this.#holds.capacity !== undefined;
      if (!hasShrunk && this.#forecast.isCertain(atMs, taken)) return passesAtMs;
      if (this.#nextMs() > untilMs) return Infinity;
    }
  }

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

  /** Takes an admitted cost. If the rule leases, the units are free again at `endsAtMs`. */
  take(atMs: number, units: number, endsAtMs: number, group?: string): void {
    if (units === 0) return;
    this.#forecast.take(atMs, units, group);
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
