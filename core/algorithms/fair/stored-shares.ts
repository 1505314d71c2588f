/**
 * Shares in a key's record (fair.ts): only what groups owe; those that owe most come first. The order of the columns never
 * changes.
 */
import {
  ACTIVE_MS,
  debtOf,
  firstOwing,
  NOBODY,
  reweighed,
  type Shares,
  type ShareTerms,
} from "./standing.ts";

export type PackedShares = readonly [
  atMs: number,
  owed: number,
  groups: readonly (readonly [
    name: string,
    weight: number,
    owes: number,
    sinceMs: number,
    seenMs: number,
    namedBy?: string | undefined,
  ])[],
  burst?: number | undefined,
];

/** A record is written with each change that storage needs, so it has no more groups. */
const MAX_STORED = 256;

export function packShares(shares: Shares): PackedShares {
  const { atMs, owed, virtual, groups, burst } = shares;
  const owing = groups.slice(firstOwing(groups, virtual)).toReversed().slice(0, MAX_STORED);
  const columns = owing.map((group) => {
    const { name, weight, sinceMs, seenMs, namedBy } = group;
    return [name, weight, debtOf(shares, group), sinceMs, seenMs, namedBy] as const;
  });
  return burst === undefined ? [atMs, owed, columns] : [atMs, owed, columns, burst];
}

export function unpackShares({ weightOf }: ShareTerms, [atMs, owed, columns, burst]: PackedShares): Shares {
  const groups = columns.map(([name, weight, owes, sinceMs, seenMs, namedBy]) => {
    return { name, namedBy, weight, clearAt: owes / weight, sinceMs, seenMs };
  });
  const weights = groups.reduce((sum, { weight }) => sum + weight, 0);
  const anyIdleFromMs = Math.min(...groups.map(({ seenMs }) => seenMs + ACTIVE_MS));
  const unpacked = {
    ...NOBODY,
    isScaled: true,
    atMs,
    owed,
    ...(burst !== undefined && { burst }),
    owing: weights,
    weights,
    groups: groups.toReversed(),
    anyIdleFromMs,
  };
  return reweighed(weightOf, unpacked);
}

/** The record as the algorithm alone reads it, which other builds do. */
export function plain(record: unknown): unknown {
  if (typeof record !== "object" || record === null || !("fair" in record)) return record;
  const { fair: _, ...inner } = record;
  return inner;
}
