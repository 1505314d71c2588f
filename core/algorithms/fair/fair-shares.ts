/**
 * Fair shares: who of several groups may take the next units of a quota that they share. It only denies: how many units
 * there are, an algorithm decides beside it (fair.ts).
 *
 * Each group *owes* what it was admitted and what has not come back yet. What comes back, `rate`, pays the debts of all
 * groups that owe, by weight: weighted fair queueing in virtual time (Demers, Keshav and Shenker, 1989; Parekh and
 * Gallager, 1993) of a queue that is not there, as GCRA is a queue that is not there. Virtual time rises by 1 when each
 * group that owes has paid its weight in units.
 *
 * Half of the burst is cut into parts, by weight among the active groups; the other half is common room. A call passes if
 *
 * - what its group owes then stays within its part, or
 * - it is of a burst: its group has owed for less than a burst takes to come back, owes at most five parts, and all
 *   together owe at most the common room and this part, or
 * - it is larger than the part, and its group owes nothing.
 *
 * The first two leave each other group the rest of its part: while the active groups stay the same, a group whose calls fit
 * a bucket of its part is never denied. The third lets large calls pass, and is the only one that can hurt another group.
 * A group is active while it owes, and for 10 s after its last admission. A denial changes nothing.
 *
 * Example: 100 a second, burst 100, two groups. Each has a part of 25 and the rate 50. One that floods is held at what
 * comes back to it; the other may take 25 at once at any instant, and what it leaves, the first one uses.
 *
 * Weak where the burst has fewer than five units a group, where costs are larger than a part, and while groups come and
 * go. Numbers here are fractions: they decide between groups, and never how much all have.
 */

import { groupOf, moveIndex, othersOf, ownWeight, weighed } from "./fair-weights.ts";

/** How the groups of a rule share it. */
export interface ShareTerms {
  /** Units that come back in a millisecond. */
  readonly rate: number;
  readonly burst: number;
  /** No bucket decides the total: together the groups may owe the burst. */
  readonly isBound: boolean;
  readonly weightOf: (group: string) => number;
}

interface Group {
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
const CUT = 0.5;
const MAX_PARTS = 5;
/** Rounding of sums, in units. */
const SLACK = 1e-9;
/** Then virtual time begins again, so that fractions stay exact enough. */
const MAX_VIRTUAL = 2 ** 20;

/** The shares at an instant: what has come back since has paid debts, and groups that are not active are forgotten. */
export function paidTo(
  { rate, weightOf }: Pick<ShareTerms, "rate" | "weightOf">,
  before: Shares | undefined,
  nowMs: number,
): Shares {
  if (before === undefined) return { ...NOBODY, atMs: nowMs };
  const { groups } = before;
  let { virtual, owing, owed, idleFromMs } = before;
  const atMs = Math.max(before.atMs, nowMs);
  let paid = rate * (atMs - before.atMs);
  owed = Math.max(0, owed - paid);
  let first = firstOwing(groups, virtual);
  for (let group = groups[first]; group !== undefined; group = groups[first]) {
    const need = (group.clearAt - virtual) * owing;
    virtual = need > paid ? virtual + paid / owing : group.clearAt;
    paid = Math.max(0, paid - need);
    // Rounding may have cleared it too.
    if (group.clearAt > virtual) break;
    owing -= group.weight;
    first += 1;
    idleFromMs = Math.min(idleFromMs, group.seenMs + ACTIVE_MS);
  }
  if (first === groups.length) [owing, owed] = [0, 0];
  const paidOff = { ...before, atMs, virtual, owed, owing, idleFromMs };
  return begunAgain(atMs > idleFromMs ? reweighed(weightOf, withoutIdle(paidOff, first)) : paidOff);
}

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

function withoutIdle(shares: Shares, owing: number): Shares {
  const isIdle = ({ seenMs }: Group) => shares.atMs - seenMs > ACTIVE_MS;
  const groups = shares.groups.filter((group, index) => index >= owing || !isIdle(group));
  let [idleFromMs, anyIdleFromMs, weights] = [Infinity, Infinity, 0];
  const firstLeft = owing - (shares.groups.length - groups.length);
  for (const [index, { seenMs, weight }] of groups.entries()) {
    anyIdleFromMs = Math.min(anyIdleFromMs, seenMs + ACTIVE_MS);
    if (index < firstLeft) idleFromMs = Math.min(idleFromMs, seenMs + ACTIVE_MS);
    weights += weight;
  }
  return { ...shares, groups, weights, idleFromMs, anyIdleFromMs };
}

export function reweighed(weightOf: ShareTerms["weightOf"], shares: Shares): Shares {
  const { groups, virtual, isScaled } = shares;
  return { ...shares, ...weighed(groups, virtual, weightOf, isScaled === true) };
}

function begunAgain(shares: Shares): Shares {
  const { virtual, groups } = shares;
  if (virtual < MAX_VIRTUAL) return shares;
  const moved = groups.map((group) => ({ ...group, clearAt: Math.max(0, group.clearAt - virtual) }));
  return { ...shares, virtual: 0, groups: moved };
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
  const owes = Math.max(0, group.clearAt - virtual) * group.weight + held;
  const part = (CUT * terms.burst * group.weight) / weights;
  const all = shares.owed + heldByAll;
  return { terms, shares, group, isKnown: found !== undefined, part, owes, all, held, heldByAll };
}

/** Whether a cost passes now, as far as other groups are concerned. */
export function passes(standing: Standing, cost: number): boolean {
  const { terms, shares, owes, part, all } = standing;
  if (terms.isBound && !isAlone(standing) && all + cost > terms.burst + SLACK) return false;
  if (terms.isBound && isAlone(standing)) return true;
  if (isWithin(standing, cost)) return true;
  if (cost > part && owes <= SLACK) return true;
  const room = (1 - CUT) * terms.burst + part;
  return (
    shares.atMs <= burstEndsMs(standing) &&
    all + cost <= room + SLACK &&
    owes + cost <= MAX_PARTS * part + SLACK
  );
}

/** Whether what the group owes then stays within its part. */
export function isWithin({ owes, part }: Standing, cost: number): boolean {
  return owes + cost <= part + SLACK;
}

/** Milliseconds in which the rate of the group's part brings as many units. */
export function ownMs({ terms, part }: Standing, units: number): number {
  return (units * CUT * terms.burst) / (terms.rate * part);
}

/** Nobody else is active. */
function isAlone({ shares, isKnown }: Standing): boolean {
  return shares.groups.length === (isKnown ? 1 : 0);
}

function burstEndsMs({ terms, shares, group }: Standing): number {
  const sinceMs = group.clearAt > shares.virtual ? group.sinceMs : shares.atMs;
  return sinceMs + terms.burst / terms.rate;
}

/** The largest cost that passes now, if the algorithm has as many units. */
export function mostNow(standing: Standing, available: number): number {
  const { owes, part, all, terms, shares } = standing;
  if (terms.isBound && isAlone(standing)) return available;
  const left = terms.isBound ? Math.min(available, terms.burst - all) : available;
  if (owes <= SLACK) return Math.max(0, Math.floor(left + SLACK));
  const mayBurst = shares.atMs <= burstEndsMs(standing);
  const burst = Math.min((1 - CUT) * terms.burst + part - all, MAX_PARTS * part - owes);
  const most = Math.max(part - owes, mayBurst ? burst : 0);
  return Math.max(0, Math.floor(Math.min(left, most) + SLACK));
}

/** Milliseconds until a cost passes if nobody else asks: exact, unless many groups are forgotten until then. 0: it passes. */
export function waitOf(standing: Standing, cost: number): number {
  const { terms, shares, group, held, heldByAll } = standing;
  let now = standing;
  for (let step = 0; step < MAX_STEPS; step += 1) {
    const waitMs = waitNow(now, cost);
    const passesAtMs = now.shares.atMs + waitMs;
    const changeMs = passesAtMs <= now.shares.anyIdleFromMs ? Infinity : nextIdleMs(now);
    if (passesAtMs <= changeMs) return now.shares.atMs + waitMs - shares.atMs;
    now = standingOf(terms, paidTo(terms, now.shares, changeMs), group.name, held, heldByAll);
  }
  return now.shares.atMs + waitNow(now, cost) - shares.atMs;
}

/** Parts grow as groups are forgotten: a wait looks at so many of these instants. */
const MAX_STEPS = 32;

/** The same while no group is forgotten. */
function waitNow(standing: Standing, cost: number): number {
  if (passes(standing, cost)) return 0;
  const { terms, shares, part, all } = standing;
  const ms = (units: number) => msFor(terms, units);
  const within = ms(untilOwes(standing, part - cost));
  const room = (1 - CUT) * terms.burst + part;
  const endsMs = burstEndsMs(standing) - shares.atMs;
  let bursting = cost <= MAX_PARTS * part && endsMs > 0 ? ms(all + cost - room) : Infinity;
  if (bursting <= endsMs) bursting = Math.max(bursting, ms(untilOwes(standing, MAX_PARTS * part - cost)));
  const least = Math.min(within, bursting <= endsMs ? bursting : Infinity);
  return Math.max(1, least, terms.isBound ? ms(all + cost - terms.burst) : 0);
}

function msFor({ rate }: ShareTerms, units: number): number {
  return Math.max(0, Math.ceil((units - SLACK) / rate));
}

/** When the first of the other groups is forgotten, if nobody asks. */
function nextIdleMs({ terms, shares, group }: Standing): number {
  const { groups, atMs } = shares;
  let { virtual, owing } = shares;
  let [units, firstMs] = [0, Infinity];
  for (const { name, weight, clearAt, seenMs } of groups) {
    if (clearAt > virtual) {
      units += (clearAt - virtual) * owing;
      virtual = clearAt;
    }
    if (clearAt > shares.virtual) owing -= weight;
    if (name !== group.name)
      firstMs = Math.min(firstMs, Math.max(seenMs + ACTIVE_MS + 1, atMs + msFor(terms, units)));
  }
  return firstMs;
}

/**
 * Milliseconds until a cost passes whatever the other active groups do; `null`: it is larger than the part.
 *
 * What the group owes comes back at the rate of its part at least. Others owe more than their parts if these have just
 * become smaller, or after bursts. There is room for this group's part as soon as that excess fits into the common room.
 */
export function sureAfterMs(standing: Standing, cost: number): number | null {
  const { terms, shares, group, isKnown, owes, part } = standing;
  if (cost > part + SLACK) return null;
  const each = terms.rate / (shares.weights + (isKnown ? 0 : group.weight));
  const paidMs = ownMs(standing, owes + cost - part - SLACK);
  const room = (1 - CUT) * terms.burst;
  // Those that owe most come last.
  const most = shares.virtual + part / group.weight;
  const first = firstOwing(shares.groups, most);
  const excess = (ms: number) => {
    let sum = 0;
    for (let index = first; index < shares.groups.length; index += 1) {
      const { name, weight, clearAt } = shares.groups[index] as Group;
      if (name !== group.name) sum += Math.max(0, (clearAt - most - each * ms) * weight);
    }
    return sum;
  };
  let [low, high] = [0, 0];
  if (excess(0) > room) high = ((shares.groups.at(-1)?.clearAt ?? most) - most) / each;
  while (high - low > 0.5) {
    const middle = (low + high) / 2;
    if (excess(middle) <= room) high = middle;
    else low = middle;
  }
  return Math.max(0, Math.ceil(paidMs), Math.ceil(high));
}

/** How much has to come back until the group owes at most so much, if nobody else is admitted: a walk along the groups. */
function untilOwes({ shares, group, held }: Standing, most: number): number {
  const { groups } = shares;
  let { virtual, owing } = shares;
  // What it holds does not come back meanwhile.
  const at = group.clearAt - Math.max(0, most - held) / group.weight;
  let units = 0;
  for (let index = firstOwing(groups, virtual); index < groups.length; index += 1) {
    const { clearAt, weight } = groups[index] as Group;
    if (clearAt >= at) break;
    units += (clearAt - virtual) * owing;
    virtual = clearAt;
    owing -= weight;
  }
  return owing > SLACK ? units + Math.max(0, at - virtual) * owing : units;
}

/** The shares after the group has been admitted this many units; a negative number gives units back. */
export function withTaken(standing: Standing, units: number): Shares {
  const { terms, shares, group, isKnown } = standing;
  const { atMs, virtual } = shares;
  const isOwing = group.clearAt > virtual;
  const owed = Math.max(0, group.clearAt - virtual) * group.weight;
  // More than comes back is admitted to a group alone: without a bound another one could never begin.
  const most = terms.isBound && isAlone(standing) ? Math.max(owed, CUT * terms.burst) : Infinity;
  const owes = Math.max(0, Math.min(most, owed + units));
  const clearAt = virtual + owes / group.weight;
  const taken: Group = {
    ...group,
    clearAt,
    sinceMs: isOwing ? group.sinceMs : atMs,
    seenMs: units > 0 ? atMs : group.seenMs,
  };
  const others = isKnown ? withoutGroup(shares.groups, group) : shares.groups;
  const index = firstOwing(others, clearAt);
  const groups = others.toSpliced(index, 0, taken);
  moveIndex(shares.groups, groups, taken);
  const owingBefore = isOwing ? group.weight : 0;
  const owingAfter = clearAt > virtual ? group.weight : 0;
  const after: Shares = {
    ...shares,
    groups,
    idleFromMs: clearAt > virtual ? shares.idleFromMs : Math.min(shares.idleFromMs, taken.seenMs + ACTIVE_MS),
    anyIdleFromMs: Math.min(shares.anyIdleFromMs, taken.seenMs + ACTIVE_MS),
    weights: shares.weights + (isKnown ? 0 : group.weight),
    owing: shares.owing - owingBefore + owingAfter,
    owed: Math.max(0, shares.owed + owes - owed),
  };
  return isKnown ? after : reweighed(terms.weightOf, after);
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
  return { limit, remaining: Math.max(0, Math.min(limit, free, Math.floor(part - owes + SLACK))) };
}
