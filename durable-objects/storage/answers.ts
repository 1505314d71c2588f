import { type KeyRange, rangeOf } from "../../core/protocol/names.ts";
import type { Tables } from "./records.ts";
import type { RowStorage } from "./sweeps.ts";

export interface StoredAnswer {
  /** The request as text: it identifies another request under the same idempotency key. */
  readonly request: string;
  /** JSON, or how a hold ended (keys/idempotency.ts). */
  readonly answer: string;
  readonly atMs: number;
}

/**
 * Of one caller per key: 24 hours of one call in 17 seconds. Finding the oldest of twice as many takes 9 ms.
 */
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

/** The lengths of an object's answers. Those without a caller and ends of holds count in `all` only. */
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

  /** Call it after a rollback or a deletion of everything. */
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

export class StoredAnswers {
  readonly #tables: Tables;
  readonly #lengths: AnswerLengths;

  constructor(tables: Tables, kv: LengthStorage) {
    this.#tables = tables;
    this.#lengths = new AnswerLengths(kv);
  }

  /** In characters: of all answers of the object, and of one caller's. */
  get lengths(): { readonly all: number; of(range: KeyRange): number } {
    return this.#lengths;
  }

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

  has(key: string): boolean {
    return this.#tables.rows("answers", "SELECT 1 FROM answers WHERE key = ? LIMIT 1", key).length > 0;
  }

  removeAll(key: string): void {
    this.#delete("DELETE FROM answers WHERE key = ?", key);
  }

  /** Deletes old answers of untouched keys. An index by time would cost one more row per answer. */
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
