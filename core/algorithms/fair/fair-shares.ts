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

import {
  ACTIVE_MS,
  debtOf,
  firstOwing,
  type Group,
  isWithin,
  NOBODY,
  ownMs,
  placed,
  reweighed,
  type Shares,
  type ShareTerms,
  type Sharing,
  SLACK,
  type Standing,
  standingOf,
} from "./standing.ts";

export const bucketShares: Sharing = {
  paidTo,
  passes,
  reserve: () => 0,
  yields: () => false,
  mostNow,
  passesAtMs(standing, cost, unitsAtMs, heldUntilMs) {
    const { terms, shares, group, held, heldByAll } = standing;
    const atMs = unitsAtMs(0);
    if (atMs === Infinity) return Infinity;
    const then = standingOf(terms, paidTo(terms, shares, atMs), group.name, held, heldByAll, group.namedBy);
    const soonestMs = passes(standing, cost) ? atMs : shares.atMs + 1;
    return Math.max(soonestMs, atMs + waitOf(then, cost, heldUntilMs));
  },
  sureAfterMs,
  withTaken,
};

export const CUT = 0.5;

const MAX_PARTS = 5;

/** Units that all groups may have paid: then virtual time begins again, so that rounding stays below `SLACK`. */
const MAX_PAID = 2 ** 16;

/** The shares at an instant: what has come back since has paid debts, and groups that are not active are forgotten. */
function paidTo(terms: ShareTerms, known: Shares | undefined, nowMs: number): Shares {
  if (known === undefined) return { ...NOBODY, atMs: nowMs };
  let shares = withinBurst(known, terms.burst);
  // Where a caller has named many groups, the others weigh more as each is forgotten.
  for (let left = shares.groups.length; left > 0 && shares.isScaled === true; left -= 1) {
    const changeMs = shares.anyIdleFromMs < nowMs ? nextIdleMs(terms, shares) : Infinity;
    if (changeMs >= nowMs) break;
    shares = paidBy(terms, shares, changeMs);
  }
  return paidBy(terms, shares, nowMs);
}

function paidBy({ rate, weightOf }: ShareTerms, before: Shares, nowMs: number): Shares {
  const { groups } = before;
  let { virtual, owing, owed, idleFromMs } = before;
  const atMs = Math.max(before.atMs, nowMs);
  let paid = rate * (atMs - before.atMs);
  owed = Math.max(0, owed - paid);
  let first = firstOwing(groups, virtual);
  for (let group = groups[first]; group !== undefined; group = groups[first]) {
    const need = (group.clearAt - virtual) * owing;
    virtual = need > paid + SLACK ? virtual + paid / owing : group.clearAt;
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

/** A bucket that shrinks begins empty, not in debt (token-bucket.ts): so do the groups, each with its part of what all owe. */
function withinBurst(shares: Shares, burst: number): Shares {
  const { virtual, owed, burst: before = burst } = shares;
  if (before <= burst || owed <= burst) return shares;
  const groups = shares.groups.map((group) => {
    const ahead = Math.max(0, group.clearAt - virtual);
    return { ...group, clearAt: group.clearAt - ahead * (1 - burst / owed) };
  });
  return { ...shares, groups, owed: burst, burst };
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

function begunAgain(shares: Shares): Shares {
  const { virtual, weights, groups } = shares;
  if (virtual * weights < MAX_PAID) return shares;
  const moved = groups.map((group) => ({ ...group, clearAt: Math.max(0, group.clearAt - virtual) }));
  return { ...shares, virtual: 0, groups: moved };
}

function passes(standing: Standing, cost: number): boolean {
  const { terms, shares, owes, part, all } = standing;
  if (isWithin(standing, cost)) return true;
  if (cost > part && owes <= SLACK) return true;
  const room = (1 - CUT) * terms.burst + part;
  return (
    shares.atMs <= burstEndsMs(standing) &&
    all + cost <= room + SLACK &&
    owes + cost <= MAX_PARTS * part + SLACK
  );
}

function burstEndsMs({ terms, shares, group }: Standing): number {
  const sinceMs = debtOf(shares, group) > SLACK ? group.sinceMs : shares.atMs;
  return sinceMs + terms.burst / terms.rate;
}

function mostNow(standing: Standing, available: number): number {
  const { owes, part, all, terms, shares } = standing;
  if (owes <= SLACK) return Math.max(0, Math.floor(available + SLACK));
  const mayBurst = shares.atMs <= burstEndsMs(standing);
  const burst = Math.min((1 - CUT) * terms.burst + part - all, MAX_PARTS * part - owes);
  const most = Math.max(part - owes, mayBurst ? burst : 0);
  return Math.max(0, Math.floor(Math.min(available, most) + SLACK));
}

/** Milliseconds until a cost passes if nobody else asks: exact, unless many groups are forgotten until then. 0: it passes. */
function waitOf(standing: Standing, cost: number, heldUntilMs?: number): number {
  const { terms, shares, group, held, heldByAll } = standing;
  const isHeld = heldUntilMs !== undefined;
  let now = standing;
  for (let step = 0; step < MAX_STEPS; step += 1) {
    const passesAtMs = now.shares.atMs + waitNow(now, cost, isHeld);
    const changeMs = passesAtMs <= now.shares.anyIdleFromMs ? Infinity : nextIdleMs(terms, now.shares);
    if (passesAtMs <= changeMs || changeMs > (heldUntilMs ?? Infinity)) return passesAtMs - shares.atMs;
    now = standingOf(terms, paidTo(terms, now.shares, changeMs), group.name, held, heldByAll);
  }
  return now.shares.atMs + waitNow(now, cost, isHeld) - shares.atMs;
}

/** Parts grow as groups are forgotten: a wait looks at so many of these instants. */
const MAX_STEPS = 32;

/** The same while no group is forgotten. @param isHeld what is held stays so: Infinity if no other units suffice */
function waitNow(standing: Standing, cost: number, isHeld: boolean): number {
  if (passes(standing, cost)) return 0;
  const { terms, shares, part, all, held } = standing;
  const owesMs = (most: number) =>
    isHeld && most < held - SLACK ? Infinity : Math.ceil(untilOwes(standing, most + SLACK) / terms.rate);
  const within = owesMs(Math.max(0, part - cost));
  const excess = all + cost - (1 - CUT) * terms.burst - part;
  const roomMs = isHeld && excess > shares.owed + SLACK ? Infinity : msFor(terms, excess);
  const bursting = cost <= MAX_PARTS * part ? Math.max(roomMs, owesMs(MAX_PARTS * part - cost)) : Infinity;
  // When all is back but what it holds, another burst may begin.
  const isLate = bursting > burstEndsMs(standing) - shares.atMs;
  // What it holds now may have come back by then.
  const leastMs = isHeld || held <= SLACK ? 1 : 0;
  return Math.max(leastMs, Math.min(within, isLate ? Math.max(bursting, owesMs(held)) : bursting));
}

function msFor({ rate }: ShareTerms, units: number): number {
  return Math.max(0, Math.ceil((units - SLACK) / rate));
}

/** When the first group is forgotten, if nobody asks. */
function nextIdleMs(terms: ShareTerms, shares: Shares): number {
  const { groups, atMs } = shares;
  let { virtual, owing } = shares;
  let [units, firstMs] = [0, Infinity];
  for (const { weight, clearAt, seenMs } of groups) {
    if (clearAt > virtual) {
      units += (clearAt - virtual) * owing;
      virtual = clearAt;
    }
    if (clearAt > shares.virtual) owing -= weight;
    firstMs = Math.min(firstMs, Math.max(seenMs + ACTIVE_MS + 1, atMs + msFor(terms, units)));
  }
  return firstMs;
}

/**
 * What the group owes comes back at the rate of its part at least. Others owe more than their parts if these have just
 * become smaller, or after bursts. There is room for this group's part as soon as that excess fits into the common room.
 */
function sureAfterMs(standing: Standing, cost: number): number | null {
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

function withTaken(standing: Standing, admitted: number, capacity = 0): Shares {
  const { terms, shares, group, isKnown } = standing;
  const { atMs, virtual } = shares;
  const most = capacity > terms.burst ? Math.max(0, terms.burst - shares.owed) : Infinity;
  const units = Math.min(admitted, most);
  const isOwing = group.clearAt > virtual;
  const owed = Math.max(0, group.clearAt - virtual) * group.weight;
  const owes = Math.max(0, owed + units);
  const clearAt = virtual + owes / group.weight;
  const taken: Group = {
    ...group,
    clearAt,
    sinceMs: owed > SLACK ? group.sinceMs : atMs,
    seenMs: units > 0 ? atMs : group.seenMs,
  };
  const groups = placed(standing, taken);
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
    burst: terms.burst,
  };
  return isKnown ? after : reweighed(terms.weightOf, after);
}
