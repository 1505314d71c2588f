import { type KeyRange, rangeOf } from "../../core/protocol/names.ts";
import { CallerCounts, type Tables } from "./records.ts";
import type { RowStorage } from "./sweeps.ts";

/** A type, since an interface is none of SQLite's rows. */
export type StoredAnswer = {
  /** The request as text: it identifies another request under the same idempotency key. */
  readonly request: string;
  /** JSON, or how a hold ended (keys/idempotency.ts). */
  readonly answer: string;
  readonly atMs: number;
};

/** Of one caller per key: 24 hours of a call in 17 seconds. Finding the oldest of twice as many takes 9 ms. */
export const MAX_ANSWERS = 5_000;
/** Deleted at once: a call reads all answers to find the oldest. */
export const ANSWERS_DROPPED = 100;

export interface AnswerCount {
  readonly count: number;
  readonly oldestMs: number;
  /** Just counted; otherwise there may be fewer. */
  readonly isExact: boolean;
}

const OF_CALLER = "FROM answers WHERE key = ?1 AND idempotency_key >= ?2 AND idempotency_key < ?3";
const IS_RECORDED = "EXISTS (SELECT 1 FROM keys WHERE keys.key = answers.key)";

/** Answers read in one step, so that calls do not wait: deleting all of them takes up to 5 ms. */
export const ANSWERS_SWEPT = 1_000;

/** The most characters in an object, and of one caller. Every write fails beyond Cloudflare's 10 GB. */
export const MAX_ANSWERS_LENGTH = 2 ** 30;
export const MAX_ANSWERS_LENGTH_OF_CALLER = MAX_ANSWERS_LENGTH / 2;

/** The row with the length of all answers, by caller. Stored: never rename it. */
const LENGTHS_ROW = "answers";
/** Answers added or deleted per write of that row. As many are not counted if the object crashes. */
const LENGTHS_WRITTEN_EVERY = 256;

const RETURNING = `RETURNING idempotency_key AS idempotencyKey,
  length(key) + length(idempotency_key) + length(request) + length(answer) AS length`;

export class StoredAnswers {
  readonly #tables: Tables;
  readonly #kv: RowStorage["kv"];
  #lengths: CallerCounts | undefined;
  #uncounted = 0;

  constructor(tables: Tables, kv: RowStorage["kv"]) {
    this.#tables = tables;
    this.#kv = kv;
  }

  /** In characters, by the beginning of a caller's range. Without a caller and ends of holds: in `all` only. */
  get lengths(): CallerCounts {
    if (this.#lengths === undefined) {
      this.#lengths = new CallerCounts(this.#kv.get<[string, number][]>(LENGTHS_ROW));
      this.#uncounted = 0;
    }
    return this.#lengths;
  }

  /** Call it after a rollback or a deletion of everything. */
  forgetLengths(): void {
    this.#lengths = undefined;
  }

  #addLength(idempotencyKey: string, length: number): void {
    const { lengths } = this;
    const [caller] = rangeOf(idempotencyKey);
    lengths.add(caller, length);
    this.#uncounted += 1;
    if (this.#uncounted < LENGTHS_WRITTEN_EVERY) return;
    this.#kv.put(LENGTHS_ROW, lengths.entries());
    this.#uncounted = 0;
  }

  read(key: string, idempotencyKey: string): StoredAnswer | undefined {
    const query = "SELECT request, answer, at_ms AS atMs FROM answers WHERE key = ? AND idempotency_key = ?";
    return this.#tables.rows<StoredAnswer>("answers", query, key, idempotencyKey)[0];
  }

  write(key: string, idempotencyKey: string, { request, answer, atMs }: StoredAnswer): void {
    const length = key.length + idempotencyKey.length + request.length + answer.length;
    this.#addLength(idempotencyKey, length);
    this.#tables.put("answers", { key, idempotency_key: idempotencyKey, request, answer, at_ms: atMs });
  }

  remove(key: string, idempotencyKey: string): void {
    this.#delete("DELETE FROM answers WHERE key = ? AND idempotency_key = ?", key, idempotencyKey);
  }

  #delete(query: string, ...bindings: SqlStorageValue[]): void {
    type Gone = { idempotencyKey: string; length: number };
    for (const gone of this.#tables.rows<Gone>("answers", `${query} ${RETURNING}`, ...bindings))
      this.#addLength(gone.idempotencyKey, -gone.length);
  }

  count(key: string, [from, to]: KeyRange): { readonly count: number; readonly oldestMs: number } {
    const query = `SELECT count(*) AS count, min(at_ms) AS oldestMs ${OF_CALLER}`;
    type Counted = { count: number; oldestMs: number | null };
    const [found] = this.#tables.rows<Counted>("answers", query, key, from, to);
    return { count: found?.count ?? 0, oldestMs: found?.oldestMs ?? Infinity };
  }

  removeOldest(key: string, [from, to]: KeyRange): void {
    const oldest = `SELECT idempotency_key ${OF_CALLER} ORDER BY at_ms LIMIT ?4`;
    const query = `DELETE FROM answers WHERE key = ?1 AND idempotency_key IN (${oldest})`;
    this.#delete(query, key, from, to, ANSWERS_DROPPED);
  }

  has(key: string): boolean {
    return this.#tables.rows("answers", "SELECT 1 FROM answers WHERE key = ? LIMIT 1", key).length > 0;
  }

  removeAll(key: string): void {
    this.#delete("DELETE FROM answers WHERE key = ?", key);
  }

  /** Deletes old answers of untouched keys. An index by time would cost one more row per answer. */
  sweep(after: AnswerPlace, untilMs: number): Swept {
    const query = `SELECT key, idempotency_key AS idempotencyKey, at_ms AS atMs, ${IS_RECORDED} AS isRecorded
      FROM answers WHERE (key, idempotency_key) > (?, ?) ORDER BY key, idempotency_key LIMIT ?`;
    type Row = { key: string; idempotencyKey: string; atMs: number; isRecorded: number };
    const place = [after.key, after.idempotencyKey] as const;
    const rows = this.#tables.rows<Row>("answers", query, ...place, ANSWERS_SWEPT);
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

export interface AnswerPlace {
  readonly key: string;
  readonly idempotencyKey: string;
}

export interface Swept {
  readonly left: number;
  /** When the oldest remaining answer of a key without a record was made; Infinity: none. */
  readonly oldestMs: number;
  /** The last answer read. Absent: there are no more. */
  readonly last?: AnswerPlace;
}
