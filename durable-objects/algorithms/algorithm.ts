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

  /** Turns the parsed fields into a configuration, or says which field cannot be, and why. */
  configure(fields: Readonly<Record<string, number | undefined>>): Config | ConfigProblem;

  /** The most units that can be admitted at once. */
  capacity(config: Config): number;

  /** The quota as the RateLimit-Policy header words it: `units` per `windowMs`. */
  quota(config: Config): Quota;

  /** Decides on `cost` units (0 takes nothing). A denial carries no state: it cannot change anything. */
  decide(
    config: Config,
    state: State | undefined,
    nowMs: number,
    cost: number,
    outstanding: number,
  ): AlgorithmDecision<State>;

  /** Takes `units` without asking; the quota may go below zero. */
  debit(config: Config, state: State | undefined, nowMs: number, units: number): State | undefined;

  /** Gives `units` back, at most up to an untouched quota: a refund can never mint. */
  credit(config: Config, state: State | undefined, nowMs: number, units: number): State | undefined;

  /** The first instant from which the state equals absent state, if nobody comes. */
  wholeAtMs(config: Config, state: State): number;

  /**
   * Whether storage may be left as it is: `stored` with `ahead` units held offers, from `nowMs` on,
   * no more than `state` with `outstanding` units held.
   */
  covers(
    config: Config,
    stored: State | undefined,
    ahead: number,
    state: State | undefined,
    outstanding: number,
    nowMs: number,
  ): boolean;
}

/**
 * An algorithm whose configuration and state are somebody else's business. A rule pairs a configuration
 * with the algorithm that made it, a stored state carries its algorithm's name, so neither meets another.
 */
export type AnyAlgorithm = Algorithm<object, unknown>;

/** `units`: a positive integer. `duration`: positive milliseconds. A `?` marks an optional field. */
export type FieldKind = "units" | "units?" | "duration" | "duration?";

/** A configuration that cannot be: the field at fault, and what is allowed instead. */
export interface ConfigProblem {
  readonly problem: { readonly field: string; readonly allowed: string };
}

export interface Quota {
  readonly units: number;
  readonly windowMs: number;
}

/** Why an algorithm refuses: wait, or never. */
export type DenialReason = "quota" | "cost-over-limit";

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

export interface Denied extends Figures {
  readonly allowed: false;
  readonly reason: DenialReason;
  /**
   * The exact wait for this cost while `outstanding` stays as it is: one millisecond earlier is
   * refused. `null`: it does not pass however long one waits.
   */
  readonly retryAfterMs: number | null;
}

export type AlgorithmDecision<State> = Allowed<State> | Denied;
