import type { NewSegment, Segment } from "../../core/algorithms/packed.ts";
import { StoredAnswers } from "./answers.ts";
import { StoredClaims } from "./claims.ts";
import { Leads } from "./leads.ts";
import { StoredMoves } from "./moves.ts";
import type { StoredKey } from "./records.ts";
import { Tables } from "./tables.ts";

/** The most keys that one alarm looks at. When more are due, the next alarm comes at once, so callers wait little. */
export const GARBAGE_KEYS = 1_000;

/** The object's storage, record by record. All methods but `removeAll` are synchronous. */
export class Storage {
  readonly answers: StoredAnswers;
  readonly claims: StoredClaims;
  readonly leads: Leads;
  readonly moves: StoredMoves;
  readonly #tables: Tables;

  constructor(storage: DurableObjectStorage) {
    this.#tables = new Tables(storage);
    this.answers = new StoredAnswers(this.#tables);
    this.claims = new StoredClaims(this.#tables);
    this.leads = new Leads(storage);
    this.moves = new StoredMoves(this.#tables);
  }

  /** Whether nothing is stored. Whatever else is stored of a key has a record or a move beside it, made first. */
  get isEmpty(): boolean {
    return !this.#tables.has("keys") && this.leads.isEmpty && this.moves.isEmpty;
  }

  /** Runs `work` in a transaction. When `work` throws, storage is as it was before. */
  atomically<Result>(work: () => Result): Result {
    try {
      return this.#tables.atomically(work);
    } catch (error) {
      this.claims.forgetCounts();
      throw error;
    }
  }

  /** Deletes everything, the tables and the alarm included. */
  removeAll(): Promise<void> {
    this.claims.forgetCounts();
    this.leads.forget();
    return this.#tables.removeAll();
  }

  /** The key's record; `undefined`: it has none, so nothing but answers is stored of the key. */
  read(key: string): StoredKey | undefined {
    if (!this.#tables.has("keys")) return undefined;
    const row = this.#tables
      .exec<KeyRow>("SELECT key, policy, rules FROM keys WHERE key = ?", key)
      .toArray()[0];
    return row === undefined ? undefined : fromRow(row);
  }

  /**
   * The first keys with this prefix, in the order of their bytes.
   *
   * @param after only keys after this one, which has the prefix; `undefined`: from the first
   */
  keysAfter(prefix: string, after: string | undefined, most: number): string[] {
    if (!this.#tables.has("keys")) return [];
    const from = after === undefined ? "key >= ?" : "key > ?";
    return this.#tables
      .exec<{ key: string }>(
        `SELECT key FROM keys WHERE ${from} AND key <= ? ${this.#isHere} ORDER BY key LIMIT ?`,
        after ?? prefix,
        lastWith(prefix),
        most,
      )
      .toArray()
      .map(({ key }) => key);
  }

  /** How many keys have this prefix. It reads a row for each. */
  countKeys(prefix: string): number {
    if (!this.#tables.has("keys")) return 0;
    const query = `SELECT count(*) AS number FROM keys WHERE key >= ? AND key <= ? ${this.#isHere}`;
    return this.#tables.number(query, prefix, lastWith(prefix)) ?? 0;
  }

  /** A condition on keys: records of keys that were given away stay until they have arrived. */
  get #isHere(): string {
    if (this.moves.isEmpty) return "";
    return "AND NOT EXISTS (SELECT 1 FROM moves WHERE moves.key = keys.key AND other IS NOT NULL)";
  }

  /** @param wholeAtMs when the key will be whole if nobody comes: from then on `readWholeBy` finds it */
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

  /** Deletes all that is stored of a key, except its answers. */
  remove(key: string): void {
    this.claims.removeAll(key);
    for (const table of ["keys", "segments"] as const) {
      if (this.#tables.has(table)) this.#tables.exec(`DELETE FROM ${table} WHERE key = ?`, key);
    }
  }

  /** The segments of a rule's state, in their order. */
  segments(key: string, rule: string): Segment[] {
    if (!this.#tables.has("segments")) return [];
    return this.#tables
      .exec<{ log: number; from: number; entries: ArrayBuffer }>(
        `SELECT log, start AS "from", entries FROM segments WHERE key = ? AND rule = ? ORDER BY log, start`,
        key,
        rule,
      )
      .toArray()
      .map(({ entries, ...segment }) => ({ ...segment, entries: new Float64Array(entries) }));
  }

  /** Adds a segment, and deletes the segments of the rule that are not needed any more. */
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

  /** At most `GARBAGE_KEYS` keys that, when they were last written, were expected to be whole by `nowMs`. */
  readWholeBy(nowMs: number): StoredKey[] {
    if (!this.#tables.has("keys")) return [];
    return this.#tables
      .exec<KeyRow>("SELECT key, policy, rules FROM keys WHERE whole_at_ms <= ? LIMIT ?", nowMs, GARBAGE_KEYS)
      .toArray()
      .map(fromRow);
  }

  /** When the next key is expected to be whole; `undefined`: no key has a record. */
  nextWholeAtMs(): number | undefined {
    if (!this.#tables.has("keys")) return undefined;
    return this.#tables.number("SELECT min(whole_at_ms) AS number FROM keys");
  }
}

/** A text that is not before any key with this prefix: keys have 512 bytes at most, and this has as many after it. */
function lastWith(prefix: string): string {
  return prefix + "\u{10FFFF}".repeat(128);
}

interface KeyRow extends Record<string, SqlStorageValue> {
  key: string;
  policy: string;
  rules: string;
}

function fromRow({ key, policy, rules }: KeyRow): StoredKey {
  return { key, policy, rules: JSON.parse(rules) as StoredKey["rules"] };
}
