/**
 * When storage is swept: garbage collection reads every row, since an index by time would cost a row written with each
 * write. So a sweep has to be paid for. After one that has left K rows, the next comes
 *
 * - when something can be due, and a minute later at the earliest,
 * - and not before K x `REST_MS` have passed, unless K rows have been written since.
 *
 * So sweeps read 100,000 rows an hour at most, however many keys there are, and two more for each row that is written.
 * Of 100,000 keys each is read once an hour, of 10,000 ten times. What is whole may stay for as long meanwhile.
 */

/**
 * How long a key's record stays after the key has become whole, in milliseconds. With less, a key that comes now and then
 * would be deleted and inserted again each time, and each deletion is an alarm: a month of one call a minute costs $0.08
 * with this, $0.11 with 10 s, and $0.07 with 5 minutes. With more, more is stored.
 */
export const FORGET_AFTER_MS = 180_000;
/**
 * What is stored under a policy that this version does not know stays for this long after it would have refilled, in
 * milliseconds: a version that knows the policy may come back.
 */
export const UNKNOWN_KEPT_MS = 30 * 24 * 60 * 60 * 1_000;
/** When something could not be swept, it is looked at again after so many milliseconds. */
export const FAILED_AGAIN_MS = 60 * 60 * 1_000;
/** For each row that is left, a sweep is followed by so many milliseconds without one. */
export const REST_MS = 36;
/** The least time from a sweep to the alarm for the next, in milliseconds. */
export const APART_MS = 60_000;
/** With so many rows the time of the next sweep is stored. With fewer, one sweep more costs less than that row. */
const MANY_ROWS = 1_000;

/** Where single rows are kept. */
export interface RowStorage {
  readonly kv: {
    get<Value>(name: string): Value | undefined;
    put<Value>(name: string, value: Value): void;
  };
}

/** What the last sweep has left. Stored: never rename a field. */
interface StoredSweep {
  readonly rows: number;
  readonly notBeforeMs: number;
}

/** Where that is. Stored: never rename it. */
const ROW = "sweep";

/** What the last sweep has left, what the one under way finds, and what has been written since it began. */
export class Sweeps {
  readonly #storage: RowStorage;
  #rows: number;
  #notBeforeMs: number;
  #written = 0;
  /** When the first of those rows can be due. */
  #earliestMs = Infinity;

  constructor(storage: RowStorage) {
    this.#storage = storage;
    const { rows, notBeforeMs } = storage.kv.get<StoredSweep>(ROW) ?? { rows: 0, notBeforeMs: -Infinity };
    this.#rows = rows;
    this.#notBeforeMs = notBeforeMs;
  }

  /** A record was written: its key is whole at `wholeMs` if nobody comes. */
  wrote(wholeMs: number): void {
    this.#written += 1;
    this.#earliestMs = Math.min(this.#earliestMs, wholeMs + FORGET_AFTER_MS);
  }

  /** When the next sweep is due, if something is whole at `wholeMs`. */
  dueMs(wholeMs: number, nowMs: number): number {
    return Math.max(Math.min(this.#earliestMs, wholeMs + FORGET_AFTER_MS), this.#restMs(nowMs));
  }

  /** Until when no sweep is due; absent: one may begin. */
  restsUntilMs(nowMs: number): number | undefined {
    const untilMs = this.#restMs(nowMs);
    return untilMs > nowMs ? untilMs : undefined;
  }

  /** A sweep begins. It calls `leave` for what it leaves, and `end`. */
  begin(): void {
    this.#rows = 0;
    this.#notBeforeMs = -Infinity;
    this.#written = 0;
    this.#earliestMs = Infinity;
  }

  /** The sweep has left so many rows; the first of them can be due at `dueMs`. */
  leave(rows: number, dueMs: number): void {
    this.#rows += rows;
    this.#earliestMs = Math.min(this.#earliestMs, dueMs);
  }

  /** The sweep has ended. Returns when the next is due; `undefined`: nothing is left, and nothing was written meanwhile. */
  end(nowMs: number): number | undefined {
    if (this.#rows + this.#written === 0) return undefined;
    this.#notBeforeMs = nowMs + this.#rows * REST_MS;
    if (this.#rows >= MANY_ROWS)
      this.#storage.kv.put<StoredSweep>(ROW, { rows: this.#rows, notBeforeMs: this.#notBeforeMs });
    return Math.max(this.#earliestMs, this.#notBeforeMs, nowMs + APART_MS);
  }

  /** Everything was deleted. */
  forget(): void {
    this.begin();
  }

  /** The clock may have been put back since: the rest is no longer than it was. */
  #restMs(nowMs: number): number {
    if (this.#written >= this.#rows) return -Infinity;
    return Math.min(this.#notBeforeMs, nowMs + this.#rows * REST_MS);
  }
}
