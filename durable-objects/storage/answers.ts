/**
 * Answers under idempotency keys. New ones are in the journal, which is in memory. When it is folded, they go
 * into segments (answer-segments.ts), and these are deleted as a whole when the newest of the answers is no longer
 * valid, or when the caller has too many. Memory has the numbers in the segments of the keys that were asked
 * for lately, up to 8 bytes for an answer, so that nearly every call that is new reads no segment.
 *
 * Earlier versions wrote a row per answer, in the same table. When a key's answers are asked for first, these
 * rows become segments.
 */
import { randomFraction } from "../../core/clock.ts";
import { hash, rangeOf, rangeOfEnds } from "../../core/protocol/names.ts";
import {
  answerIn,
  type Entry,
  FirstLook,
  includes,
  MARK,
  type NamedSegment,
  nameOf,
  REMOVED,
  rowOf,
  type Segment,
  segmentIn,
  segmentNamed,
} from "./answer-segments.ts";
import type { Journal } from "./journal.ts";
import { CallerCounts, type StoredAnswer, type Tables } from "./records.ts";
import type { RowStorage } from "./sweeps.ts";

/** The request under which the end of a hold is stored. Stored: never reword. */
export const END_OF_HOLD = "end of a hold";

/** Of one caller per key: a thousand calls a second for a minute, and what a segment has beyond. */
export const MAX_ANSWERS = 65_536;

export interface AnswerCount {
  readonly count: number;
  /** When the newest of those was made that are deleted next. */
  readonly oldestMs: number;
  /** Just counted; otherwise there may be fewer. */
  readonly isExact: boolean;
}

const IS_RECORDED = "EXISTS (SELECT 1 FROM keys WHERE keys.key = answers.key)";

/** Rows read in one step, so that calls do not wait: deleting all of them takes up to 5 ms. */
export const ANSWERS_SWEPT = 1_000;

/** The most characters in an object, and of one caller. Every write fails beyond Cloudflare's 10 GB. */
export const MAX_ANSWERS_LENGTH = 2 ** 30;
export const MAX_ANSWERS_LENGTH_OF_CALLER = MAX_ANSWERS_LENGTH / 2;

/** The row with the length of all answers, by caller. Stored: never rename it. */
const LENGTHS_ROW = "answers";
/** Segments written or deleted per write of that row. As many are not counted if the object crashes. */
const LENGTHS_WRITTEN_EVERY = 64;

/** A segment gets more answers while it has fewer than this, and is not older than that. */
const SEGMENT_ANSWERS = 128;
const SEGMENT_MS = 60 * 60 * 1_000;
/** The most answers of a segment, and characters but for the last one's: they are read together. */
const MAX_SEGMENT_ANSWERS = 512;
const MAX_SEGMENT_LENGTH = 2 ** 18;
/** The most idempotency keys of which memory has numbers, but for the key that was read last. */
const MAX_HASHES = 2 ** 18;

const LENGTH = "length(key) + length(idempotency_key) + length(request) + length(answer) AS length";
const RETURNING = `RETURNING idempotency_key AS idempotencyKey, ${LENGTH}`;

export class StoredAnswers {
  readonly #tables: Tables;
  readonly #journal: Journal;
  readonly #kv: RowStorage["kv"];
  /** By key, the oldest first. */
  readonly #segments = new Map<string, readonly Segment[]>();
  readonly #looks = new WeakMap<readonly Segment[], FirstLook>();
  #hashes = 0;
  #lengths: CallerCounts | undefined;
  #uncounted = 0;
  /** Of the answers that only the journal has, but for those that it had when the object started. */
  #journaledLengths = new CallerCounts();

  constructor(tables: Tables, journal: Journal, kv: RowStorage["kv"]) {
    this.#tables = tables;
    this.#journal = journal;
    this.#kv = kv;
  }

  /** In characters, of all and of the caller whose range begins so. */
  get length(): number {
    return this.#stored.all + this.#journaledLengths.all;
  }

  lengthOf(caller: string): number {
    return this.#stored.of(caller) + this.#journaledLengths.of(caller);
  }

  /** By the beginning of a caller's range. Without a caller and ends of holds: in `all` only. */
  get #stored(): CallerCounts {
    if (this.#lengths === undefined) {
      this.#lengths = new CallerCounts(this.#kv.get<[string, number][]>(LENGTHS_ROW));
      this.#uncounted = 0;
    }
    return this.#lengths;
  }

  /** Call it after a rollback or a deletion of everything. */
  forget(): void {
    this.#lengths = undefined;
    this.#journaledLengths = new CallerCounts();
    this.#segments.clear();
    this.#hashes = 0;
  }

  #addLength(from: string, length: number): void {
    this.#stored.add(rangeOf(from)[0], length);
    this.#uncounted += 1;
    if (this.#uncounted < LENGTHS_WRITTEN_EVERY) return;
    this.#kv.put(LENGTHS_ROW, this.#stored.entries());
    this.#uncounted = 0;
  }

  read(key: string, idempotencyKey: string): StoredAnswer | undefined {
    for (const { answers, areAnswersAnew } of this.#journal.changesOf(key))
      if (answers.has(idempotencyKey) || areAnswersAnew) return answers.get(idempotencyKey);
    return this.#inSegment(key, idempotencyKey);
  }

  #inSegment(key: string, idempotencyKey: string): StoredAnswer | undefined {
    const segments = this.#segmentsOf(key);
    if (this.#looks.get(segments)?.mayFind(idempotencyKey) === false) return undefined;
    let [seed, number] = ["", 0];
    // The newest first: an answer may be written again.
    for (const segment of segments.toReversed()) {
      if (segment.seed !== seed) number = hash((seed = segment.seed) + idempotencyKey);
      if (!includes(segment.hashes, number)) continue;
      const found = this.#entries(key, segment).findLast(([each]) => each === idempotencyKey);
      if (found !== undefined) return answerIn(found);
    }
    return undefined;
  }

  write(key: string, idempotencyKey: string, answer: StoredAnswer): void {
    this.#journal.change(key, ({ answers }) => answers.set(idempotencyKey, answer));
    this.#journaledLengths.add(rangeOf(idempotencyKey)[0], lengthOf(key, idempotencyKey, answer));
  }

  remove(key: string, idempotencyKey: string): void {
    this.#journal.change(key, ({ answers }) => answers.set(idempotencyKey, undefined));
  }

  /** Of the caller whose range begins so. */
  count(key: string, from: string): { readonly count: number; readonly oldestMs: number } {
    let [count, oldestMs] = [0, Infinity];
    for (const segment of this.#segmentsOf(key)) {
      if (segment.from !== from) continue;
      count += segment.hashes.length;
      oldestMs = Math.min(oldestMs, segment.endMs);
    }
    for (const [id, answer] of this.#journal.of(key).answers) {
      if (answer === undefined || callerOf(id, answer.request) !== from) continue;
      count += 1;
      oldestMs = Math.min(oldestMs, answer.atMs);
    }
    return { count, oldestMs };
  }

  /** Deletes a caller's oldest segment. */
  removeOldest(key: string, from: string): void {
    const oldest = this.#segmentsOf(key).find((segment) => segment.from === from);
    if (oldest !== undefined) this.#delete(key, "key = ? AND idempotency_key = ?", key, nameOf(oldest));
  }

  has(key: string): boolean {
    const { answers, areAnswersAnew } = this.#journal.of(key);
    for (const answer of answers.values()) if (answer !== undefined) return true;
    const query = "SELECT 1 FROM answers WHERE key = ? LIMIT 1";
    return !areAnswersAnew && this.#tables.rows("answers", query, key).length > 0;
  }

  removeAll(key: string): void {
    this.#journal.atomically(() => {
      this.#journal.begin(key, "beginAnswers");
      this.#delete(key, "key = ?", key);
    });
  }

  /** The answers of a key, and the newest if there are more. */
  all(key: string, most: number): (StoredAnswer & { readonly idempotencyKey: string })[] {
    const { answers, areAnswersAnew } = this.#journal.of(key);
    const found = new Map<string, StoredAnswer | undefined>(answers);
    for (const segment of areAnswersAnew ? [] : this.#segmentsOf(key).toSorted((a, b) => b.endMs - a.endMs)) {
      if (found.size >= most) break;
      for (const entry of this.#entries(key, segment).toReversed())
        if (!found.has(entry[0])) found.set(entry[0], answerIn(entry));
    }
    return [...found].flatMap(([idempotencyKey, answer]) =>
      answer === undefined ? [] : [{ idempotencyKey, ...answer }],
    );
  }

  /** Writes answers into segments. One that was removed is written as none. */
  fold(key: string, answers: ReadonlyMap<string, StoredAnswer | undefined>): void {
    const byCaller = new Map<string, Entry[]>();
    for (const [id, answer = REMOVED] of answers) {
      const known = answer === REMOVED ? this.#inSegment(key, id) : answer;
      if (known === undefined) continue;
      const from = callerOf(id, known.request);
      const entries = byCaller.get(from) ?? [];
      byCaller.set(from, entries);
      entries.push([id, answer.request, answer.answer, known.atMs]);
    }
    for (const [from, entries] of byCaller) this.#add(key, from, entries);
    // The journal is folded as a whole.
    this.#journaledLengths = new CallerCounts();
  }

  /** Deletes old answers of untouched keys. An index by time would cost one more row per segment. */
  sweep(after: AnswerPlace, untilMs: number): Swept {
    this.#journal.fold();
    const query = `SELECT key, idempotency_key AS idempotencyKey, at_ms AS atMs, ${IS_RECORDED} AS isRecorded
      FROM answers WHERE (key, idempotency_key) > (?, ?) ORDER BY key, idempotency_key LIMIT ?`;
    type Row = { key: string; idempotencyKey: string; atMs: number; isRecorded: number };
    const place = [after.key, after.idempotencyKey] as const;
    const rows = this.#tables.rows<Row>("answers", query, ...place, ANSWERS_SWEPT);
    let [left, oldestMs] = [0, Infinity];
    for (const { key, idempotencyKey, atMs, isRecorded } of rows) {
      if (isRecorded === 0 && atMs <= untilMs) {
        this.#delete(key, "key = ? AND idempotency_key = ?", key, idempotencyKey);
        continue;
      }
      left += 1;
      if (isRecorded === 0) oldestMs = Math.min(oldestMs, atMs);
    }
    const last = rows.at(-1);
    return { left, oldestMs, ...(last !== undefined && rows.length === ANSWERS_SWEPT && { last }) };
  }

  #delete(key: string, condition: string, ...bindings: SqlStorageValue[]): void {
    type Gone = { idempotencyKey: string; length: number };
    const query = `DELETE FROM answers WHERE ${condition} ${RETURNING}`;
    for (const gone of this.#tables.rows<Gone>("answers", query, ...bindings))
      this.#addLength(segmentNamed(gone.idempotencyKey)?.from ?? gone.idempotencyKey, -gone.length);
    this.#forgetSegments(key);
  }

  #forgetSegments(key: string): void {
    for (const { hashes } of this.#segments.get(key) ?? []) this.#hashes -= hashes.length;
    this.#segments.delete(key);
  }

  #segmentsOf(key: string): readonly Segment[] {
    const known = this.#segments.get(key);
    if (known !== undefined) return known;
    const segments = this.#load(key);
    for (const other of this.#hashes > MAX_HASHES ? this.#segments.keys() : []) this.#forgetSegments(other);
    this.#segments.set(key, segments);
    if (segments.length > 0) this.#looks.set(segments, new FirstLook(segments));
    for (const { hashes } of segments) this.#hashes += hashes.length;
    return segments;
  }

  #load(key: string): Segment[] {
    type Row = { id: string; request: string; endMs: number };
    const query = "SELECT idempotency_key AS id, request, at_ms AS endMs FROM answers WHERE key = ?";
    const rows = this.#tables.rows<Row>("answers", query, key);
    if (rows.some(({ request }) => !request.startsWith(MARK))) {
      this.#convert(key);
      return this.#load(key);
    }
    const segments = rows.map(({ id, request, endMs }) => segmentIn(id, request, endMs));
    return segments.toSorted((a, b) => a.number - b.number);
  }

  /** An earlier version's rows become segments. */
  #convert(key: string): void {
    const query = `SELECT idempotency_key AS id, request, answer, at_ms AS atMs FROM answers
      WHERE key = ? AND request NOT LIKE ? ORDER BY at_ms`;
    type Row = StoredAnswer & { readonly id: string };
    const rows = this.#tables.rows<Row>("answers", query, key, `${MARK}%`);
    this.#journal.atomically(() => {
      this.#delete(key, "key = ? AND request NOT LIKE ?", key, `${MARK}%`);
      this.fold(key, new Map(rows.map(({ id, ...answer }) => [id, answer])));
    });
  }

  #add(key: string, from: string, added: readonly Entry[]): void {
    const segments = this.#segmentsOf(key);
    const last = segments.findLast((segment) => segment.from === from);
    const atMs = added[0]?.[3] ?? 0;
    const isOpen =
      last !== undefined && last.hashes.length < SEGMENT_ANSWERS && atMs < last.startMs + SEGMENT_MS;
    const seed = segments[0]?.seed ?? Math.floor(randomFraction() * 2 ** 48).toString(36);
    let newest = Math.max(0, ...segments.map((each) => each.number));
    let number = isOpen ? last.number : (newest += 1);
    let [entries, length]: [Entry[], number] = [isOpen ? [...this.#entries(key, last)] : [], 0];
    for (const entry of added) {
      if (entries.length >= MAX_SEGMENT_ANSWERS || length > MAX_SEGMENT_LENGTH) {
        this.#put(key, { from, number, seed }, entries);
        [entries, length, number] = [[], 0, (newest += 1)];
      }
      entries.push(entry);
      length += entry[0].length + entry[1].length + entry[2].length;
    }
    this.#put(key, { from, number, seed }, entries);
    this.#forgetSegments(key);
  }

  /** Writes a segment, in place of the one of this number. */
  #put(key: string, segment: NamedSegment, entries: readonly Entry[]): void {
    const row = { key, ...rowOf(segment, entries) };
    const query = `SELECT ${LENGTH} FROM answers WHERE key = ? AND idempotency_key = ?`;
    const [before] = this.#tables.rows<{ length: number }>("answers", query, key, row.idempotency_key);
    this.#tables.put("answers", row);
    this.#addLength(segment.from, lengthOf(key, row.idempotency_key, row) - (before?.length ?? 0));
  }

  #entries(key: string, segment: Segment): readonly Entry[] {
    const query = "SELECT answer FROM answers WHERE key = ? AND idempotency_key = ?";
    const [row] = this.#tables.rows<{ answer: string }>("answers", query, key, nameOf(segment));
    return row === undefined ? [] : (JSON.parse(row.answer) as Entry[]);
  }
}

function lengthOf(key: string, id: string, { request, answer }: Omit<StoredAnswer, "atMs">): number {
  return key.length + id.length + request.length + answer.length;
}

/** The beginning of the range of all answers of the same caller, or of all ends of its holds. */
export function callerOf(idempotencyKey: string, request: string): string {
  const [from] = request === END_OF_HOLD ? rangeOfEnds(idempotencyKey) : rangeOf(idempotencyKey);
  return from;
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
