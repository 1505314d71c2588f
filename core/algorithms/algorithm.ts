/**
 * What every algorithm is: a record of pure functions. They read no clock, use no randomness, do no I/O and never
 * throw. Time is an argument. A state is a value that never changes, and `pack` makes JSON of it. Absent state
 * (`undefined`) means an untouched quota. A state is *whole* from the instant at which it equals absent state. Units
 * are whole numbers.
 *
 * A policy may change while its keys are in use. So `config` may be another than the one that a state was made with.
 * What was consumed stays consumed then, and no change creates units.
 *
 * `outstanding` is how many units isolates and callers hold (core/accounts/account.ts). They are not in the state,
 * but they cannot be given out either.
 */
export interface Algorithm<Config extends object, State> {
  /** The value of `algorithm` in a policy. It is kept in storage: never rename it. */
  readonly name: string;

  /** Present when its states are those of the algorithm with this name, and are stored as such. */
  readonly storedAs?: string;

  /** The fields that a policy gives it, by name: each one's kind of value, and whether it may be left out. */
  readonly fields: Readonly<Record<string, FieldKind>>;

  /**
   * Present when units are not used up, but occupied until they are given back. Such an algorithm only says whether
   * there is room. Units that are taken are always a hold (core/accounts/account.ts), and are free when it expires.
   */
  readonly leasing?: Leasing<Config, State>;

  /** Turns the parsed fields into a configuration, or says which field has a value that is not allowed. */
  configure(fields: Fields): Config | ConfigProblem;

  /** The most units that can be admitted at once. */
  capacity(config: Config): number;

  /** Present when that changes with what the algorithm learns: what it is now, at most `capacity`. */
  limitNow?(config: Config, state: State | undefined, nowMs: number): number;

  /** The quota as the RateLimit-Policy header says it: `units` per `windowMs`. */
  quota(config: Config): Quota;

  /** What an isolate may decide without the state. */
  localDecisions(config: Config): LocalDecisions;

  /**
   * The longest time in milliseconds until a quota is whole of which so many units are missing, at most all of them,
   * when none are outstanding.
   */
  wholeFromMs(config: Config, missing: number): number;

  /** Present when the script of pools knows it too (durable-objects/pool/redis/lua/): only then `pool` is allowed. */
  readonly isPoolable?: true | undefined;

  /** The configuration for a part (above 0, at most 1) of the quota, rounded down; `undefined`: not one unit. */
  scale(config: Config, part: number): Config | undefined;

  /**
   * Decides on `cost` units; a cost of 0 takes nothing. A denial changes nothing, unless the configuration counts
   * denied calls (`countDenied`). Only then the denial carries a state, in `counted`.
   */
  decide(
    config: Config,
    state: State | undefined,
    nowMs: number,
    cost: number,
    outstanding: number,
  ): AlgorithmDecision<State>;

  /**
   * The state after a call was admitted whose units are only held. It is `state` itself, unless the algorithm also
   * limits the time between calls (`minInterval`): then the instant of the call has to be in the state.
   */
  noteHold(config: Config, state: State | undefined, nowMs: number): State | undefined;

  /** Takes `units` without a decision; fewer than 0 may be left then. */
  debit(config: Config, state: State | undefined, nowMs: number, units: number): State | undefined;

  /** The most units that `debit` can take now and count exactly. Absent: as many as a call may name. */
  mostDebit?(config: Config, state: State | undefined, nowMs: number): number;

  /** Gives `units` back, at most up to an untouched quota: a refund never creates units. */
  credit(config: Config, state: State | undefined, nowMs: number, units: number): State | undefined;

  /**
   * Gives back units that were taken at `atMs`, at most those that time has not given back since. If no unit is given
   * back twice, or under another quota, then the units taken in any interval and not given back keep to the bound.
   */
  uncharge(
    config: Config,
    state: State | undefined,
    nowMs: number,
    units: number,
    atMs: number,
  ): typeof state;

  /** From when on the state, after these uses, equals absent state if no call comes before; -Infinity: it is absent. */
  wholeAtMs(config: Config, state: State | undefined, uses?: Uses): number;

  /** The state as it will be when units are used that are only held now. The state itself does not change. */
  forecast(config: Config, state: State | undefined): Forecast;

  /**
   * Whether storage may be left as it is: from `nowMs` on, `stored` with `ahead` units held offers no more than
   * `state` with `outstanding` units held. `stored` is a record that `pack` made; `undefined`: storage has none.
   * Units of holds that are in storage themselves do not count as outstanding here. After a crash `ahead` units stay
   * held. A clock that was put back may make `nowMs` earlier than the instant in a state.
   */
  covers(
    config: Config,
    stored: unknown,
    ahead: number,
    state: State | undefined,
    outstanding: number,
    nowMs: number,
  ): boolean;

  /**
   * The state as storage keeps it: a record, which is written each time. A state that grows has segments too: now and
   * then `pack` makes one, which is written once and stays. `before` is the record that was written last, if any.
   */
  pack(config: Config, state: State, nowMs: number, before: unknown): PackedState;

  /** The state that a record and all stored segments of the rule stand for. */
  unpack(config: Config, record: unknown, segments: readonly Segment[]): State;

  /** The most units that a record may count, whatever its configuration was: another algorithm goes on from that. */
  used(record: unknown): number;
  /** Present when denials block the key for a while: its records may have a block in them (penalty.ts). */
  readonly isPenal?: true;
  /** Present when the state is a region's share of a pool: figures are the pool's, and no units are stored here. */
  readonly isShare?: true;

  /** Present when no time gives units back: memory is never ahead of storage then, since a crash would cost them. */
  readonly isLasting?: true;

  /** Present when it decides without a state: an isolate decides alone, and nothing is stored. */
  readonly isStateless?: true;

  /** Bytes of memory that a state takes. Present when a state can be large. */
  bytes?(state: State): number;
}

/** What an isolate may decide that has reserved units of a rule, but does not have the rule's state. */
export interface LocalDecisions {
  /**
   * It may spend units one by one and report them later. Units that it holds are outstanding until they are debited, so
   * a debit that comes late only admits less (core/accounts/account.ts). Not so where the instant of each call counts.
   */
  readonly admits: boolean;
  /** It may repeat a denial: a denial changes nothing. */
  readonly denies: boolean;
}

/** What an algorithm knows of leases. */
export interface Leasing<Config extends object, State> {
  terms(config: Config): LeaseTerms;
  /** The fencing token of the latest lease, and the state of a key whose latest lease had it under another algorithm. */
  fencingToken(state: State): number;
  resumed(fencingToken: number): State;
  /** How many leases expired and were not released. */
  reclaimed(state: State): number;
  /** Present when the algorithm learns from what the holder of a lease reports at its end: the state after that. */
  released?(config: Config, state: State | undefined, nowMs: number, ended: EndedLease): State | undefined;
}

/**
 * How a call went for which units were leased. `dropped`: the upstream was overloaded, so it did not answer in time or
 * refused. `ignore`: it says nothing of the upstream.
 */
export type Outcome = "ok" | "ignore" | "dropped";

/** A lease that its holder has ended. */
interface EndedLease {
  readonly outcome: Outcome;
  /** How long the call took, in milliseconds, 0 or more; it need not be a whole number. */
  readonly durationMs: number;
  /** Units that were leased until then, its own included. */
  readonly inFlight: number;
}

/** The longest a caller may wait in the queue of a key, and the most callers in it. */
export interface Waiting {
  readonly maxWaitMs: number;
  readonly maxWaiters: number;
}

/** The terms on which a rule gives leases. */
export interface LeaseTerms extends Waiting {
  /** How long a lease lasts unless the caller says otherwise, and the most that the caller may ask for. */
  readonly ttlMs: number;
  readonly maxTtlMs: number;
}

/**
 * An algorithm whose configuration and state have types that its user need not know. That is safe: a rule pairs a
 * configuration with the algorithm that made it, and a stored state carries its algorithm's name.
 */
export type AnyAlgorithm = Algorithm<object, unknown>;

/** A quota in figures: `units` per window. */
export interface Quota {
  readonly units: number;
  /** Absent: the quota is so many units at once, for any length of time. */
  readonly windowMs?: number;
}

/** What an algorithm says of a cost. */

/**
 * Why a cost is denied: too few units are left, the last call was too recent, or the cost can never pass. `shed`: the
 * units that are left are kept for more important calls. `blocked`: an earlier denial blocked the key for a while.
 */
export type DenialReason = "quota" | "min-interval" | "cost-over-limit" | "shed" | "blocked";

interface Figures {
  /** The largest cost that would pass right after this decision, 0 or more. */
  readonly remaining: number;
  /** Units that are left of the quota. Present where they may be more than `remaining`: between two calls (`minInterval`). */
  readonly quotaRemaining?: number;
  /** Milliseconds until the quota is whole if no call comes and no outstanding unit is used. */
  readonly resetAfterMs: number;
}

export interface Allowed<State> extends Figures {
  readonly allowed: true;
  /** How long the caller should wait before it goes on, in milliseconds, 1 or more; absent: it goes on at once. */
  readonly delayMs?: number;
  /** The next state; `undefined`: as untouched. */
  readonly state: State | undefined;
}

interface Denied<State = unknown> extends Denial {
  readonly allowed: false;
  /** Present when this denial counts: the state with it, and the figures of that state. */
  readonly counted?: Denial & { readonly state: State };
}

export interface Denial extends Figures {
  readonly reason: DenialReason;
  /**
   * The exact wait for this cost in milliseconds, while `outstanding` stays as it is: one millisecond earlier is
   * denied. `null`: no wait is long enough.
   */
  readonly retryAfterMs: number | null;
}

export type AlgorithmDecision<State> = Allowed<State> | Denied<State>;

/** The fields that a policy gives an algorithm. */

/**
 * `units`: a positive integer; `count`: also 0. `duration`: whole milliseconds, 1 or more. `period`: a duration, or a
 * word of calendar.ts. `text`: not empty. `ratio`: a number above 0. A `?` marks an optional field. A list: one of these
 * words, or left out.
 */
export type FieldKind =
  | "units"
  | "units?"
  | "count?"
  | "duration"
  | "duration?"
  | "period"
  | "boolean?"
  | "text?"
  | "ratio?"
  | readonly string[];

/** The fields of a rule, parsed: units and durations (in milliseconds) are numbers. */
export type Fields = Readonly<Record<string, number | boolean | string | undefined>>;

/** A field whose value is not allowed, and what is allowed there. */
export interface ConfigProblem {
  readonly problem: { readonly field: string; readonly allowed: string };
}

/**
 * A state that is played forward. It says what the functions of the algorithm would say, but makes no new state for
 * each unit that is used on the way: there may be thousands. Instants never go back from one call to the next.
 */
export interface Forecast {
  /** The uses from one index up to another come about, each at its instant. */
  debit(uses: Uses, from: number, to: number): void;
  /** Takes units, 1 or more, that pass at `atMs`. */
  take(atMs: number, units: number): void;
  /** The first instant, `atMs` or later, at which a cost passes while `outstanding` stays as it is. Infinity: never. */
  passesAtMs(atMs: number, cost: number, outstanding: number): number;
  /**
   * Whether the instant that `passesAtMs` names stands, whenever the units that are outstanding are used: they take as
   * much then as now. Not so when a debt is too large to be counted, or the clock was put back.
   */
  isCertain(atMs: number, outstanding: number): boolean;
}

/** Units that will be used, in two columns, in the order of their instants. */
export interface Uses {
  readonly endsMs: readonly number[];
  readonly units: readonly number[];
}

/** A state in the parts that storage keeps. The record is JSON. */
export interface PackedState {
  readonly record: unknown;
  readonly segment?: NewSegment;
}

/** A part of a state that does not change any more. */
export interface Segment {
  /** Identifies the state that it is a part of: after a pause a key begins a new one. */
  readonly log: number;
  /** Orders the segments of one state. */
  readonly from: number;
  readonly entries: ArrayLike<number>;
}

/**
 * A segment to be written, and which stored ones may go then: those of another `log`, and those that end too early.
 */
export interface NewSegment extends Segment {
  /** The latest instant in it. */
  readonly toMs: number;
  /** Stored segments whose `toMs` is before this instant are not needed any more. */
  readonly keepFromMs: number;
}

/** The most units of a limit, a burst or a cost. */
export const MAX_UNITS = 1_000_000_000;
