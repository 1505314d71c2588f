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
