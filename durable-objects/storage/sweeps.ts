/**
 * When storage is swept. Garbage collection reads every row, since an index by time would cost a row per
 * write. So sweeps are rationed. After one that left K rows, the next comes
 *
 * - when something can be due, and a minute later at the earliest,
 * - and not before K x `REST_MS` have passed, unless K rows have been written since.
 *
 * So sweeps read at most 100,000 rows an hour, plus two per row written: of 100,000 keys each is read once an
 * hour, of 10,000 ten times. An untouched key may stay for as long.
 */

/**
 * How long an untouched key's record stays. Of a key called once a minute, a month costs $0.08 with this,
 * $0.11 with 10 s (each deletion is an alarm), and $0.07 with 5 minutes.
 */
export const FORGET_AFTER_MS = 180_000;
/** How long rows of an unknown policy stay after their refill: a version that knows it may return. */
export const UNKNOWN_KEPT_MS = 30 * 24 * 60 * 60 * 1_000;
/** A failed sweep is repeated after this many milliseconds. */
export const FAILED_AGAIN_MS = 60 * 60 * 1_000;
/** Milliseconds without a sweep per row that the last one left. */
export const REST_MS = 36;
/** The least time from a sweep to the alarm for the next, in milliseconds. */
export const APART_MS = 60_000;
/** The time of the next sweep is stored from this many rows on: with fewer, a sweep costs less than that. */
const MANY_ROWS = 1_000;

export interface RowStorage {
  readonly kv: {
    get<Value>(name: string): Value | undefined;
    put<Value>(name: string, value: Value): void;
  };
}

interface StoredSweep {
  readonly rows: number;
  readonly notBeforeMs: number;
}

/** Stored: never rename it. */
const ROW = "sweep";

export class Sweeps {
  readonly #storage: RowStorage;
  #rows: number;
  #notBeforeMs: number;
  #written = 0;
  /** When the first of the remaining rows can be due. */
  #earliestMs = Infinity;

  constructor(storage: RowStorage) {
    this.#storage = storage;
    const { rows, notBeforeMs } = storage.kv.get<StoredSweep>(ROW) ?? { rows: 0, notBeforeMs: -Infinity };
    this.#rows = rows;
    this.#notBeforeMs = notBeforeMs;
  }

  /** A record was written whose key is untouched at `wholeMs` without further calls. */
  wrote(wholeMs: number): void {
    this.#written += 1;
    this.#earliestMs = Math.min(this.#earliestMs, wholeMs + FORGET_AFTER_MS);
  }

  dueMs(wholeMs: number, nowMs: number): number {
    return Math.max(Math.min(this.#earliestMs, wholeMs + FORGET_AFTER_MS), this.#restMs(nowMs));
  }

  /** Until when no sweep is due; absent: one may begin. */
  restsUntilMs(nowMs: number): number | undefined {
    const untilMs = this.#restMs(nowMs);
    return untilMs > nowMs ? untilMs : undefined;
  }

  /** Begins a sweep, which calls `leave` for the rows that it leaves, and `end`. Also: all rows are gone. */
  begin(): void {
    this.#rows = 0;
    this.#notBeforeMs = -Infinity;
    this.#written = 0;
    this.#earliestMs = Infinity;
  }

  /** Adds rows that the sweep leaves; the first can be due at `dueMs`. */
  leave(rows: number, dueMs: number): void {
    this.#rows += rows;
    this.#earliestMs = Math.min(this.#earliestMs, dueMs);
  }

  /** Ends the sweep. Returns when the next is due; `undefined`: nothing is stored. */
  end(nowMs: number): number | undefined {
    if (this.#rows + this.#written === 0) return undefined;
    this.#notBeforeMs = nowMs + this.#rows * REST_MS;
    if (this.#rows >= MANY_ROWS)
      this.#storage.kv.put<StoredSweep>(ROW, { rows: this.#rows, notBeforeMs: this.#notBeforeMs });
    return Math.max(this.#earliestMs, this.#notBeforeMs, nowMs + APART_MS);
  }

  /** The clock may have been set back: the rest is never longer than it was. */
  #restMs(nowMs: number): number {
    if (this.#written >= this.#rows) return -Infinity;
    return Math.min(this.#notBeforeMs, nowMs + this.#rows * REST_MS);
  }
}
