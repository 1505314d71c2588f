import {
  type Algorithm,
  type AlgorithmDecision,
  type AnyAlgorithm,
  configProblem,
  type ConfigProblem,
  type Forecast,
  type PartOfGroup,
  type Share,
} from "../algorithm.ts";
import { bucketShares, CUT } from "./fair-shares.ts";
import { withSlotShares } from "./fair-slots.ts";
import { isOfOthers } from "./fair-weights.ts";
import type { HeldByGroup, HeldByName } from "./slot-shares.ts";
import {
  activeUntilMs,
  isWithin,
  ownMs,
  type Shares,
  shareOf,
  type ShareTerms,
  type Sharing,
  type Standing,
  standingOf,
} from "./standing.ts";
import { type PackedShares, packShares, plain, unpackShares } from "./stored-shares.ts";
import { termsOfWindow, windowShares } from "./window-shares.ts";

/**
 * Fair: the groups of a key share its quota (fair-shares.ts). It is not an algorithm of its own, but wraps one that counts
 * a rate. That one decides how many units there are, exactly as alone; the shares decide who may take them. Units that
 * are held at once are shared in another way (slot-shares.ts).
 *
 * The units of a log or a window do not come back evenly, so it has shares of another kind (window-shares.ts).
 *
 * Example: 100 a second under a token bucket, two groups of equal weight. A flood of one of them takes 50 a second while
 * the other one takes 50, and 80 while that one takes 20.
 *
 * The bound and its worst boundary are those of the algorithm. What it is bad at: see fair-shares.ts.
 */
interface FairConfig {
  readonly inner: object;
  readonly terms: ShareTerms;
  readonly sharing: Sharing;
  readonly windowMs: number;
  /** Whose call it is. Absent: nobody's, which no share decides. */
  readonly group?: string;
  /** The caller that names it. */
  readonly namedBy?: string;
  /** What the holds of each group have. */
  readonly held?: HeldByName;
}

interface FairState {
  readonly inner: unknown;
  readonly shares: Shares | undefined;
}

type Decision = AlgorithmDecision<FairState>;

/** Of a longer window of a log, a third at once would be little for a long time. */
const MAX_WINDOW_MS = 60_000;
/** Of fewer units those of others leave no reserve that protects a group (window-shares.ts). */
const MIN_LIMIT = 50;

export const FAIR_ALGORITHMS = [
  "token-bucket",
  "gcra",
  "sliding-log",
  "fixed-window",
  "sliding-window-counter",
  "concurrency",
] as const;

export function canBeFair({ name }: AnyAlgorithm): boolean {
  return FAIR_ALGORITHMS.some((each) => each === name);
}

/** An algorithm and its configuration with shares. @param weightOf the weight of a group, above 0 */
export function fairly(
  algorithm: AnyAlgorithm,
  config: object,
  weightOf: (group: string) => number,
): { readonly algorithm: AnyAlgorithm; readonly config: object } | ConfigProblem {
  const { units, windowMs = 0 } = algorithm.quota(config);
  if (!canBeFair(algorithm) || units === 0)
    return configProblem(
      "fair",
      `left out, or with one of ${FAIR_ALGORITHMS.join(", ")} and a limit above 0`,
    );
  const { burst, countDenied } = config as { readonly burst?: number; readonly countDenied?: boolean };
  if (countDenied === true) return configProblem("fair", "left out with countDenied");
  if (algorithm.leasing !== undefined) return withSlotShares(algorithm, config, weightOf);
  if (burst === undefined) return behindWindow(algorithm, config, weightOf);
  const terms: ShareTerms = { rate: units / windowMs, burst, cut: CUT, perUnit: 1, weightOf };
  return {
    algorithm: withShares(algorithm),
    config: { inner: config, terms, sharing: bucketShares, windowMs } satisfies FairConfig,
  };
}

function behindWindow(algorithm: AnyAlgorithm, config: object, weightOf: ShareTerms["weightOf"]) {
  const { units, windowMs = 0 } = algorithm.quota(config);
  const orBucket = 'or with algorithm "token-bucket"';
  if (windowMs > MAX_WINDOW_MS)
    return configProblem("fair", `left out with a window over ${MAX_WINDOW_MS / 1_000} s, ${orBucket}`);
  if (units < MIN_LIMIT)
    return configProblem(
      "limit",
      `at least ${MIN_LIMIT} with fair and algorithm "${algorithm.name}", ${orBucket}`,
    );
  const terms = termsOfWindow(units, windowMs, weightOf);
  return {
    algorithm: withShares(algorithm),
    config: { inner: config, terms, sharing: windowShares, windowMs } satisfies FairConfig,
  };
}

/** The configuration for calls of a group. Of a rule without shares it is unchanged. */
export function inGroup(config: object, group: string | undefined, namedBy?: string): object {
  const isShared = "terms" in config || "slots" in config;
  return group === undefined || !isShared ? config : { ...config, group, namedBy };
}

/** The configuration with what holds have. */
export function withHeld(config: object, held: HeldByGroup): object {
  return { ...config, held: "slots" in config ? held : held.byGroup };
}

function marksOf({ storedAs, hasWindows }: AnyAlgorithm) {
  return {
    ...(storedAs !== undefined && { storedAs }),
    ...(hasWindows && { hasWindows }),
  };
}

function withShares(algorithm: AnyAlgorithm): Algorithm<FairConfig, FairState> {
  const { name, fields } = algorithm;
  return {
    name,
    fields,
    ...marksOf(algorithm),
    isFair: true,
    groups: activeGroups,
    configure: () => configProblem("fair", "beside an algorithm"),
    capacity: ({ inner }) => algorithm.capacity(inner),
    quota: ({ inner }) => algorithm.quota(inner),
    localDecisions: ({ inner, sharing }) => {
      const { admits, denies } = algorithm.localDecisions(inner);
      // A log or window counts units later than isolates use them: it would deny, and not the shares.
      return { admits: admits && sharing === bucketShares, denies };
    },
    partOfGroup,
    refillMs: ({ inner }, missing) => algorithm.refillMs(inner, missing),
    scale: () => undefined,
    decide: (config, state, nowMs, cost, outstanding) =>
      decide(algorithm, config, state, nowMs, cost, outstanding),
    ...(algorithm.noteHold && {
      noteHold: ({ inner }, state, nowMs) =>
        stateOf(algorithm.noteHold?.(inner, state?.inner, nowMs), state?.shares),
    }),
    debit: (config, state, nowMs, units, capacity) => {
      const inner = algorithm.debit(config.inner, state?.inner, nowMs, units, capacity);
      return stateOf(inner, taken(config, state?.shares, nowMs, units, capacity));
    },
    ...(algorithm.maxDebit && {
      maxDebit: ({ inner }, state, nowMs) => algorithm.maxDebit?.(inner, state?.inner, nowMs) ?? Infinity,
    }),
    credit: (config, state, nowMs, units, ...charge) => {
      const inner = algorithm.credit(config.inner, state?.inner, nowMs, units, ...charge);
      return stateOf(inner, taken(config, state?.shares, nowMs, -units));
    },
    untouchedAtMs: ({ inner }, state, uses) => algorithm.untouchedAtMs(inner, state?.inner, uses),
    refilled: ({ inner }, state, nowMs) => algorithm.refilled?.(inner, state?.inner, nowMs),
    outlastsMs: (...of) => lastsUntilMs(algorithm, ...of),
    forecast: (config, state, isQueue) => forecastOf(algorithm, config, state, isQueue),
    covers: (config, stored, ahead, state, outstanding, nowMs) =>
      algorithm.covers(config.inner, plain(stored), ahead, state?.inner, outstanding, nowMs),
    pack({ inner: config }, { inner, shares }, nowMs, before) {
      if (inner === undefined) return { record: undefined };
      const packed = algorithm.pack(config, inner, nowMs, plain(before));
      if (shares === undefined) return packed;
      return { ...packed, record: { ...(packed.record as object), fair: packShares(shares) } };
    },
    unpack({ inner: config, terms }, record, segments) {
      const { fair } = record as { readonly fair?: PackedShares };
      return {
        inner: algorithm.unpack(config, plain(record), segments),
        shares: fair && unpackShares(terms, fair),
      };
    },
    used: (record) => algorithm.used(record),
    bytes: ({ inner, shares }) =>
      BYTES_OF_GROUP * (shares?.groups.length ?? 0) +
      (inner === undefined ? 0 : (algorithm.bytes?.(inner) ?? 0)),
  };
}

function lastsUntilMs(algorithm: AnyAlgorithm, config: FairConfig, { shares, inner }: FairState): number {
  const innerMs = inner === undefined ? undefined : algorithm.outlastsMs?.(config.inner, inner);
  return Math.max(shares === undefined ? -Infinity : activeUntilMs(shares), innerMs ?? -Infinity);
}

const BYTES_OF_GROUP = 256;

function partOfGroup(config: FairConfig, state: FairState | undefined, nowMs: number): PartOfGroup {
  return config.group === undefined ? { part: 0, held: 0 } : standingAt(config, state?.shares, nowMs, 0);
}

function activeGroups({ terms, sharing }: FairConfig, state: FairState | undefined, nowMs: number): string[] {
  const { groups } = sharing.paidTo(terms, state?.shares, nowMs);
  return groups.flatMap(({ name }) => (isOfOthers(name) ? [] : name)).toReversed();
}

function stateOf(inner: unknown, shares: Shares | undefined): FairState | undefined {
  const isEmpty = shares === undefined || shares.groups.length === 0;
  return inner === undefined && isEmpty ? undefined : { inner, shares };
}

function taken(config: FairConfig, shares: Shares | undefined, nowMs: number, units: number, capacity = 0) {
  if (config.group === undefined || units === 0) return shares;
  return config.sharing.withTaken(standingAt(config, shares, nowMs, 0, 0), units, capacity);
}

function standingAt(
  { terms, sharing, group = "", namedBy, held: heldBy }: FairConfig,
  shares: Shares | undefined,
  atMs: number,
  outstanding: number,
  held = heldBy?.get(group),
): Standing {
  return standingOf(terms, sharing.paidTo(terms, shares, atMs), group, held, outstanding, namedBy);
}

function decide(
  algorithm: AnyAlgorithm,
  config: FairConfig,
  state: FairState | undefined,
  nowMs: number,
  cost: number,
  outstanding: number,
): Decision {
  const { inner, terms, sharing, windowMs, group, namedBy } = config;
  const { shares: before } = state ?? {};
  const decideInner = (units: number, reserved = 0) =>
    algorithm.decide(inner, state?.inner, nowMs, units, outstanding + reserved);
  if (group === undefined) return withoutGroup(decideInner(cost), before);
  const standing = standingAt(config, before, nowMs, outstanding);
  const reserved = cost === 0 ? 0 : sharing.reserve(standing, cost);
  const decision = decideInner(cost, reserved);
  if (decision.allowed && (cost === 0 || sharing.passes(standing, cost))) {
    const shares = cost === 0 ? standing.shares : sharing.withTaken(standing, cost);
    const after = standingOf(terms, shares, group, standing.held, outstanding, namedBy);
    const left = sharing.mostNow(after, decision.remaining + reserved);
    return {
      ...decision,
      state: stateOf(decision.state, cost === 0 ? before : shares),
      remaining: left,
      share: { group, ...shareOf(after, windowMs, left) },
    };
  }
  const { remaining: free, resetAfterMs } = decision.allowed || reserved > 0 ? decideInner(0) : decision;
  const remaining = sharing.mostNow(standing, free);
  const passesAtMs = sharing.passesAtMs(standing, cost, (units) => {
    const said = units === reserved ? decision : decideInner(cost, units);
    return said.allowed ? nowMs : nowMs + (said.retryAfterMs ?? Infinity);
  });
  const retryAfterMs = passesAtMs === Infinity ? null : passesAtMs - nowMs;
  // Units may be short although the share has them.
  const sureMs = retryAfterMs === null ? null : sharing.sureAfterMs(standing, cost);
  return {
    allowed: false,
    reason: decision.allowed ? "quota" : decision.reason,
    remaining,
    resetAfterMs,
    retryAfterMs,
    share: {
      group,
      ...shareOf(standing, windowMs, remaining),
      sureAfterMs: sureMs === null ? null : Math.max(sureMs, retryAfterMs ?? 0),
    },
  };
}

/** Nobody's call: a look at the key, or units that are taken whatever is there. */
function withoutGroup(decision: AlgorithmDecision<unknown>, shares: Shares | undefined): Decision {
  if (decision.allowed) return { ...decision, state: stateOf(decision.state, shares) };
  const { counted: _, ...denied } = decision;
  return denied;
}

/** In a queue a wait asks the shares anew at so many ends of holds; beyond them it is a lower bound. */
const MAX_ENDS = 64;

/**
 * The algorithm says when there are units, and the shares are asked of that instant. Groups owe then what their calls have
 * taken until it, and in a queue what their holds have taken as they ended: there a call that passes too soon may delay
 * those behind it. For a call alone a wait is as if what is held could come back: a lower bound.
 */
function forecastOf(of: AnyAlgorithm, config: FairConfig, state?: FairState, isQueue = false): Forecast {
  const inner = of.forecast(config.inner, state?.inner);
  const { namedBy: _, ...unnamed } = config;
  const seenBy = (group: string) => (group === config.group ? config : { ...unnamed, group });
  let shares = state?.shares;
  const endedUnits = new Map<string, number>();
  let [endsLeft, nextEndMs] = [isQueue ? MAX_ENDS : 0, Infinity];
  return {
    debit(uses, from, to) {
      inner.debit(uses, from, to);
      nextEndMs = uses.endsMs[to] ?? Infinity;
      if (to > from) endsLeft -= 1;
      for (let index = from; index < to; index += 1) {
        const [group, units = 0, endMs = 0] = [uses.groups?.[index], uses.units[index], uses.endsMs[index]];
        if (group === undefined) continue;
        endedUnits.set(group, (endedUnits.get(group) ?? 0) + units);
        if (isQueue) shares = taken({ ...unnamed, group }, shares, endMs, units, uses.capacity);
      }
    },
    take(atMs, units, group = config.group) {
      inner.take(atMs, units);
      if (group !== undefined) shares = taken(seenBy(group), shares, atMs, units);
    },
    passesAtMs(atMs, cost, outstanding, group = config.group) {
      const unitsAtMs = (reserved: number) => inner.passesAtMs(atMs, cost, outstanding + reserved);
      if (cost === 0 || group === undefined) return unitsAtMs(0);
      const held = (config.held?.get(group) ?? 0) - (endedUnits.get(group) ?? 0);
      const standing = standingAt(seenBy(group), shares, atMs, outstanding, held);
      return config.sharing.passesAtMs(standing, cost, unitsAtMs, endsLeft > 0 ? nextEndMs : undefined);
    },
    isCertain: (atMs, outstanding) => endsLeft <= 0 && inner.isCertain(atMs, outstanding),
  };
}

/* Calls that wait (core/accounts/rate-line.ts). */

/** A call that waits, among the groups that share a rule's rate. */
export interface Turn {
  /** Its group's share lets it pass now and later: it is no burst, which has an end. */
  readonly isFirm: boolean;
  readonly isWithin: boolean;
  /** It passes sooner if another group is admitted more. */
  readonly isYielding: boolean;
  /** What its group owes, of its part. */
  readonly level: number;
  /** Milliseconds in which the rate of its group's part brings its cost. */
  readonly ownMs: number;
}

/** Of a part: less is from rounding. */
const NOTHING = 1e-9;

/** The weights of the groups that share the rate of a rule with this configuration; `undefined`: they do not. */
export function rateWeightsOf(config: object): ShareTerms["weightOf"] | undefined {
  return "terms" in config ? (config as FairConfig).terms.weightOf : undefined;
}

/** The turns of calls at an instant under such a rule. */
export function turnsAt(
  config: object,
  state: unknown,
  heldBy: HeldByName,
  outstanding: number,
  nowMs: number,
): (group: string, namedBy: string | undefined, cost: number) => Turn {
  const { terms, sharing } = config as FairConfig;
  // Once for all groups: it takes as long as a decision.
  const shares = sharing.paidTo(terms, (state as FairState | undefined)?.shares, nowMs);
  return (group, namedBy, cost) => {
    const standing = standingOf(terms, shares, group, heldBy.get(group), outstanding, namedBy);
    const level = standing.owes / standing.part;
    const within = isWithin(standing, cost);
    return {
      isFirm: (within || level <= NOTHING) && sharing.passes(standing, cost),
      isWithin: within,
      isYielding: sharing.yields(standing, cost),
      level,
      ownMs: ownMs(standing, cost),
    };
  };
}

/** The part of a call's group when others of its group are served before it. @param ahead their costs */
export function shareBehind(
  config: object,
  state: unknown,
  nowMs: number,
  cost: number,
  ahead: readonly number[],
): Share | undefined {
  const fair = config as FairConfig;
  if (rateWeightsOf(config) === undefined || fair.group === undefined) return undefined;
  const units = ahead.reduce((sum, each) => sum + each, 0);
  const shares = taken(fair, (state as FairState | undefined)?.shares, nowMs, units);
  const standing = standingAt(fair, shares, nowMs, 0);
  const isLarge = ahead.some((each) => fair.sharing.sureAfterMs(standing, each) === null);
  const sureMs = isLarge ? null : fair.sharing.sureAfterMs(standing, cost);
  return { group: fair.group, ...shareOf(standing, fair.windowMs), sureAfterMs: sureMs };
}
