import type { MovedKey, MovedSegment } from "../../core/protocol/object-methods.ts";
import type { Tables } from "./records.ts";

export interface Move {
  /** It rises with each move of the key. */
  readonly move: number;
  /** The name of the object that received the key; `null`: the key has arrived here. */
  readonly other: string | null;
  /** How often it was sent in this move: an answer may have been lost. */
  readonly times: number;
  /** When nothing sent with the key counts any more. */
  readonly dueMs: number;
}

export interface SweptMoves {
  readonly left: number;
  readonly dueMs: number;
}

/** A key brings its newest answers: more would not fit in a message. */
const MAX_ANSWERS_MOVED = 20_000;

/** The keys that were given away or have arrived. A key that never moved has no row. */
export class StoredMoves {
  readonly #tables: Tables;

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  /** One comparison for objects whose keys never moved. */
  get isEmpty(): boolean {
    return !this.#tables.has("moves");
  }

  /** Whether another object received the key: its rows here do not count any more. */
  isAway(key: string): boolean {
    return (this.read(key)?.other ?? null) !== null;
  }

  read(key: string): Move | undefined {
    const query = "SELECT move, other, times, due_ms AS dueMs FROM moves WHERE key = ?";
    type Row = { move: number; other: string | null; times: number; dueMs: number };
    return this.#tables.rows<Row>("moves", query, key)[0];
  }

  write(key: string, { move, other, times, dueMs }: Move): void {
    this.#tables.make("moves");
    this.#tables.exec(
      "INSERT OR REPLACE INTO moves (key, move, other, times, due_ms) VALUES (?, ?, ?, ?, ?)",
      key,
      move,
      other,
      times,
      dueMs,
    );
  }

  remove(key: string): void {
    this.#tables.rows("moves", "DELETE FROM moves WHERE key = ?", key);
  }

  /** Deletes rows of moves that have no effect any more and whose keys have no record. */
  sweep(nowMs: number): SweptMoves {
    if (this.isEmpty) return { left: 0, dueMs: Infinity };
    this.#tables.exec(
      "DELETE FROM moves WHERE due_ms <= ? AND NOT EXISTS (SELECT 1 FROM keys WHERE keys.key = moves.key)",
      nowMs,
    );
    const { left, dueMs } = this.#tables
      .exec<{ left: number; dueMs: number | null }>(
        "SELECT count(*) AS left, min(due_ms) AS dueMs FROM moves",
      )
      .one();
    return { left, dueMs: dueMs ?? Infinity };
  }

  rowsOf(key: string): Pick<MovedKey, "segments" | "answers"> {
    const segments = this.#tables
      .rows<{ rule: string; log: number; start: number; toMs: number; entries: ArrayBuffer }>(
        "segments",
        "SELECT rule, log, start, to_ms AS toMs, entries FROM segments WHERE key = ?",
        key,
      )
      .map(({ entries, ...segment }) => ({ ...segment, entries: [...new Float64Array(entries)] }));
    const answers = this.#tables.rows<{
      idempotencyKey: string;
      request: string;
      answer: string;
      atMs: number;
    }>(
      "answers",
      `SELECT idempotency_key AS idempotencyKey, request, answer, at_ms AS atMs FROM answers
        WHERE key = ? ORDER BY at_ms DESC LIMIT ?`,
      key,
      MAX_ANSWERS_MOVED,
    );
    return { segments, answers };
  }

  putSegments(key: string, segments: readonly MovedSegment[]): void {
    for (const { rule, log, start, toMs, entries } of segments) {
      this.#tables.make("segments");
      this.#tables.exec(
        "INSERT OR REPLACE INTO segments (key, rule, log, start, to_ms, entries) VALUES (?, ?, ?, ?, ?, ?)",
        key,
        rule,
        log,
        start,
        toMs,
        Float64Array.from(entries).buffer,
      );
    }
  }
}
