import {
  type Algorithm,
  type AlgorithmDecision,
  type AnyAlgorithm,
  type Forecast,
  type Share,
  type Uses,
} from "./algorithm.ts";

/**
 * Fair slots: the groups of a key share the units that are held at once. It wraps `concurrency`, which decides how many
 * units there are; this file decides which group may take the next ones.
 *
 * Of the active groups' weights W, a group of weight w has the part `limit` * w / W. A group is active while it holds
 * units, and for 10 s after it last took some, gave some back or was denied. Units come back when their holders like,
 * not at a rate, so a unit kept for a group that does not come is lost, and one that is not kept cannot be called back.
 *
 * - Within its part (or with its first unit) a call takes any free unit.
 * - Beyond its part it takes a unit only if some stay free: the *reserve*, as telephone exchanges keep trunks (trunk
 *   reservation), but no more than other active groups could still take within their parts.
 * - Beyond its part it takes no unit if another group that was denied beyond its part holds less for its weight.
 *
 * The reserve is learned, from calls within their parts: one that finds no unit free adds its cost, once until a unit is
 * free again, and one that is admitted takes off a hundredth. So it settles where one such call in a hundred is denied:
 * at no unit where the others always come in time or wait in line, at a tenth of the limit where many come at random.
 *
 * Example: 10 units, two groups. One holds all 10 and floods. The other is denied once; from then on the first unit that
 * comes back is its own, up to 5. If all calls wait, a line decides instead (durable-objects/operations/fair-line.ts).
 *
 * What groups hold is in the holds, which storage has. The rest is known in memory until the object ends. The bound is
 * that of `concurrency`. Weak where there are fewer units than groups and calls do not wait: whoever comes first gets one.
 */
export interface SlotTerms {
  readonly limit: number;
  readonly weightOf: (group: string) => number;
}

interface FairSlotsConfig {
  readonly inner: object;
  readonly slots: SlotTerms;
  readonly group?: string;
  readonly held?: HeldByGroup;
}

/** What holds have: by group now, and in the order of their ends. */
export interface HeldByGroup {
  readonly byGroup: ReadonlyMap<string, number>;
  readonly uses: Uses;
}

interface SlotGroup {
  readonly name: string;
  readonly weight: number;
  readonly seenMs: number;
  /** It was denied within its part, or beyond it, and not admitted since. */
  readonly denied?: "within" | "beyond" | undefined;
}

/** What memory knows of the groups: those seen last come last. */
interface SlotShares {
  readonly groups: readonly SlotGroup[];
  readonly reserve: number;
}

interface FairSlotsState {
  readonly inner: unknown;
  readonly shares: SlotShares | undefined;
}

type Decision = AlgorithmDecision<FairSlotsState>;

const ACTIVE_MS = 10_000;
const MAX_GROUPS = 1_000;
/** All groups beyond that share one part. No caller's group has this name. */
const OTHERS = "";
/** How much one such denial adds to the reserve, in units. */
const STEP = 0.25;
/** The part of the calls within parts that may find no unit free. */
const DENIED_PART = 0.01;
/** The most that is kept, of the limit. */
const MAX_RESERVE = 1 / 5;
/** Rounding of sums, in units. */
const SLACK = 1e-9;
/** A wait looks at so many instants at which a group gives units back or is forgotten. */
const MAX_STEPS = 64;
const BYTES_OF_GROUP = 128;
const NOTHING_KNOWN: SlotShares = { groups: [], reserve: 0 };
const NOTHING_HELD: HeldByGroup = { byGroup: new Map(), uses: { endsMs: [], units: [] } };

interface Member {
  readonly weight: number;
  readonly held: number;
  readonly lacks: boolean;
}

/** A group among the active ones at an instant. */
interface SlotStanding {
  readonly limit: number;
  readonly name: string;
  readonly weight: number;
  readonly held: number;
  readonly part: number;
  readonly others: readonly Member[];
  /** Units for each weight. */
  readonly unit: number;
}

/** @param heldBy units that groups hold at that instant */
function standingOf(
  { limit, weightOf }: SlotTerms,
  groups: Iterable<SlotGroup>,
  heldBy: ReadonlyMap<string, number>,
  name: string,
  atMs: number,
): SlotStanding {
  const members = new Map<string, Member>();
  const isFull = () => members.size - (members.has(OTHERS) ? 1 : 0) >= MAX_GROUPS;
  const add = (of: string, weight: number, lacks: boolean) => {
    if (of === OTHERS || !isFull()) members.set(of, { weight, held: heldBy.get(of) ?? 0, lacks });
  };
  for (const { name: of, weight, seenMs, denied } of groups)
    if (atMs <= seenMs + ACTIVE_MS || heldBy.has(of)) add(of, weight, denied === "beyond");
  let unlisted = 0;
  for (const [of, units] of heldBy) {
    if (!members.has(of)) add(of, weightOf(of), false);
    if (!members.has(of)) unlisted += units;
  }
  const own = members.has(name) || !isFull() ? name : OTHERS;
  if (!members.has(own)) add(own, own === OTHERS ? 1 : weightOf(own), false);
  const others = members.get(OTHERS);
  if (others !== undefined) members.set(OTHERS, { ...others, held: unlisted });
  let weights = 0;
  for (const { weight } of members.values()) weights += weight;
  const { weight, held } = members.get(own) as Member;
  members.delete(own);
  const unit = limit / weights;
  return { limit, name: own, weight, held, part: unit * weight, others: [...members.values()], unit };
}

/** Whether the group then holds no more than its part, or only one unit. */
function isWithin({ held, part }: SlotStanding, cost: number): boolean {
  return held + cost <= Math.max(1, part) + SLACK;
}

/** The units that stay free for others beyond this group's part. */
function keptFor({ others, unit, limit }: SlotStanding, { reserve }: SlotShares): number {
  if (reserve <= SLACK) return 0;
  const unused = others.reduce((sum, { weight, held }) => sum + Math.max(0, unit * weight - held), 0);
  return Math.min(Math.ceil(reserve - SLACK), Math.floor(unused + SLACK), maxReserve(limit));
}

function maxReserve(limit: number): number {
  return Math.max(1, Math.floor(limit * MAX_RESERVE));
}

/** The most units that the group may have beyond its part, while others that lack units have fewer for their weight. */
function mostBeside({ others, weight, limit }: SlotStanding): number {
  let most = limit;
  for (const other of others)
    if (other.lacks) most = Math.min(most, ((other.held + 1) * weight) / other.weight + SLACK);
  return most;
}

function passes(standing: SlotStanding, shares: SlotShares, free: number, cost: number): boolean {
  if (cost > free) return false;
  if (isWithin(standing, cost) || standing.others.length === 0) return true;
  const { others, held, weight, limit } = standing;
  const most = held + cost;
  if (most > mostBeside(standing)) return false;
  const level = most / weight;
  // Others count no more for each weight than this group would have: what they have beyond that is not lost to it.
  const beside = others.reduce((sum, other) => sum + Math.min(other.held, level * other.weight), 0);
  return most + beside <= limit - keptFor(standing, shares) + SLACK;
}

/** The largest cost that passes now. */
function mostNow(standing: SlotStanding, shares: SlotShares, free: number): number {
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
  { name, weight }: SlotStanding,
  nowMs: number,
  denied: SlotGroup["denied"],
): SlotShares {
  const groups = shares.groups.filter((each) => each.name !== name && nowMs <= each.seenMs + ACTIVE_MS);
  return { ...shares, groups: [...groups, { name, weight, seenMs: nowMs, denied }] };
}

function afterGrant(shares: SlotShares, standing: SlotStanding, nowMs: number, cost: number): SlotShares {
  const reserve = isWithin(standing, cost)
    ? Math.max(0, shares.reserve - STEP * DENIED_PART)
    : shares.reserve;
  return { ...seen(shares, standing, nowMs, undefined), reserve };
}

function afterDenial(shares: SlotShares, standing: SlotStanding, nowMs: number, cost: number): SlotShares {
  if (!isWithin(standing, cost)) return seen(shares, standing, nowMs, "beyond");
  const isAgain = shares.groups.some(({ name, denied }) => name === standing.name && denied === "within");
  const more = isAgain ? 0 : STEP * (1 - DENIED_PART);
  const reserve = Math.min(maxReserve(standing.limit), Math.max(cost, shares.reserve + more));
  return { ...seen(shares, standing, nowMs, "within"), reserve };
}

/**
 * Milliseconds until a cost passes if no lease is renewed and other groups take what their parts allow, but no more:
 * what they have beyond these counts until it expires. `null`: never, as with a cost above the part.
 */
function sureAfterMs(
  terms: SlotTerms,
  shares: SlotShares,
  { byGroup, uses }: HeldByGroup,
  name: string,
  nowMs: number,
  cost: number,
): number | null {
  const standing = standingOf(terms, shares.groups, byGroup, name, nowMs);
  if (cost > standing.part + SLACK) return null;
  const heldBy = new Map(byGroup);
  const claimOf = (group: string) => Math.max(1, Math.floor(standing.unit * terms.weightOf(group) + SLACK));
  // What the others have or may still take within their parts.
  let [own, claimed] = [standing.held, standing.others.reduce((sum, other) => sum + claim(other), 0)];
  function claim({ weight, held }: Member) {
    return Math.max(held, 1, Math.floor(standing.unit * weight + SLACK));
  }
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

export function withSlotShares(
  algorithm: AnyAlgorithm,
  config: object,
  weightOf: SlotTerms["weightOf"],
): { readonly algorithm: AnyAlgorithm; readonly config: object } {
  const slots = { limit: algorithm.capacity(config), weightOf };
  return { algorithm: fairSlots(algorithm), config: { inner: config, slots } satisfies FairSlotsConfig };
}

/** How groups share the rule with this configuration; `undefined`: they do not share slots. */
export function slotTermsOf(config: object): SlotTerms | undefined {
  return "slots" in config ? (config as FairSlotsConfig).slots : undefined;
}

function fairSlots(algorithm: AnyAlgorithm): Algorithm<FairSlotsConfig, FairSlotsState> {
  const { name, fields, leasing } = algorithm;
  return {
    name,
    fields,
    isFair: true,
    ...(leasing && {
      leasing: {
        terms: ({ inner }) => leasing.terms(inner),
        fencingToken: ({ inner }) => (inner === undefined ? 0 : leasing.fencingToken(inner)),
        resumed: (token) => ({ inner: leasing.resumed(token), shares: undefined }),
        reclaimed: ({ inner }) => (inner === undefined ? 0 : leasing.reclaimed(inner)),
      },
    }),
    configure: ({ inner }) => inner as never,
    capacity: ({ inner }) => algorithm.capacity(inner),
    quota: ({ inner }) => algorithm.quota(inner),
    localDecisions: () => ({ admits: false, denies: false }),
    refillMs: ({ inner }, missing) => algorithm.refillMs(inner, missing),
    scale: () => undefined,
    decide: (config, state, nowMs, cost, outstanding) =>
      decide(algorithm, config, state, nowMs, cost, outstanding),
    debit: ({ inner, slots, group }, state, nowMs, units) => {
      const debited = algorithm.debit(inner, state?.inner, nowMs, units);
      return stateOf(
        debited,
        group === undefined ? state?.shares : returned(slots, state?.shares, group, nowMs),
      );
    },
    credit: ({ inner }, state, nowMs, units, atMs) =>
      stateOf(algorithm.credit(inner, state?.inner, nowMs, units, atMs), state?.shares),
    untouchedAtMs: ({ inner }, state, uses) => algorithm.untouchedAtMs(inner, state?.inner, uses),
    outlastsMs: ({ shares }) => (shares?.groups.at(-1)?.seenMs ?? -Infinity) + ACTIVE_MS,
    forecast: (config, state) => forecastOf(config, state?.shares ?? NOTHING_KNOWN),
    covers: ({ inner }, stored, ahead, state, outstanding, nowMs) =>
      algorithm.covers(inner, stored, ahead, state?.inner, outstanding, nowMs),
    pack: ({ inner: config }, { inner }, nowMs, before) =>
      inner === undefined ? { record: undefined } : algorithm.pack(config, inner, nowMs, before),
    unpack: ({ inner }, record, segments) => ({
      inner: record === undefined ? undefined : algorithm.unpack(inner, record, segments),
      shares: undefined,
    }),
    used: (record) => algorithm.used(record),
    bytes: ({ shares }) => BYTES_OF_GROUP * (shares?.groups.length ?? 0),
  };
}

/** The group is active from now on. */
function returned(
  { weightOf }: SlotTerms,
  shares: SlotShares = NOTHING_KNOWN,
  name: string,
  nowMs: number,
): SlotShares {
  const known = shares.groups.find((each) => each.name === name);
  if (known === undefined && shares.groups.length >= MAX_GROUPS) return shares;
  const groups = shares.groups.filter((each) => each !== known);
  const { weight = weightOf(name), denied } = known ?? {};
  return { ...shares, groups: [...groups, { name, weight, seenMs: nowMs, denied }] };
}

function stateOf(inner: unknown, shares: SlotShares | undefined): FairSlotsState | undefined {
  return inner === undefined && shares === undefined ? undefined : { inner, shares };
}

function decide(
  algorithm: AnyAlgorithm,
  { inner, slots, group, held = NOTHING_HELD }: FairSlotsConfig,
  state: FairSlotsState | undefined,
  nowMs: number,
  cost: number,
  outstanding: number,
): Decision {
  const shares = state?.shares ?? NOTHING_KNOWN;
  const decision = algorithm.decide(inner, state?.inner, nowMs, cost, outstanding);
  if (group === undefined) return withoutGroup(decision, state?.shares);
  const free = Math.max(0, slots.limit - outstanding);
  const standing = standingOf(slots, shares.groups, held.byGroup, group, nowMs);
  const estimate = (now: SlotStanding, units: number): { remaining: number; share: Share } => ({
    remaining: Math.min(decision.remaining, mostNow(now, shares, units)),
    share: {
      group,
      limit: Math.floor(now.part + SLACK),
      remaining: Math.max(0, Math.floor(now.part + SLACK) - now.held),
    },
  });
  if (decision.allowed && (cost === 0 || passes(standing, shares, free, cost))) {
    const after = cost === 0 ? state?.shares : afterGrant(shares, standing, nowMs, cost);
    const taken = { ...standing, held: standing.held + cost };
    return { ...decision, ...estimate(taken, free - cost), state: stateOf(decision.state, after) };
  }
  const passesAtMs = decision.allowed
    ? forecastOf({ inner, slots, group, held }, shares).passesAtMs(nowMs, cost, outstanding)
    : Infinity;
  const { remaining, share } = estimate(standing, free);
  const denied = {
    reason: decision.allowed ? ("quota" as const) : decision.reason,
    remaining,
    resetAfterMs: 0,
    retryAfterMs: passesAtMs === Infinity ? null : passesAtMs - nowMs,
    share: { ...share, sureAfterMs: sureAfterMs(slots, shares, held, group, nowMs, cost) },
  };
  const counted = stateOf(state?.inner, afterDenial(shares, standing, nowMs, cost)) as FairSlotsState;
  return { allowed: false, ...denied, counted: { ...denied, state: counted } };
}

/** Nobody's call: a look at the key. */
function withoutGroup(decision: AlgorithmDecision<unknown>, shares: SlotShares | undefined): Decision {
  if (decision.allowed) return { ...decision, state: stateOf(decision.state, shares) };
  const { counted: _, ...denied } = decision;
  return denied;
}

/** Holds run to their ends. What waiting calls take in it is theirs, also beyond their parts. */
function forecastOf({ slots, group, held = NOTHING_HELD }: FairSlotsConfig, shares: SlotShares): Forecast {
  const heldBy = new Map(held.byGroup);
  const groups = new Map(shares.groups.map((each) => [each.name, each]));
  const change = (of: string, units: number) => {
    const left = (heldBy.get(of) ?? 0) + units;
    if (left > 0) heldBy.set(of, left);
    else heldBy.delete(of);
  };
  let steps = 0;
  return {
    debit(uses, from, to) {
      for (let index = from; index < to; index += 1) {
        const [of, seenMs = 0] = [uses.groups?.[index], uses.endsMs[index]];
        if (of === undefined) continue;
        change(of, -(uses.units[index] ?? 0));
        groups.set(of, { ...(groups.get(of) ?? { name: of, weight: slots.weightOf(of) }), seenMs });
      }
    },
    take: (_, units, of = group) => of !== undefined && change(of, units),
    passesAtMs(fromMs, cost, outstanding) {
      if (cost === 0) return fromMs;
      const free = slots.limit - outstanding;
      if (cost > free) return Infinity;
      if (group === undefined) return fromMs;
      const ends = [...groups.values()].map(({ seenMs }) => seenMs + ACTIVE_MS + 1);
      const later = ends.filter((endMs) => endMs > fromMs).toSorted((one, other) => one - other);
      for (const atMs of [fromMs, ...later]) {
        steps += 1;
        if (steps > MAX_STEPS) return atMs;
        const standing = standingOf(slots, groups.values(), heldBy, group, atMs);
        if (passes(standing, shares, free, cost)) return atMs;
      }
      return Infinity;
    },
    // Each end of a hold may let the call pass.
    isCertain: () => false,
  };
}
