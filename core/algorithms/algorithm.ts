/**
 * An algorithm is a record of pure functions: no clock, no randomness, no I/O, no exceptions. A state is an immutable
 * value, and `pack` makes JSON of it. Absent state (`undefined`) means an untouched quota; a state is *untouched* from
 * the instant at which it equals absent state. Units are integers.
 *
 * A policy may change while its keys are in use, so `config` may differ from the one that a state was made with.
 * Consumption stays, and no change creates units.
 *
 * `outstanding` is the number of units that isolates and callers hold (core/accounts/account.ts): not in the state,
 * but not available either.
 */
export interface Algorithm<Config extends object, State> {
  /** The value of `algorithm` in a policy. Stored: never rename it. */
  readonly name: string;
  /** Present when its states are stored as those of the algorithm with this name. */
  readonly storedAs?: string;
  readonly fields: Readonly<Record<string, FieldKind>>;

  /** Present when units are leased, not used up: a hold, whose units are free when it expires. */
  readonly leasing?: Leasing<Config, State>;

  configure(fields: Fields): Config | ConfigProblem;
  /** The most units that can be admitted at once. */
  capacity(config: Config): number;
  /** Present when the limit adapts: its present value, at most `capacity`. */
  limitNow?(config: Config, state: State | undefined, nowMs: number): number;

  quota(config: Config): Quota;
  localDecisions(config: Config): LocalDecisions;

  /** The longest time until a quota with `missing` units (at most all) is untouched again, if none are outstanding. */
  refillMs(config: Config, missing: number): number;

  /** Present when the pools' script implements it (durable-objects/pool/redis/lua/): otherwise `pool` is rejected. */
  readonly isPoolable?: true | undefined;

  /** The configuration for a part (above 0, at most 1) of the quota, rounded down; `undefined`: less than one unit. */
  scale(config: Config, part: number): Config | undefined;
  /** Whether it can count so many units in its window. Present when its state knows nothing of longer ones. */
  canCount?(config: Config, units: number): boolean;

  /**
   * The configuration without a part of its rate that holders have; `undefined`: nothing would be left. Present when
   * units return at a constant rate, so that a quota may be cut into parts that together admit what it admits: each
   * has a rate and a capacity, and neither is more than the quota's in sum.
   */
  lessRate?(config: Config, rate: Rate): Config | undefined;

  /** The configuration while holders have all of its rate or, since it became smaller, more: nothing returns. */
  withoutRate?(config: Config): Config;
  /**
   * It counts units for a window, so `lessRate` leaves it as it is: what a holder's bucket may admit is held as units.
   */
  readonly isCutByWindow?: true;
  /** Present where a quota that is full can be cut into buckets at once (log/unit-log.ts). */
  readonly evenPace?: {
    /** The units that may leave the state, by `credit`, when a bucket begins for which `units` are held a window. */
    most(config: Config, state: State | undefined, nowMs: number, units: number): number;
    /** Takes `units` that a bucket may have admitted lately, at a pace of `perWindow`, which it gives up. */
    debit(config: Config, state: State | undefined, nowMs: number, given: GivenUp): State | undefined;
  };

  /** Decides on `cost` units; 0 takes nothing. A denial has a state (`counted`) only with `countDenied`. */
  decide(
    config: Config,
    state: State | undefined,
    nowMs: number,
    cost: number,
    outstanding: number,
  ): AlgorithmDecision<State>;

  /** The state after an admitted call whose units are only held. Absent: unchanged, as without `minInterval`. */
  noteHold?(config: Config, state: State | undefined, nowMs: number): State | undefined;
  /**
   * Takes `units` without a decision, even if more than all units are used then. Of units that were held, `capacity` is
   * the largest that their quota has had meanwhile: they leave no debt if it shrank, as if they had been used before.
   */
  debit(
    config: Config,
    state: State | undefined,
    nowMs: number,
    units: number,
    capacity?: number,
  ): State | undefined;

  /** The maximum that `debit` can take now and count exactly. Absent: any cost that a call may have. */
  maxDebit?(config: Config, state: State | undefined, nowMs: number): number;

  /**
   * Returns `units`, at most up to an untouched quota: a refund never creates units. Of units known to be taken at
   * `atMs`, those that time has returned since are not returned. If no unit is returned twice, or under another quota,
   * the units taken in any interval and not returned keep to the bound.
   * `capacity` is that of their quota, and `returned` what time has returned, in parts as `refilled` has it.
   */
  credit(
    config: Config,
    state: State | undefined,
    nowMs: number,
    units: number,
    ...charge: readonly [atMs?: number, capacity?: number, returned?: number]
  ): State | undefined;

  /** When the state, after these uses, equals absent state if no call comes; -Infinity: it is absent. */
  untouchedAtMs(config: Config, state: State | undefined, uses?: Uses): number;
  /** When all units are back. Present when that is another instant (credits.ts, windows/several-windows.ts). */
  fullAtMs?(config: Config, state: State | undefined, nowMs: number, uses?: Uses): number;

  /** Simulates future uses of held units, without a change of the state. @param isQueue calls are served one after another */
  forecast(config: Config, state: State | undefined, isQueue?: boolean): Forecast;

  /**
   * Whether storage needs no write: from `nowMs` on, `stored` (`undefined`: no record) with `ahead` units held, as
   * after a crash, offers no more than `state` with `outstanding` units held, without those of stored holds. If the
   * clock was set back, `nowMs` may be before the instant in a state.
   */
  covers(
    config: Config,
    stored: unknown,
    ahead: number,
    state: State | undefined,
    outstanding: number,
    nowMs: number,
  ): boolean;

  /** The state as stored: a record, written each time, and segments, each written once. `before`: the last record. */
  pack(config: Config, state: State, nowMs: number, before: unknown): PackedState;

  unpack(config: Config, record: unknown, segments: readonly Segment[]): State;
  /** The maximum number of units in a record under any configuration: another algorithm starts from that. */
  used(record: unknown): number;

  /** Present when denials block the key for a while (penalty.ts). */
  readonly hasPenalty?: true;
  /** Present when its units come back all at once, at the end of a window: then a notice is for a window (core/accounts/notices.ts). */
  readonly hasWindows?: true;
  /** What time has returned: a refund knows by it what has come back since its charge, also at other plans' rates. */
  refilled?(config: Config, state: State | undefined, nowMs: number): Refilled | undefined;

  /** Present when groups share the quota (fair/): a call says its group. */
  readonly isFair?: true;

  /** The most that the group of the configuration may owe and never be denied for others, and what its holds have of it. */
  partOfGroup?(config: Config, state: State | undefined, nowMs: number): PartOfGroup;

  /** Its active groups, those that owe most first. */
  groups?(config: Config, state: State | undefined, nowMs: number): readonly string[];

  /** Until when a state is needed that is otherwise untouched: groups are active for a while, or a larger plan has used more. */
  outlastsMs?(config: Config, state: State): number;

  /** Present for a region's share of a pool: remaining units are the pool's, and none are stored here. */
  readonly isShare?: true;

  /** Present when time returns no units: memory is never ahead of storage, since a crash would lose them. */
  readonly neverRefills?: true;

  /** Present when it needs no state: isolates decide, and nothing is stored. */
  readonly isStateless?: true;

  /** Present when it denies every cost by a limit of 0: isolates decide. */
  readonly isClosed?: true;

  /** The memory of a state. Present when it can be large. */
  bytes?(state: State): number;
}

/** What time has returned to a quota since it was last whole, at `sinceMs`. Stored: never rename a field. */
export interface Refilled {
  readonly sinceMs: number;
  /** In parts of a unit, so that none is rounded. */
  readonly parts: number;
  readonly perUnit: number;
}

export type PartOfGroup = Readonly<Record<"part" | "held", number>>;

export type GivenUp = { readonly units: number; readonly perWindow: number };
/** A part of the rate of a quota. `isHeld`: what comes in a window is among the held units (`isCutByWindow`). */
export interface Rate {
  readonly isHeld?: true;
  readonly units: number;
  readonly windowMs: number;
}

/** What an isolate may decide with reserved units, without the rule's state. */
export interface LocalDecisions {
  /** It may spend units and report them later. False where the instant of each call counts. */
  readonly admits: boolean;
  /** It may repeat a denial, which changes nothing. */
  readonly denies: boolean;
}

export interface Leasing<Config extends object, State> {
  terms(config: Config): LeaseTerms;
  fencingToken(state: State): number;
  /** The state of a key whose latest lease had this token under another algorithm. */
  resumed(fencingToken: number): State;
  reclaimed(state: State): number;
  /** Whether holders may have slots, and lease them by themselves. */
  isRelaxed?(config: Config): boolean;
  /** Takes the next fencing tokens for as many leases. */
  tokens?(
    state: State | undefined,
    nowMs: number,
    count: number,
  ): { readonly from: number; readonly state: State };
  /** Present when the algorithm learns from the reports of released leases. */
  released?(config: Config, state: State | undefined, nowMs: number, ended: EndedLease): State | undefined;
}

/** `dropped`: the upstream timed out or refused. `ignore`: the outcome is not about the upstream. */
export type Outcome = "ok" | "ignore" | "dropped";

interface EndedLease {
  readonly outcome: Outcome;
  /** 0 or more, possibly with a fraction. */
  readonly durationMs: number;
  /** Units that were leased until then, its own included. */
  readonly inFlight: number;
}

export interface Waiting {
  readonly maxWaitMs: number;
  readonly maxWaiters: number;
}

export interface LeaseTerms extends Waiting {
  /** The default duration of a lease, and the maximum that a caller may request. */
  readonly ttlMs: number;
  readonly maxTtlMs: number;
}

/** An algorithm with opaque types: a rule pairs a configuration with the algorithm that made it. */
export type AnyAlgorithm = Algorithm<object, unknown>;

export interface Quota {
  readonly units: number;
  /** Absent: the limit is for units held at once, however long. */
  readonly windowMs?: number;
}

/** `shed`: units are kept for more important calls. `blocked`: an earlier denial blocked the key for a while. */
export const DENIAL_REASONS = ["quota", "min-interval", "cost-over-limit", "shed", "blocked"] as const;
export type DenialReason = (typeof DENIAL_REASONS)[number];

interface QuotaEstimate {
  /** The largest cost that would be admitted right after this decision. */
  readonly remaining: number;
  /** Units of the quota that remain, where they may exceed `remaining`: between two calls (`minInterval`). */
  readonly quotaRemaining?: number;
  /** Milliseconds until the quota is untouched if no call comes and no outstanding unit is used. */
  readonly resetAfterMs: number;
  /** The part of the call's group, where groups share the quota. */
  readonly share?: Share;
}

/** A group's part of a quota that groups share. */
export interface Share {
  readonly group: string;
  /** Units in a window of the rule, or held at once, while the active groups stay the same. */
  readonly limit: number;
  /** How many of them it may take now, whatever other groups do; of slots: as soon as they are free. */
  readonly remaining: number;
  /** Of a denial: the wait for this cost whatever other active groups do; `null`: it is larger than the part. */
  readonly sureAfterMs?: number | null;
}

export interface Allowed<State> extends QuotaEstimate {
  readonly allowed: true;
  /** How long the caller should wait before it proceeds, 1 or more; absent: not at all. */
  readonly delayMs?: number;
  readonly state: State | undefined;
}

interface Denied<State = unknown> extends Denial {
  readonly allowed: false;
  /** Present when this denial counts: the state with it, and the estimate for that state. */
  readonly counted?: Denial & { readonly state: State };
}

export interface Denial extends QuotaEstimate {
  readonly reason: DenialReason;
  /** The exact wait for this cost, while `outstanding` does not change; `null`: never. */
  readonly retryAfterMs: number | null;
}

export type AlgorithmDecision<State> = Allowed<State> | Denied<State>;

/**
 * `units`: a positive integer; `count`: also 0. `integer`: positive too, but no units, so that overrides do not multiply
 * it. `duration`: integer milliseconds, 1 or more. `period`: a duration, or a word of calendar.ts. `text`: not empty.
 * `ratio`: above 0. `?`: optional. A list: one of these words, or absent.
 */
export type FieldKind =
  | "units"
  | "units?"
  | "count?"
  | "integer?"
  | "duration"
  | "duration?"
  | "period"
  | "boolean?"
  | "text?"
  | "ratio?"
  | readonly string[];

export type Fields = Readonly<Record<string, number | boolean | string | undefined>>;

export interface ConfigProblem {
  readonly problem: { readonly field: string; readonly allowed: string };
}

export function configProblem(field: string, allowed: string): ConfigProblem {
  return { problem: { field, allowed } };
}

/** A simulated state, without a new state for each of thousands of uses. Instants never go back. */
export interface Forecast {
  debit(uses: Uses, from: number, to: number): void;
  /** Takes units, 1 or more, that are admitted at `atMs`. @param group whose they are; absent: the configuration's */
  take(atMs: number, units: number, group?: string): void;
  /**
   * The first instant, `atMs` or later, when a cost is admitted with this `outstanding`; Infinity: never.
   * @param group whose call it is; absent: the configuration's
   */
  passesAtMs(atMs: number, cost: number, outstanding: number, group?: string): number;
  /** False when `passesAtMs` may be wrong: a debt is too large to be counted, or the clock was set back. */
  isCertain(atMs: number, outstanding: number): boolean;
}

/** Units that will be used, in two columns, in the order of their instants. */
export interface Uses {
  readonly endsMs: readonly number[];
  readonly units: readonly number[];
  /** Whose they are, where groups share the quota. */
  readonly groups?: readonly (string | undefined)[] | undefined;
  /** The largest that their quota has had while they were held, as `debit` takes it. Absent: that of now. */
  readonly capacity?: number;
}

export interface PackedState {
  /** JSON. */
  readonly record: unknown;
  readonly segment?: NewSegment;
}

/** A part of a state that does not change any more. `log` identifies the state: after a pause a key begins a new one. */
export interface Segment {
  readonly log: number;
  readonly from: number;
  readonly entries: ArrayLike<number>;
}

/** A segment to write. Stored segments of another `log`, and those that end too early, may be deleted then. */
export interface NewSegment extends Segment {
  readonly toMs: number;
  /** Stored segments whose `toMs` is earlier are no longer needed. */
  readonly keepFromMs: number;
}

/** The maximum of a limit, a burst or a cost. */
export const MAX_UNITS = 1_000_000_000;

export function scaleLimit<Config extends { readonly limit: number }>(
  config: Config,
  part: number,
): Config | undefined {
  const limit = Math.floor(config.limit * part);
  return limit < 1 ? undefined : { ...config, limit };
}
