import type { MovedSegment } from "../../core/protocol/object-methods.ts";
import type { Journal } from "./journal.ts";
import type { Tables } from "./records.ts";

/** A type, since an interface is none of SQLite's rows. */
export type Move = {
  /** It rises with each move of the key. */
  readonly move: number;
  /** The name of the object that received the key; `null`: the key has arrived here. */
  readonly other: string | null;
  /** How often it was sent in this move: an answer may have been lost. */
  readonly times: number;
  /** When nothing sent with the key counts any more. */
  readonly dueMs: number;
};

/** The keys that were given away or have arrived. A key that never moved has no row. */
export class StoredMoves {
  readonly #tables: Tables;
  readonly #journal: Pick<Journal, "fold">;

  constructor(tables: Tables, journal: Pick<Journal, "fold">) {
    this.#tables = tables;
    this.#journal = journal;
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
    return this.#tables.rows<Move>("moves", query, key)[0];
  }

  write(key: string, { move, other, times, dueMs }: Move): void {
    this.#tables.put("moves", { key, move, other, times, due_ms: dueMs });
  }

  remove(key: string): void {
    this.#tables.remove("moves", "key = ?", key);
  }

  /** Deletes rows of moves that have no effect any more and whose keys have no record. */
  sweep(nowMs: number) {
    if (this.isEmpty) return { left: 0, dueMs: Infinity };
    this.#journal.fold();
    const isUnrecorded = "NOT EXISTS (SELECT 1 FROM keys WHERE keys.key = moves.key)";
    this.#tables.exec(`DELETE FROM moves WHERE due_ms <= ? AND ${isUnrecorded}`, nowMs);
    const query = "SELECT count(*) AS left, min(due_ms) AS dueMs FROM moves";
    const { left, dueMs } = this.#tables.exec<{ left: number; dueMs: number | null }>(query).one();
    return { left, dueMs: dueMs ?? Infinity };
  }

  segmentsOf(key: string): MovedSegment[] {
    type SegmentRow = { rule: string; log: number; start: number; toMs: number; entries: ArrayBuffer };
    const query = "SELECT rule, log, start, to_ms AS toMs, entries FROM segments WHERE key = ?";
    return this.#tables
      .rows<SegmentRow>("segments", query, key)
      .map(({ entries, ...segment }) => ({ ...segment, entries: [...new Float64Array(entries)] }));
  }

  putSegments(key: string, segments: readonly MovedSegment[]): void {
    for (const { toMs, entries, ...segment } of segments) {
      const { buffer } = Float64Array.from(entries);
      this.#tables.put("segments", { key, ...segment, to_ms: toMs, entries: buffer });
    }
  }
}
