/**
 * How a group stands among those that share a quota: what the shares of a bucket (fair-shares.ts) and those of a log or a
 * window (window-shares.ts) have in common.
 */
import { groupOf, moveIndex, othersOf, ownWeight, weighed } from "./fair-weights.ts";

/** How the groups of a rule share it. */
export interface ShareTerms {
  /** Units that come back in a millisecond. */
  readonly rate: number;
  /** Of a log or window: the limit. */
  readonly burst: number;
  /** How much of the burst is cut into parts, and what an admitted unit adds to what its group owes. */
  readonly cut: number;
  readonly perUnit: number;
  readonly weightOf: (group: string) => number;
}

export interface Group {
  readonly name: string;
  /** Whose calls it counts: the caller that named it first. */
  readonly namedBy?: string | undefined;
  readonly weight: number;
  /** From this virtual time on it owes nothing. */
  readonly clearAt: number;
  /** Since when it has owed something without a pause. */
  readonly sinceMs: number;
  readonly seenMs: number;
}

export interface Shares {
  readonly atMs: number;
  readonly virtual: number;
  /** What all groups owe. */
  readonly owed: number;
  /** Of a bucket: its burst then. Absent: an earlier version wrote the shares. */
  readonly burst?: number;
  /** The weights of the groups that owe, and of all. */
  readonly owing: number;
  readonly weights: number;
  /** In the order of `clearAt`: those that owe nothing come first. */
  readonly groups: readonly Group[];
  /** Some group weighs less than its own weight, since its caller has named many (fair-weights.ts). */
  readonly isScaled?: boolean;
  /** No sooner is a group forgotten that owes nothing now, or any. */
  readonly idleFromMs: number;
  readonly anyIdleFromMs: number;
  /** Of a log or window (window-shares.ts): a unit of `clearAt` now, and sums of units and of their costs' squares. */
  readonly faded?: Readonly<Record<"scale" | "used" | "squares", number>>;
}

/** How groups share what an algorithm counts: the shares of a bucket, or of a log or window. */
export interface Sharing {
  paidTo(terms: ShareTerms, before: Shares | undefined, nowMs: number): Shares;
  /** Whether a cost passes now, as far as other groups are concerned, if `reserve` is left. */
  passes(standing: Standing, cost: number): boolean;
  reserve(standing: Standing, cost: number): number;
  /** Whether it passes sooner if another group is admitted more, as long as a wait is trusted. */
  yields(standing: Standing, cost: number): boolean;
  /** The largest cost that passes now, if the algorithm has as many units. */
  mostNow(standing: Standing, available: number): number;
  /**
   * When a cost passes if nobody else asks. @param unitsAtMs when there are units for it, and so many more
   * @param heldUntilMs until when nothing that is held comes back; absent: unknown, so a bucket's wait is a lower bound
   */
  passesAtMs(
    standing: Standing,
    cost: number,
    unitsAtMs: (reserved: number) => number,
    heldUntilMs?: number,
  ): number;
  /** Milliseconds until it passes whatever the other active groups do; `null`: it is larger than the part. */
  sureAfterMs(standing: Standing, cost: number): number | null;
  /**
   * The shares after the group has been admitted this many units; a negative number gives units back.
   * @param capacity of units that were held, the largest that the quota has had meanwhile
   */
  withTaken(standing: Standing, units: number, capacity?: number): Shares;
}

const NEVER_IDLE = { idleFromMs: Infinity, anyIdleFromMs: Infinity };

export const NOBODY: Shares = {
  atMs: 0,
  virtual: 0,
  owed: 0,
  owing: 0,
  weights: 0,
  groups: [],
  ...NEVER_IDLE,
};

export const ACTIVE_MS = 10_000;
/** No wait is trusted for longer: it is too long where many groups are forgotten meanwhile. */
export const MAX_TRUSTED_MS = 1_000;

/** Rounding of sums, in units. */
export const SLACK = 1e-9;

/** The index of the first group that still owes something at a virtual time. */
export function firstOwing(groups: readonly Group[], virtual: number): number {
  let [low, high] = [0, groups.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((groups[middle]?.clearAt ?? Infinity) > virtual) high = middle;
    else low = middle + 1;
  }
  return low;
}

export function reweighed(weightOf: ShareTerms["weightOf"], shares: Shares): Shares {
  const { groups, virtual, isScaled } = shares;
  return { ...shares, ...weighed(groups, virtual, weightOf, isScaled === true) };
}

/** A group's place in the shares at an instant (`paidTo`), with the units that its holds and those of all have taken. */
export interface Standing {
  readonly terms: ShareTerms;
  readonly shares: Shares;
  readonly group: Group;
  readonly isKnown: boolean;
  /** The most that it may owe and never be denied for others. */
  readonly part: number;
  readonly owes: number;
  readonly all: number;
  /** Its own, and those of all groups. */
  readonly held: number;
  readonly heldByAll: number;
}

export function standingOf(
  terms: ShareTerms,
  shares: Shares,
  name: string,
  held = 0,
  heldByAll = 0,
  namedBy?: string,
): Standing {
  const found = groupOf(shares.groups, name);
  const others = found === undefined ? othersOf(shares.groups, name, namedBy) : undefined;
  if (others !== undefined) return standingOf(terms, shares, others, held, heldByAll, namedBy);
  const { atMs, virtual } = shares;
  const fresh = { name, namedBy, clearAt: virtual, sinceMs: atMs, seenMs: atMs };
  const group = found ?? { ...fresh, weight: ownWeight(terms.weightOf, name) };
  const weights = shares.weights + (found === undefined ? group.weight : 0);
  const owes = debtOf(shares, group) + held;
  const part = (terms.cut * terms.burst * group.weight) / weights;
  const all = shares.owed + heldByAll;
  return { terms, shares, group, isKnown: found !== undefined, part, owes, all, held, heldByAll };
}

export function debtOf({ virtual, faded }: Shares, { clearAt, weight }: Group): number {
  return Math.max(0, clearAt - virtual) * weight * (faded?.scale ?? 1);
}

/** Whether what the group owes then stays within its part. */
export function isWithin({ terms, owes, part }: Standing, cost: number): boolean {
  return owes + cost * terms.perUnit <= part + SLACK;
}

/** Milliseconds in which the rate of the group's part brings as many units. */
export function ownMs({ terms, part }: Standing, units: number): number {
  return (units * terms.cut * terms.burst) / (terms.rate * part);
}

/** Nobody else is active. */
export function isAlone({ shares, isKnown }: Standing): boolean {
  return shares.groups.length === (isKnown ? 1 : 0);
}

/** The groups with this one as it is then. */
export function placed({ shares, group, isKnown }: Standing, taken: Group): readonly Group[] {
  const others = isKnown ? withoutGroup(shares.groups, group) : shares.groups;
  const groups = others.toSpliced(firstOwing(others, taken.clearAt), 0, taken);
  moveIndex(shares.groups, groups, taken);
  return groups;
}

function withoutGroup(groups: readonly Group[], { name, clearAt }: Group): readonly Group[] {
  let index = firstOwing(groups, clearAt) - 1;
  while (groups[index]?.name !== name) index -= 1;
  return groups.toSpliced(index, 1);
}

/** Until when some group is active. */
export function activeUntilMs({ groups }: Shares): number {
  return groups.reduce((latest, { seenMs }) => Math.max(latest, seenMs + ACTIVE_MS), -Infinity);
}

/** What a decision says of the group's part: its units in a window, and how many of them it may take now. */
export function shareOf(
  { terms, shares, group, isKnown, part, owes }: Standing,
  windowMs: number,
  free = Infinity,
) {
  const weights = shares.weights + (isKnown ? 0 : group.weight);
  const limit = Math.floor((terms.rate * windowMs * group.weight) / weights + SLACK);
  const ofPart = Math.floor((part - owes) / terms.perUnit + SLACK);
  return { limit, remaining: Math.max(0, Math.min(limit, free, ofPart)) };
}
