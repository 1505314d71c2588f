import type { Uses } from "../algorithm.ts";

/**
 * Slot shares: who of several groups may take the next units of a limit on units that are held at once. They only deny:
 * how many units there are, `concurrency` decides beside them (fair-slots.ts).
 *
 * Of the active groups' weights W, a group of weight w has the part `limit` * w / W. A group is active while it holds
 * units, and for 10 s after it last took some, gave some back or was denied. Units come back when their holders like and
 * not at a rate, so a unit kept for a group that does not come is lost, and one that was given away cannot be called back.
 *
 * - Within its part (or as its first unit) a group takes any free unit.
 * - Beyond its part it takes what max-min fairness leaves it: the others count with what they hold, but with no more for
 *   their weight than this group would have, and with a *reserve*, as telephone exchanges keep trunks (trunk
 *   reservation). The reserve is no more than other active groups could still take within their parts.
 *
 * The reserve is learned from calls within their parts. One that finds no unit free makes it as large as its cost at
 * least, and 0.25 units larger (once until its group is admitted); one that is admitted makes it smaller by a hundredth of that.
 * So it settles where one such call in a hundred is denied: at nothing where they come in time or wait in line, at 6 %
 * of 50 units where nine groups come at random beside a flood.
 *
 * Example: 10 units, two groups. One holds all 10 and floods. The other is denied once; now the first unit that comes back
 * is its own. If calls wait, a line decides whose turn it is (core/accounts/fair-line.ts).
 *
 * What groups hold is in the holds, which storage has; the rest is in memory, and learned again after a start. Weak where
 * there are fewer units than groups and calls do not wait: whoever comes first gets one. Numbers here are fractions: they
 * decide between groups, and never how much all have.
 */
export interface SlotTerms {
  readonly limit: number;
  readonly weightOf: (group: string) => number;
}

/** The units of groups that hold any, by their names. A `Map` is one. */
export interface HeldByName extends Iterable<[string, number]> {
  readonly size: number;
  get(group: string): number | undefined;
}

export function namesOf(held: HeldByName): string[] {
  return Array.from(held, ([name]) => name);
}

/** What holds have: by group now, and in the order of their ends. */
export interface HeldByGroup {
  readonly byGroup: HeldByName;
  readonly uses: Uses;
}

interface SlotGroup {
  readonly name: string;
  readonly weight: number;
  readonly seenMs: number;
  /** It was denied within its part, and not admitted since. */
  readonly isDenied?: boolean;
}

/** What memory knows of the groups: those seen last come last. */
export interface SlotShares {
  readonly groups: readonly SlotGroup[];
  readonly reserve: number;
}

export const ACTIVE_MS = 10_000;
const MAX_GROUPS = 1_000;
/** All groups beyond that share one part. No caller's group has this name. */
const OTHERS = "";

export function isOthers(group: string): boolean {
  return group === OTHERS;
}

/** How much one such denial adds to the reserve, in units. */
const STEP = 0.25;
/** The part of the calls within parts that may find no unit free. */
const DENIED_PART = 0.01;
/** The most that is kept, of the limit. */
const MAX_RESERVE = 1 / 5;
/** Rounding of sums, in units. */
export const SLACK = 1e-9;
export const NOTHING_KNOWN: SlotShares = { groups: [], reserve: 0 };

interface Member {
  readonly weight: number;
  readonly held: number;
}

/** A group among the active ones at an instant. */
export interface SlotStanding {
  readonly limit: number;
  /** The group that was named, and the one that it counts for. */
  readonly asked: string;
  readonly name: string;
  readonly weight: number;
  readonly held: number;
  readonly part: number;
  /** The other active groups, in two lists of numbers: there may be a thousand, which each call looks through. */
  readonly others: { readonly weights: readonly number[]; readonly held: readonly number[] };
  /** What groups hold, by name. */
  readonly heldBy: HeldByName;
  /** Units for each weight. */
  readonly unit: number;
}

/** The last standing: a call is decided several times, and there may be a thousand groups. */
let last:
  | {
      readonly terms: SlotTerms;
      readonly groups: readonly SlotGroup[];
      readonly heldBy: HeldByName;
      readonly atMs: number;
      readonly standing: SlotStanding;
    }
  | undefined;

/** The group's place among the active ones. @param heldBy units that groups hold at that instant */
export function standingIn(
  terms: SlotTerms,
  { groups }: SlotShares,
  heldBy: HeldByName,
  name: string,
  atMs: number,
): SlotStanding {
  const isSame = last?.terms === terms && last.groups === groups && last.heldBy === heldBy;
  if (isSame && last?.atMs === atMs && last.standing.asked === name) return last.standing;
  const standing = standingOf(terms, groups, heldBy, name, atMs);
  last = { terms, groups, heldBy, atMs, standing };
  return standing;
}

/** The same for groups that are a list of nobody else. */
export function standingOf(
  terms: SlotTerms,
  groups: Iterable<SlotGroup>,
  heldBy: HeldByName,
  name: string,
  atMs: number,
): SlotStanding {
  const others: { readonly weights: number[]; readonly held: number[] } = { weights: [], held: [] };
  let own: Member | undefined;
  let [weights, listed] = [0, 0];
  for (const { name: of, weight, seenMs } of groups) {
    const held = heldBy.get(of);
    if (held !== undefined) listed += 1;
    else if (atMs > seenMs + ACTIVE_MS) continue;
    weights += weight;
    if (of === name) own = { weight, held: held ?? 0 };
    else {
      others.weights.push(weight);
      others.held.push(held ?? 0);
    }
  }
  // Nearly always these are all that hold units.
  const isAll = listed === heldBy.size && others.held.length < MAX_GROUPS;
  if (!isAll) return standingAmong(terms, groups, heldBy, name, atMs);
  if (own === undefined) {
    own = { weight: terms.weightOf(name), held: 0 };
    weights += own.weight;
  }
  const unit = terms.limit / weights;
  return { limit: terms.limit, asked: name, name, ...own, part: unit * own.weight, heldBy, others, unit };
}

/** The same where some that hold units are not listed, or where there are more groups than have parts of their own. */
function standingAmong(
  { limit, weightOf }: SlotTerms,
  groups: Iterable<SlotGroup>,
  heldBy: HeldByName,
  name: string,
  atMs: number,
): SlotStanding {
  const members = new Map<string, Member>();
  const isFull = () => members.size - (members.has(OTHERS) ? 1 : 0) >= MAX_GROUPS;
  const add = (of: string, weight: number) => {
    if (of === OTHERS || !isFull()) members.set(of, { weight, held: heldBy.get(of) ?? 0 });
  };
  for (const { name: of, weight, seenMs } of groups)
    if (atMs <= seenMs + ACTIVE_MS || heldBy.get(of) !== undefined) add(of, weight);
  let unlisted = 0;
  for (const [of, units] of heldBy) {
    if (!members.has(of)) add(of, weightOf(of));
    if (!members.has(of)) unlisted += units;
  }
  const own = members.has(name) || !isFull() ? name : OTHERS;
  if (!members.has(own)) add(own, own === OTHERS ? 1 : weightOf(own));
  const others = members.get(OTHERS);
  if (others !== undefined) members.set(OTHERS, { ...others, held: unlisted });
  let weights = 0;
  for (const { weight } of members.values()) weights += weight;
  const { weight, held } = members.get(own) as Member;
  members.delete(own);
  const unit = limit / weights;
  return {
    limit,
    asked: name,
    name: own,
    weight,
    held,
    part: unit * weight,
    heldBy,
    others: {
      weights: Array.from(members.values(), (other) => other.weight),
      held: Array.from(members.values(), (other) => other.held),
    },
    unit,
  };
}

/** Whether the group then holds no more than its part, or only one unit. */
function isWithin({ held, part }: SlotStanding, cost: number): boolean {
  return held + cost <= Math.max(1, part) + SLACK;
}

/** The units that stay free for others beyond this group's part. */
function keptFor({ others, unit, limit }: SlotStanding, { reserve }: SlotShares): number {
  if (reserve <= SLACK) return 0;
  let unused = 0;
  for (const [index, held] of others.held.entries())
    unused += Math.max(0, unit * (others.weights[index] ?? 0) - held);
  return Math.min(Math.ceil(reserve - SLACK), Math.floor(unused + SLACK), maxReserve(limit));
}

function maxReserve(limit: number): number {
  return Math.max(1, Math.floor(limit * MAX_RESERVE));
}

export function passes(standing: SlotStanding, shares: SlotShares, free: number, cost: number): boolean {
  if (cost > free) return false;
  if (isWithin(standing, cost) || standing.others.held.length === 0) return true;
  const { others, held, weight, limit } = standing;
  const most = held + cost;
  const level = most / weight;
  // Others count no more for each weight than this group would have: what they have beyond that is not lost to it.
  let beside = 0;
  for (let index = 0; index < others.held.length; index += 1)
    beside += Math.min(others.held[index] ?? 0, level * (others.weights[index] ?? 0));
  return most + beside <= limit - keptFor(standing, shares) + SLACK;
}

/** The largest cost that passes now. */
export function mostNow(standing: SlotStanding, shares: SlotShares, free: number): number {
  let [low, high] = [0, free];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (passes(standing, shares, free, middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** With the group as the last one that was seen, and without those that are no longer active. */
function seen(
  shares: SlotShares,
  { name, weight, heldBy }: SlotStanding,
  nowMs: number,
  isDenied: boolean,
): SlotShares {
  const isOver = ({ name: of, seenMs }: SlotGroup) =>
    nowMs > seenMs + ACTIVE_MS && heldBy.get(of) === undefined;
  const [oldest] = shares.groups;
  const isAnyOver = oldest !== undefined && nowMs > oldest.seenMs + ACTIVE_MS;
  const active = isAnyOver ? shares.groups.filter((each) => !isOver(each)) : shares.groups;
  return { ...shares, groups: withLast(active, { name, weight, seenMs: nowMs, isDenied }) };
}

function withLast(groups: readonly SlotGroup[], group: SlotGroup): readonly SlotGroup[] {
  const index = groups.findIndex(({ name }) => name === group.name);
  const all = index === -1 ? [...groups] : groups.toSpliced(index, 1);
  all.push(group);
  return all;
}

export function afterGrant(
  shares: SlotShares,
  standing: SlotStanding,
  nowMs: number,
  cost: number,
): SlotShares {
  const less = isWithin(standing, cost) ? STEP * DENIED_PART : 0;
  return { ...seen(shares, standing, nowMs, false), reserve: Math.max(0, shares.reserve - less) };
}

export function afterDenial(
  shares: SlotShares,
  standing: SlotStanding,
  nowMs: number,
  cost: number,
): SlotShares {
  const wasDenied = shares.groups.some(({ name, isDenied }) => name === standing.name && isDenied === true);
  if (!isWithin(standing, cost)) return seen(shares, standing, nowMs, wasDenied);
  const more = wasDenied ? 0 : STEP * (1 - DENIED_PART);
  const reserve = Math.min(maxReserve(standing.limit), Math.max(cost, shares.reserve + more));
  return { ...seen(shares, standing, nowMs, true), reserve };
}

/**
 * Milliseconds until a cost passes if no lease is renewed and other groups take what their parts allow, but no more:
 * what they have beyond these counts until it expires. `null`: never, as with a cost above the part.
 */
export function sureAfterMs(
  terms: SlotTerms,
  shares: SlotShares,
  { byGroup, uses }: HeldByGroup,
  name: string,
  nowMs: number,
  cost: number,
): number | null {
  const standing = standingIn(terms, shares, byGroup, name, nowMs);
  if (cost > standing.part + SLACK) return null;
  const heldBy = new Map(byGroup);
  const claimOf = (group: string) => Math.max(1, Math.floor(standing.unit * terms.weightOf(group) + SLACK));
  // What the others have or may still take within their parts.
  let [own, claimed] = [standing.held, 0];
  for (const [index, held] of standing.others.held.entries())
    claimed += Math.max(held, 1, Math.floor(standing.unit * (standing.others.weights[index] ?? 0) + SLACK));
  const isSure = () => own + cost <= standing.part + SLACK && own + cost + claimed <= terms.limit;
  if (isSure()) return 0;
  for (const [index, endMs] of uses.endsMs.entries()) {
    const [group = OTHERS, units = 0] = [uses.groups?.[index], uses.units[index]];
    const held = heldBy.get(group) ?? 0;
    heldBy.set(group, held - units);
    if (group === name) own -= units;
    else claimed -= Math.max(held, claimOf(group)) - Math.max(held - units, claimOf(group));
    if (isSure()) return Math.max(0, endMs - nowMs);
  }
  return null;
}

/** The group is active from now on. */
export function returned(
  { weightOf }: SlotTerms,
  shares: SlotShares = NOTHING_KNOWN,
  name: string,
  nowMs: number,
): SlotShares {
  const known = shares.groups.find((each) => each.name === name);
  if (known === undefined && shares.groups.length >= MAX_GROUPS) return shares;
  const { weight = weightOf(name), isDenied = false } = known ?? {};
  return { ...shares, groups: withLast(shares.groups, { name, weight, seenMs: nowMs, isDenied }) };
}
