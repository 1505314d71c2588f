import type { Algorithm, AlgorithmDecision, AnyAlgorithm, Forecast, Share } from "../algorithm.ts";
import {
  ACTIVE_MS,
  afterDenial,
  afterGrant,
  type HeldByGroup,
  isOthers,
  mostNow,
  NOTHING_KNOWN,
  passes,
  returned,
  SLACK,
  type SlotShares,
  type SlotStanding,
  type SlotTerms,
  standingIn,
  standingOf,
  sureAfterMs,
} from "./slot-shares.ts";

/** `concurrency` with the shares of groups (slot-shares.ts): it decides how many units there are, these who may take them. */
interface FairSlotsConfig {
  readonly inner: object;
  readonly slots: SlotTerms;
  readonly group?: string;
  readonly held?: HeldByGroup;
}

interface FairSlotsState {
  readonly inner: unknown;
  readonly shares: SlotShares | undefined;
}

type Decision = AlgorithmDecision<FairSlotsState>;

/** A wait looks at so many instants at which a group gives units back or is forgotten. */
const MAX_STEPS = 64;
const BYTES_OF_GROUP = 128;
const NOTHING_HELD: HeldByGroup = { byGroup: new Map(), uses: { endsMs: [], units: [] } };
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
    groups: (_, state, nowMs) =>
      (state?.shares?.groups ?? []).flatMap(({ name: group, seenMs }) =>
        isOthers(group) || nowMs > seenMs + ACTIVE_MS ? [] : group,
      ),
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
    outlastsMs: (_, { shares }) => (shares?.groups.at(-1)?.seenMs ?? -Infinity) + ACTIVE_MS,
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
  const standing = standingIn(slots, shares, held.byGroup, group, nowMs);
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
