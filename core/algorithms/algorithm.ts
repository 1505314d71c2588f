/**
 * What every algorithm is: a record of pure functions. No clock, no randomness, no I/O, no throw.
 * Time is an argument, state is a plain value that survives JSON, and absent state (`undefined`)
 * means "untouched". Units are whole numbers.
 *
 * `outstanding` is how many units are held by somebody else (see holds.ts): they are not in the
 * state, but they cannot be given out either.
 */
export interface Algorithm<Config extends object, State> {
  /** The value of `algorithm` in a policy. Kept in storage: never rename. */
  readonly name: string;

  /** The fields a policy gives it, by name: what kind of value, and whether it may be left out. */
  readonly fields: Readonly<Record<string, FieldKind>>;

  /**
   * Present when units are occupied until they are given back, and not used up. Such an algorithm says whether there
   * is room; what is taken is always a hold (see holds.ts), and one that expires frees its units.
   */
  readonly leasing?: Leasing<Config, State>;

  /** Turns the parsed fields into a configuration, or says which field cannot be, and why. */
  configure(fields: Fields): Config | ConfigProblem;

  /** The most units that can be admitted at once. */
  capacity(config: Config): number;

  /** The quota as the RateLimit-Policy header words it: `units` per `windowMs`. */
  quota(config: Config): Quota;

  /** What may be decided without the state: see `LocalDecisions`. */
  localDecisions(config: Config): LocalDecisions;

  /** The longest it takes from nothing left, with nothing outstanding, to whole. */
  wholeFromEmptyMs(config: Config): number;

  /** A part (above 0, at most 1) of the quota, rounded down; `undefined`: not one unit is left. */
  scale(config: Config, part: number): Config | undefined;

  /**
   * Decides on `cost` units (0 takes nothing). A denial cannot change anything, unless the configuration counts
   * what is denied: only then it carries a state, `counted`.
   */
  decide(
    config: Config,
    state: State | undefined,
    nowMs: number,
    cost: number,
    outstanding: number,
  ): AlgorithmDecision<State>;

  /** What an admission changes when its units are held and not taken: nothing, unless the instant itself counts. */
  noteHold(config: Config, state: State | undefined, nowMs: number): State | undefined;

  /** Takes `units` without asking; the quota may go below zero. */
  debit(config: Config, state: State | undefined, nowMs: number, units: number): State | undefined;

  /** Gives `units` back, at most up to an untouched quota: a refund can never mint. */
  credit(config: Config, state: State | undefined, nowMs: number, units: number): State | undefined;

  /** The first instant from which the state equals absent state, if nobody comes. */
  wholeAtMs(config: Config, state: State): number;

  /**
   * Whether storage may be left as it is: `stored` (a record that `pack` made) with `ahead` units held offers, from
   * `nowMs` on, no more than `state` with `outstanding` units held.
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
   * The state as storage keeps it: a record that is written each time, and now and then a segment that is written
   * once and stays, for states that grow. `before` is the record that was written last.
   */
  pack(config: Config, state: State, nowMs: number, before: unknown): Packed;

  /** The state of a record, with all segments there are. */
  unpack(config: Config, record: unknown, segments: readonly Segment[]): State;

  /**
   * Present when the state is what somebody holds of a level beneath, which decides and remembers: figures are its own, and
   * nothing of it is stored.
   */
  readonly isShare?: true;

  /** Bytes of memory that a state takes, if it can be large. */
  bytes?(state: State): number;
}

/**
 * What somebody may decide who has units of a rule and not its state. `admits`: units may be spent one by one and
 * reported later, since only how many were used counts, and not when. `denies`: a denial may be repeated, since it changes nothing.
 */
export interface LocalDecisions {
  readonly admits: boolean;
  readonly denies: boolean;
}

/** What there is to know of leases: the terms they are given on, and what a state says of them. */
export interface Leasing<Config extends object, State> {
  terms(config: Config): LeaseTerms;
  /** The token of the latest grant. */
  fencingToken(state: State): number;
  /** How many leases expired without being released. */
  reclaimed(state: State): number;
}

export interface LeaseTerms {
  /** A lease's life unless renewed, and the longest that a caller may ask for. */
  readonly ttlMs: number;
  readonly maxTtlMs: number;
  /** The longest a caller may wait in the queue, and the most callers in it. */
  readonly maxWaitMs: number;
  readonly maxWaiters: number;
}

/** A state in parts. The record is JSON. */
export interface Packed {
  readonly record: unknown;
  readonly segment?: NewSegment;
}

/** A part of a state that does not change any more. */
export interface Segment {
  /** Which of the key's states over time it belongs to. */
  readonly log: number;
  /** Its place among the segments of that. */
  readonly from: number;
  readonly entries: readonly number[];
}

export interface NewSegment extends Segment {
  /** Nothing in it is needed once segments are kept from a later instant only. */
  readonly toMs: number;
  /** From which instant on segments are needed; those of another log never are. */
  readonly keepFromMs: number;
}

/**
 * An algorithm whose configuration and state are somebody else's business. A rule pairs a configuration
 * with the algorithm that made it, a stored state carries its algorithm's name, so neither meets another.
 */
export type AnyAlgorithm = Algorithm<object, unknown>;

/** `units`: a positive integer. `duration`: positive milliseconds. A `?` marks an optional field. */
export type FieldKind = "units" | "units?" | "duration" | "duration?" | "boolean?";

/** What a policy says, parsed: units and milliseconds are numbers. */
export type Fields = Readonly<Record<string, number | boolean | undefined>>;

/** A configuration that cannot be: the field at fault, and what is allowed instead. */
export interface ConfigProblem {
  readonly problem: { readonly field: string; readonly allowed: string };
}

export interface Quota {
  readonly units: number;
  /** Absent: so many at once, however long. */
  readonly windowMs?: number;
}

/** Why an algorithm refuses: wait for units, wait because the last call was just now, or never. */
export type DenialReason = "quota" | "min-interval" | "cost-over-limit";

interface Figures {
  /** The largest cost that would pass now (after this decision), 0 or more. */
  readonly remaining: number;
  /** Milliseconds until the quota is whole again if nobody comes and nothing outstanding is used. */
  readonly resetAfterMs: number;
}

export interface Allowed<State> extends Figures {
  readonly allowed: true;
  readonly state: State | undefined;
}

export interface Denied<State = unknown> extends Denial {
  readonly allowed: false;
  /** Present when this denial counts: what the state is then, and the figures once it has been counted. */
  readonly counted?: Denial & { readonly state: State };
}

export interface Denial extends Figures {
  readonly reason: DenialReason;
  /**
   * The exact wait for this cost while `outstanding` stays as it is: one millisecond earlier is
   * refused. `null`: it does not pass however long one waits.
   */
  readonly retryAfterMs: number | null;
}

export type AlgorithmDecision<State> = Allowed<State> | Denied<State>;
