import type { NewSegment, Segment } from "../../core/algorithms/algorithm.ts";
import { StoredAnswers } from "./answers.ts";
import type { Claim, StoredKey } from "./records.ts";
import { Tables } from "./tables.ts";

/** An alarm looks at so many keys and then comes again at once, so that no sweep holds up the callers. */
export const SWEEP_KEYS = 1_000;

/**
 * The object's storage, record by record. Synchronous, so nothing comes between reading and writing.
 */
export class Storage {
  readonly answers: StoredAnswers;
  readonly #tables: Tables;

  constructor(storage: DurableObjectStorage) {
    this.#tables = new Tables(storage);
    this.answers = new StoredAnswers(this.#tables);
  }

  /** Whether anything is stored. Nothing ever is without a key's record beside it at first. */
  get isEmpty(): boolean {
    return !this.#tables.has("keys");
  }

  /** Does all of it or, if any of it throws, none. */
  atomically<Result>(work: () => Result): Result {
    return this.#tables.atomically(work);
  }

  /** Deletes everything, tables and alarm too: storage is as if the object had never been. */
  removeAll(): Promise<void> {
    return this.#tables.removeAll();
  }

  read(key: string): StoredKey | undefined {
    if (!this.#tables.has("keys")) return undefined;
    const row = this.#tables
      .exec<KeyRow>("SELECT key, policy, rules FROM keys WHERE key = ?", key)
      .toArray()[0];
    return row === undefined ? undefined : fromRow(row);
  }

  write({ key, policy, rules }: StoredKey, wholeAtMs: number): void {
    this.#tables.make("keys");
    this.#tables.exec(
      "INSERT OR REPLACE INTO keys (key, policy, rules, whole_at_ms) VALUES (?, ?, ?, ?)",
      key,
      policy,
      JSON.stringify(rules),
      wholeAtMs,
    );
  }

  /** Forgets all there is of a key but its answers. */
  remove(key: string): void {
    for (const table of ["keys", "holds", "segments"] as const) {
      if (this.#tables.has(table)) this.#tables.exec(`DELETE FROM ${table} WHERE key = ?`, key);
    }
  }

  claims(key: string): Claim[] {
    if (!this.#tables.has("holds")) return [];
    return this.#tables
      .exec<{ claim: string }>("SELECT claim FROM holds WHERE key = ?", key)
      .toArray()
      .map(({ claim }) => JSON.parse(claim) as Claim);
  }

  writeClaim(key: string, claim: Claim): void {
    this.#tables.make("holds");
    const text = JSON.stringify(claim);
    this.#tables.exec("INSERT OR REPLACE INTO holds (key, id, claim) VALUES (?, ?, ?)", key, claim.id, text);
  }

  removeClaim(key: string, id: string): void {
    this.#tables.exec("DELETE FROM holds WHERE key = ? AND id = ?", key, id);
  }

  /** The segments of a rule's state, in order. */
  segments(key: string, rule: string): Segment[] {
    if (!this.#tables.has("segments")) return [];
    return this.#tables
      .exec<{ log: number; from: number; entries: ArrayBuffer }>(
        `SELECT log, start AS "from", entries FROM segments WHERE key = ? AND rule = ? ORDER BY log, start`,
        key,
        rule,
      )
      .toArray()
      .map(({ entries, ...segment }) => ({ ...segment, entries: [...new Float64Array(entries)] }));
  }

  /** Adds a segment and forgets those that are not needed any more. */
  writeSegment(key: string, rule: string, { log, from, toMs, keepFromMs, entries }: NewSegment): void {
    this.#tables.make("segments");
    this.#tables.exec(
      "DELETE FROM segments WHERE key = ? AND rule = ? AND (log <> ? OR to_ms < ?)",
      key,
      rule,
      log,
      keepFromMs,
    );
    this.#tables.exec(
      "INSERT OR REPLACE INTO segments (key, rule, log, start, to_ms, entries) VALUES (?, ?, ?, ?, ?, ?)",
      key,
      rule,
      log,
      from,
      toMs,
      Float64Array.from(entries).buffer,
    );
  }

  /** Keys that were expected to be whole by `nowMs` when they were written. */
  readWholeBy(nowMs: number): StoredKey[] {
    if (!this.#tables.has("keys")) return [];
    return this.#tables
      .exec<KeyRow>("SELECT key, policy, rules FROM keys WHERE whole_at_ms <= ? LIMIT ?", nowMs, SWEEP_KEYS)
      .toArray()
      .map(fromRow);
  }

  /** When the next key becomes whole, as far as is stored. */
  nextWholeAtMs(): number | undefined {
    return this.#tables.number("SELECT min(whole_at_ms) AS number FROM keys");
  }
}

interface KeyRow extends Record<string, SqlStorageValue> {
  key: string;
  policy: string;
  rules: string;
}

function fromRow({ key, policy, rules }: KeyRow): StoredKey {
  return { key, policy, rules: JSON.parse(rules) as StoredKey["rules"] };
}
