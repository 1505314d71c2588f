import type { StoredAccount } from "./write-ahead.ts";

/** One key's record: its policy and, by rule name, what is stored of each rule. */
export interface StoredKey {
  readonly key: string;
  readonly policy: string;
  readonly rules: Readonly<Record<string, StoredAccount>>;
}

/** What an idempotency key was used for, and what was answered. */
export interface StoredAnswer {
  readonly request: string;
  readonly answer: string;
  readonly atMs: number;
}

/**
 * How many answers a key remembers: enough for 24 hours at one idempotent call in eight seconds, against
 * about 300 bytes each. When there are more, the oldest tenth goes at once, so a call costs one deleted row
 * on average and not a search for the oldest each time.
 */
export const MOST_ANSWERS = 10_000;
export const ANSWERS_DROPPED = MOST_ANSWERS / 10;

/** An alarm looks at so many keys and then comes again at once, so that no sweep holds up the callers. */
export const SWEEP_KEYS = 1_000;

/**
 * The tables. Their names and columns are for ever. Each is made when it is first written to, since making
 * one is two rows written; `WITHOUT ROWID` makes a write to it one row, not two.
 */
const SCHEMA = {
  keys: `CREATE TABLE IF NOT EXISTS keys (
    key TEXT PRIMARY KEY, policy TEXT NOT NULL, rules TEXT NOT NULL, whole_at_ms INTEGER NOT NULL
  ) WITHOUT ROWID`,
  answers: `CREATE TABLE IF NOT EXISTS answers (
    key TEXT, idempotency_key TEXT, request TEXT NOT NULL, answer TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (key, idempotency_key)
  ) WITHOUT ROWID`,
};
type Table = keyof typeof SCHEMA;

/**
 * The object's storage: synchronous, so nothing comes between reading and writing. The tables exist only
 * while there is something in them.
 */
export class Storage {
  readonly #storage: DurableObjectStorage;
  #tables: Set<string>;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
    this.#tables = this.#readTables();
  }

  /** Whether anything is stored. Answers never are without a key's record beside them at first. */
  get isEmpty(): boolean {
    return !this.#tables.has("keys");
  }

  /** Does all of it or, if any of it throws, none. */
  atomically<Result>(work: () => Result): Result {
    try {
      return this.#storage.transactionSync(work);
    } catch (error) {
      // A table that the work made has gone with it.
      this.#tables = this.#readTables();
      throw error;
    }
  }

  read(key: string): StoredKey | undefined {
    if (!this.#tables.has("keys")) return undefined;
    const row = this.#storage.sql
      .exec<KeyRow>("SELECT key, policy, rules FROM keys WHERE key = ?", key)
      .toArray()[0];
    return row === undefined ? undefined : fromRow(row);
  }

  write({ key, policy, rules }: StoredKey, wholeAtMs: number): void {
    this.#make("keys");
    this.#storage.sql.exec(
      "INSERT OR REPLACE INTO keys (key, policy, rules, whole_at_ms) VALUES (?, ?, ?, ?)",
      key,
      policy,
      JSON.stringify(rules),
      wholeAtMs,
    );
  }

  remove(key: string): void {
    if (this.#tables.has("keys")) this.#storage.sql.exec("DELETE FROM keys WHERE key = ?", key);
  }

  answer(key: string, idempotencyKey: string): StoredAnswer | undefined {
    if (!this.#tables.has("answers")) return undefined;
    return this.#storage.sql
      .exec<{ request: string; answer: string; atMs: number }>(
        "SELECT request, answer, at_ms AS atMs FROM answers WHERE key = ? AND idempotency_key = ?",
        key,
        idempotencyKey,
      )
      .toArray()[0];
  }

  writeAnswer(key: string, idempotencyKey: string, { request, answer, atMs }: StoredAnswer): void {
    this.#make("answers");
    this.#storage.sql.exec(
      "INSERT OR REPLACE INTO answers (key, idempotency_key, request, answer, at_ms) VALUES (?, ?, ?, ?, ?)",
      key,
      idempotencyKey,
      request,
      answer,
      atMs,
    );
  }

  countAnswers(key: string): number {
    if (!this.#tables.has("answers")) return 0;
    return this.#number("SELECT count(*) AS number FROM answers WHERE key = ?", key) ?? 0;
  }

  /** Forgets the oldest tenth of a key's answers. */
  removeOldestAnswers(key: string): void {
    this.#storage.sql.exec(
      `DELETE FROM answers WHERE key = ?1 AND idempotency_key IN
        (SELECT idempotency_key FROM answers WHERE key = ?1 ORDER BY at_ms LIMIT ?2)`,
      key,
      ANSWERS_DROPPED,
    );
  }

  removeAnswers(key: string): void {
    if (this.#tables.has("answers")) this.#storage.sql.exec("DELETE FROM answers WHERE key = ?", key);
  }

  /** Keys that were expected to be whole by `nowMs` when they were written. */
  readWholeBy(nowMs: number): StoredKey[] {
    if (!this.#tables.has("keys")) return [];
    return this.#storage.sql
      .exec<KeyRow>("SELECT key, policy, rules FROM keys WHERE whole_at_ms <= ? LIMIT ?", nowMs, SWEEP_KEYS)
      .toArray()
      .map(fromRow);
  }

  /** Forgets answers given at or before `atMs` of keys that are whole, that is, have no record. */
  removeAnswersUntil(atMs: number): void {
    if (!this.#tables.has("answers")) return;
    this.#storage.sql.exec(
      "DELETE FROM answers WHERE at_ms <= ? AND key NOT IN (SELECT key FROM keys)",
      atMs,
    );
  }

  /** When the next key becomes whole, as far as is stored. */
  nextWholeAtMs(): number | undefined {
    return this.#number("SELECT min(whole_at_ms) AS number FROM keys");
  }

  /** When the oldest answer was given that only its age keeps. */
  oldestAnswerAtMs(): number | undefined {
    if (!this.#tables.has("answers")) return undefined;
    return this.#number("SELECT min(at_ms) AS number FROM answers WHERE key NOT IN (SELECT key FROM keys)");
  }

  /** Deletes everything, tables and alarm too: storage is as if the object had never been. */
  removeAll(): Promise<void> {
    // workerd deletes before the promise resolves, so whoever writes next must make the tables anew.
    this.#tables.clear();
    return this.#storage.deleteAll();
  }

  #make(table: Table): void {
    if (this.#tables.has(table)) return;
    this.#storage.sql.exec(SCHEMA[table]);
    this.#tables.add(table);
  }

  #readTables(): Set<string> {
    const tables = this.#storage.sql.exec<{ name: string }>(
      "SELECT name FROM sqlite_master WHERE type = 'table'",
    );
    return new Set(tables.toArray().map(({ name }) => name));
  }

  #number(query: string, ...bindings: string[]): number | undefined {
    return this.#storage.sql.exec<{ number: number | null }>(query, ...bindings).one().number ?? undefined;
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
