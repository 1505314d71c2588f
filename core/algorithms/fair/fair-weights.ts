/**
 * What a group weighs beside the groups of all callers (fair-shares.ts). A caller may name as many groups as it likes, and each
 * takes a part. So the groups of one caller count together at most as 16 of them, or as as many as all other callers have
 * named: then each is that much lighter. A caller alone, or with 16 groups, sees nothing of that.
 *
 * Example: one caller has named 400 groups, another one 2, all of weight 1. The 400 weigh 16 together, and each of the 2 has
 * 1/18 of the rate, and not 1/402.
 *
 * A group belongs to the caller that named it first, until it is forgotten.
 */
interface Weighed {
  readonly name: string;
  /** Names the caller. Absent: unknown, which counts as one. */
  readonly namedBy?: string | undefined;
  readonly weight: number;
  readonly clearAt: number;
}

type WeightOf = (group: string) => number;

const MAX_GROUPS = 1_500;
const MAX_GROUPS_OF_CALLER = 1_000;
/** So many groups of a caller are never made lighter. */
const MIN_GROUPS_OF_CALLER = 16;
/** All groups beyond those share one part, those of a caller another one. No group of a call has such a name. */
const OTHERS = "";
const OTHERS_OF = "\ud800";

interface GroupIndex {
  readonly byName: Map<string, Weighed>;
  /** How many of them each caller has named, not counting the part of its further groups. */
  readonly counts: Map<string | undefined, number>;
}

/** Of a list once, and moved to the list that is made from it: a walk through a thousand groups takes long. */
const indexes = new WeakMap<readonly Weighed[], GroupIndex>();

function indexOf(groups: readonly Weighed[]): GroupIndex {
  const found = indexes.get(groups);
  if (found !== undefined) return found;
  const byName = new Map(groups.map((group) => [group.name, group]));
  const index = { byName, counts: countsIn(groups) };
  indexes.set(groups, index);
  return index;
}

export function groupOf<Group extends Weighed>(groups: readonly Group[], name: string): Group | undefined {
  return indexOf(groups).byName.get(name) as Group | undefined;
}

/** The index of a list for the list that has one group in addition, or another one of its name. */
export function moveIndex(before: readonly Weighed[], after: readonly Weighed[], group: Weighed): void {
  const { byName, counts } = indexOf(before);
  indexes.delete(before);
  const { name, namedBy } = group;
  if (!byName.has(name) && !isOfOthers(name)) counts.set(namedBy, (counts.get(namedBy) ?? 0) + 1);
  byName.set(name, group);
  indexes.set(after, { byName, counts });
}

/** In whose part a group that is not known is counted; `undefined`: it has its own. */
export function othersOf(
  groups: readonly Weighed[],
  name: string,
  namedBy: string | undefined,
): string | undefined {
  if (isOfOthers(name)) return undefined;
  const ofCaller = indexOf(groups).counts.get(namedBy) ?? 0;
  if (ofCaller >= MAX_GROUPS_OF_CALLER) return OTHERS_OF + (namedBy ?? "");
  return groups.length >= MAX_GROUPS ? OTHERS : undefined;
}

export function isOfOthers(name: string): boolean {
  return name === OTHERS || name.startsWith(OTHERS_OF);
}

/** The weight of a group, whoever else is active. */
export function ownWeight(weightOf: WeightOf, name: string): number {
  return isOfOthers(name) ? 1 : weightOf(name);
}

function countsIn(groups: readonly Weighed[]): Map<string | undefined, number> {
  const counts = new Map<string | undefined, number>();
  for (const { name, namedBy } of groups)
    if (!isOfOthers(name)) counts.set(namedBy, (counts.get(namedBy) ?? 0) + 1);
  return counts;
}

/**
 * The groups with what each weighs now, in the order of `clearAt`. What each owes stays. Called when groups have come or have
 * been forgotten. @param wasScaled whether some are lighter than their own weights
 */
export function weighed<Group extends Weighed>(
  groups: readonly Group[],
  virtual: number,
  weightOf: WeightOf,
  wasScaled: boolean,
) {
  const counts = countsIn(groups);
  let all = 0;
  for (const count of counts.values()) all += count;
  const scaleOf = (caller: string | undefined) => {
    const own = counts.get(caller) ?? 1;
    return own === all ? 1 : Math.min(1, Math.max(MIN_GROUPS_OF_CALLER, all - own) / own);
  };
  const scales = new Map([...counts.keys()].map((caller) => [caller, scaleOf(caller)]));
  const isScaled = [...scales.values()].some((scale) => scale < 1);
  if (!isScaled && !wasScaled) return undefined;
  let [weights, owing] = [0, 0];
  const changed = groups.map((group): Group => {
    const weight = ownWeight(weightOf, group.name) * (scales.get(group.namedBy) ?? 1);
    weights += weight;
    if (group.clearAt <= virtual) return { ...group, weight };
    owing += weight;
    return { ...group, weight, clearAt: virtual + ((group.clearAt - virtual) * group.weight) / weight };
  });
  return { groups: changed.toSorted((one, other) => one.clearAt - other.clearAt), weights, owing, isScaled };
}
