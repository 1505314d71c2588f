import { type KeyRange, rangeOf } from "../../core/protocol/names.ts";
import type { Tables } from "./records.ts";
import type { RowStorage } from "./sweeps.ts";

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
export const MAX_ANSWERS = 5_000;
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

/**
 * The most characters of answers that an object keeps, and that it keeps of one caller. An object of Cloudflare's may store
 * 10 GB, and past that nothing can be written any more, whoever calls.
 */
export const MAX_ANSWERS_LENGTH = 2 ** 30;
export const MAX_ANSWERS_LENGTH_OF_CALLER = MAX_ANSWERS_LENGTH / 2;

/** Where the row is that says how long all answers are, by caller. Stored: never rename it. */
const LENGTHS_ROW = "answers";
/** It is written once for so many answers that come or go. So many are not counted when the object dies. */
const LENGTHS_WRITTEN_EVERY = 256;

/** How long all answers of an object are. Those of nobody in particular, and ends of holds, count in all. */
class AnswerLengths {
  readonly #kv: LengthStorage;
  #lengths: Map<string, number> | undefined;
  #all = 0;
  #unwritten = 0;

  constructor(kv: LengthStorage) {
    this.#kv = kv;
  }

  get all(): number {
    this.#read();
    return this.#all;
  }

  of([caller]: KeyRange): number {
    return this.#read().get(caller) ?? 0;
  }

  /** An answer has come, or gone if `length` is negative. */
  add(idempotencyKey: string, length: number): void {
    const lengths = this.#read();
    const [caller] = rangeOf(idempotencyKey);
    const before = lengths.get(caller) ?? 0;
    const after = Math.max(0, before + length);
    this.#all += after - before;
    if (after > 0) lengths.set(caller, after);
    else lengths.delete(caller);
    this.#unwritten += 1;
    if (this.#unwritten < LENGTHS_WRITTEN_EVERY) return;
    this.#kv.put(LENGTHS_ROW, [...lengths]);
    this.#unwritten = 0;
  }

  /** A transaction was rolled back, or everything was deleted: what has been counted is not true any more. */
  forget(): void {
    this.#lengths = undefined;
  }

  #read(): Map<string, number> {
    if (this.#lengths !== undefined) return this.#lengths;
    this.#lengths = new Map(this.#kv.get<[string, number][]>(LENGTHS_ROW));
    this.#all = [...this.#lengths.values()].reduce((sum, each) => sum + each, 0);
    this.#unwritten = 0;
    return this.#lengths;
  }
}

type LengthStorage = RowStorage["kv"];

const RETURNING = `RETURNING idempotency_key AS idempotencyKey,
  length(key) + length(idempotency_key) + length(request) + length(answer) AS length`;

/** The stored answers, by key and idempotency key. */
export class StoredAnswers {
  readonly #tables: Tables;
  readonly #lengths: AnswerLengths;

  constructor(tables: Tables, kv: LengthStorage) {
    this.#tables = tables;
    this.#lengths = new AnswerLengths(kv);
  }

  /** How long all answers of the object are, in characters, and those of one caller. */
  get lengths(): { readonly all: number; of(range: KeyRange): number } {
    return this.#lengths;
  }

  /** What has been counted is not true any more: see `StoredClaims.forgetCounts`. */
  forgetLengths(): void {
    this.#lengths.forget();
  }

  read(key: string, idempotencyKey: string): StoredAnswer | undefined {
    const query = "SELECT request, answer, at_ms AS atMs FROM answers WHERE key = ? AND idempotency_key = ?";
    return this.#tables.rows<{ request: string; answer: string; atMs: number }>(
      "answers",
      query,
      key,
      idempotencyKey,
    )[0];
  }

  write(key: string, idempotencyKey: string, { request, answer, atMs }: StoredAnswer): void {
    this.#tables.make("answers");
    this.#lengths.add(idempotencyKey, key.length + idempotencyKey.length + request.length + answer.length);
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
    this.#delete("DELETE FROM answers WHERE key = ? AND idempotency_key = ?", key, idempotencyKey);
  }

  #delete(query: string, ...bindings: SqlStorageValue[]): void {
    const gone = this.#tables.rows<{ idempotencyKey: string; length: number }>(
      "answers",
      `${query} ${RETURNING}`,
      ...bindings,
    );
    for (const { idempotencyKey, length } of gone) this.#lengths.add(idempotencyKey, -length);
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
    this.#delete(
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
    return this.#tables.rows("answers", "SELECT 1 FROM answers WHERE key = ? LIMIT 1", key).length > 0;
  }

  removeAll(key: string): void {
    this.#delete("DELETE FROM answers WHERE key = ?", key);
  }

  /**
   * Looks at the next `ANSWERS_SWEPT` answers after a place, in the order of the table. Deletes those that were given
   * at or before `untilMs`, if their keys have no record: those keys are whole. An index by time would make each
   * answer cost one more row.
   */
  sweep(after: AnswerPlace, untilMs: number): Swept {
    const rows = this.#tables.rows<{ key: string; idempotencyKey: string; atMs: number; isRecorded: number }>(
      "answers",
      `SELECT key, idempotency_key AS idempotencyKey, at_ms AS atMs, ${IS_RECORDED} AS isRecorded FROM answers
        WHERE (key, idempotency_key) > (?, ?) ORDER BY key, idempotency_key LIMIT ?`,
      after.key,
      after.idempotencyKey,
      ANSWERS_SWEPT,
    );
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
