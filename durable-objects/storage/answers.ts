import type { KeyRange } from "../../core/protocol/caller-keys.ts";
import type { Tables } from "./tables.ts";

/** The answer to a call with an idempotency key. */
export interface StoredAnswer {
  /** The call in words, to tell another call under the same idempotency key. */
  readonly request: string;
  /** JSON, or how a hold ended: see keys/idempotency.ts. */
  readonly answer: string;
  /** When it was answered. */
  readonly atMs: number;
}

/**
 * The most answers that are remembered of one caller's calls on one key, at about 350 bytes each. It is enough for 24
 * hours with one idempotent call in 17 seconds. Beyond it, the caller's oldest answers go. With twice as many, finding
 * those takes a call 9 ms.
 */
export const MOST_ANSWERS = 5_000;
/** So many go at once: a call has to look through all of them for the oldest. */
export const ANSWERS_DROPPED = 100;

/** How many answers of one caller a key has, and when the oldest was given. */
export interface AnswerCount {
  readonly count: number;
  readonly oldestMs: number;
  /** They have just been counted; else there may be fewer. */
  readonly isExact: boolean;
}

const OF_CALLER = "FROM answers WHERE key = ?1 AND idempotency_key >= ?2 AND idempotency_key < ?3";

const IS_RECORDED = "EXISTS (SELECT 1 FROM keys WHERE keys.key = answers.key)";

/** How many answers are looked at in one go, so that calls do not wait: it takes up to 5 ms when all are deleted. */
export const ANSWERS_SWEPT = 1_000;

/** The stored answers, by key and idempotency key. */
export class StoredAnswers {
  readonly #tables: Tables;

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  read(key: string, idempotencyKey: string): StoredAnswer | undefined {
    if (!this.#tables.has("answers")) return undefined;
    return this.#tables
      .exec<{ request: string; answer: string; atMs: number }>(
        "SELECT request, answer, at_ms AS atMs FROM answers WHERE key = ? AND idempotency_key = ?",
        key,
        idempotencyKey,
      )
      .toArray()[0];
  }

  write(key: string, idempotencyKey: string, { request, answer, atMs }: StoredAnswer): void {
    this.#tables.make("answers");
    this.#tables.exec(
      "INSERT OR REPLACE INTO answers (key, idempotency_key, request, answer, at_ms) VALUES (?, ?, ?, ?, ?)",
      key,
      idempotencyKey,
      request,
      answer,
      atMs,
    );
  }

  remove(key: string, idempotencyKey: string): void {
    this.#tables.exec("DELETE FROM answers WHERE key = ? AND idempotency_key = ?", key, idempotencyKey);
  }

  /** How many answers of a caller the key has, and when the oldest was given (`Infinity`: there is none). */
  count(key: string, [from, to]: KeyRange): { readonly count: number; readonly oldestMs: number } {
    if (!this.#tables.has("answers")) return { count: 0, oldestMs: Infinity };
    const { count, oldestMs } = this.#tables
      .exec<{ count: number; oldestMs: number | null }>(
        `SELECT count(*) AS count, min(at_ms) AS oldestMs ${OF_CALLER}`,
        key,
        from,
        to,
      )
      .one();
    return { count, oldestMs: oldestMs ?? Infinity };
  }

  /** Deletes a caller's oldest answers, at most `ANSWERS_DROPPED`. */
  removeOldest(key: string, [from, to]: KeyRange): void {
    this.#tables.exec(
      `DELETE FROM answers WHERE key = ?1 AND idempotency_key IN
        (SELECT idempotency_key ${OF_CALLER} ORDER BY at_ms LIMIT ?4)`,
      key,
      from,
      to,
      ANSWERS_DROPPED,
    );
  }

  /** Whether any answer of the key is stored. */
  has(key: string): boolean {
    if (!this.#tables.has("answers")) return false;
    return this.#tables.exec("SELECT 1 FROM answers WHERE key = ? LIMIT 1", key).toArray().length > 0;
  }

  removeAll(key: string): void {
    if (this.#tables.has("answers")) this.#tables.exec("DELETE FROM answers WHERE key = ?", key);
  }

  /**
   * Looks at the next `ANSWERS_SWEPT` answers after a place, in the order of the table. Deletes those that were given
   * at or before `untilMs`, if their keys have no record: those keys are whole. An index by time would make each
   * answer cost one more row.
   */
  sweep(after: AnswerPlace, untilMs: number): Swept {
    if (!this.#tables.has("answers")) return { left: 0, oldestMs: Infinity };
    const rows = this.#tables
      .exec<{ key: string; idempotencyKey: string; atMs: number; isRecorded: number }>(
        `SELECT key, idempotency_key AS idempotencyKey, at_ms AS atMs, ${IS_RECORDED} AS isRecorded FROM answers
          WHERE (key, idempotency_key) > (?, ?) ORDER BY key, idempotency_key LIMIT ?`,
        after.key,
        after.idempotencyKey,
        ANSWERS_SWEPT,
      )
      .toArray();
    let [left, oldestMs] = [0, Infinity];
    for (const { key, idempotencyKey, atMs, isRecorded } of rows) {
      if (isRecorded === 0 && atMs <= untilMs) {
        this.remove(key, idempotencyKey);
        continue;
      }
      left += 1;
      if (isRecorded === 0) oldestMs = Math.min(oldestMs, atMs);
    }
    const last = rows.at(-1);
    return { left, oldestMs, ...(last !== undefined && rows.length === ANSWERS_SWEPT && { last }) };
  }
}

/** Where an answer is in the table. */
export interface AnswerPlace {
  readonly key: string;
  readonly idempotencyKey: string;
}

/** What `sweep` has found. */
export interface Swept {
  /** How many answers it has left. */
  readonly left: number;
  /** When the oldest answer that is left of a key without a record was given; Infinity: there is none. */
  readonly oldestMs: number;
  /** The last answer that was looked at. Absent: there are no more. */
  readonly last?: AnswerPlace;
}
