/** Holds, and lists of them in the order in which they expire. The lists are values: none is ever changed. */
import type { Uses } from "../algorithms/algorithm.ts";
import { search } from "../algorithms/log/unit-log.ts";

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
  /** It belongs to a call on several keys, which ends it within moments: see operations/denials.ts. */
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

/** A list in columns, and its sums. */
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

/** The sums with `units` more of the kinds that a hold is of. */
function summed(sums: HeldUnits, hold: Hold, units: number): HeldUnits {
  return {
    all: sums.all + units,
    unstored: sums.unstored + (hold.isStored === true ? 0 : units),
    provisional: sums.provisional + (hold.isProvisional === true ? units : 0),
    restored: sums.restored + (hold.isRestored === true ? units : 0),
  };
}
