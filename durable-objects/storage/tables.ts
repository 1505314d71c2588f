import { type KeyRow, LoneRecord } from "./records.ts";

/**
 * The tables. Their names and columns are stored for ever: never rename them. A table is made when the object first
 * writes to it, because making one costs two rows written. With `WITHOUT ROWID` a write costs one row instead of two.
 */
const SCHEMA = {
  keys: `CREATE TABLE IF NOT EXISTS keys (
    key TEXT PRIMARY KEY, policy TEXT NOT NULL, rules TEXT NOT NULL, whole_at_ms INTEGER NOT NULL
  ) WITHOUT ROWID`,
  answers: `CREATE TABLE IF NOT EXISTS answers (
    key TEXT, idempotency_key TEXT, request TEXT NOT NULL, answer TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (key, idempotency_key)
  ) WITHOUT ROWID`,
  holds: `CREATE TABLE IF NOT EXISTS holds (
    key TEXT, id TEXT, claim TEXT NOT NULL, caller TEXT, PRIMARY KEY (key, id)
  ) WITHOUT ROWID`,
  segments: `CREATE TABLE IF NOT EXISTS segments (
    key TEXT, rule TEXT, log INTEGER, start INTEGER, to_ms INTEGER NOT NULL, entries BLOB NOT NULL,
    PRIMARY KEY (key, rule, log, start)
  ) WITHOUT ROWID`,
  moves: `CREATE TABLE IF NOT EXISTS moves (
    key TEXT PRIMARY KEY, move INTEGER NOT NULL, other TEXT, times INTEGER NOT NULL, due_ms INTEGER NOT NULL
  ) WITHOUT ROWID`,
};
export type Table = keyof typeof SCHEMA;

/** The object's tables: which of them exist, and the queries on them. All are gone after `removeAll`. */
export class Tables {
  readonly #storage: DurableObjectStorage;
  readonly #lone: LoneRecord;
  #made: Set<string>;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
    this.#lone = new LoneRecord(storage);
    // Reading at once costs no file: an object's file is there before its code runs (scripts/empty-databases.ts).
    this.#made = this.#readMade();
  }

  has(table: Table): boolean {
    return this.#made.has(table);
  }

  /** Where the record of the only key is, as long as there is no table; `undefined`: there is one. */
  get lone(): LoneRecord | undefined {
    return this.#made.has("keys") ? undefined : this.#lone;
  }

  /** Makes the table, unless it exists. Whatever is stored of a key has a record beside it, so `keys` is made first. */
  make(table: Table): void {
    if (this.#made.has(table)) return;
    if (!this.#made.has("keys")) this.atomically(() => this.#makeKeys());
    this.#storage.sql.exec(SCHEMA[table]);
    this.#made.add(table);
  }

  /** Writes a row of the table `keys`. */
  writeKey({ key, policy, rules, wholeAtMs }: KeyRow): void {
    this.make("keys");
    this.exec(
      "INSERT OR REPLACE INTO keys (key, policy, rules, whole_at_ms) VALUES (?, ?, ?, ?)",
      key,
      policy,
      rules,
      wholeAtMs,
    );
  }

  exec<Row extends Record<string, SqlStorageValue>>(query: string, ...bindings: SqlStorageValue[]) {
    return this.#storage.sql.exec<Row>(query, ...bindings);
  }

  /** The value of the column `number` in a query's only row; `undefined`: the value is null. */
  number(query: string, ...bindings: SqlStorageValue[]): number | undefined {
    return this.exec<{ number: number | null }>(query, ...bindings).one().number ?? undefined;
  }

  /** Runs `work` in a transaction. When `work` throws, storage is as it was before. */
  atomically<Result>(work: () => Result): Result {
    try {
      return this.#storage.transactionSync(work);
    } catch (error) {
      // The rollback also removed each table that `work` had made.
      this.#made = this.#readMade();
      this.#lone.reload();
      throw error;
    }
  }

  removeAll(): Promise<void> {
    // workerd deletes the tables before the promise resolves, so the next write must make its table again.
    this.#made.clear();
    this.#lone.forget();
    return this.#storage.deleteAll();
  }

  /** Makes the table `keys`. The record of the only key moves there. */
  #makeKeys(): void {
    this.#storage.sql.exec(SCHEMA.keys);
    this.#made.add("keys");
    const { row } = this.#lone;
    if (row === undefined) return;
    this.writeKey(row);
    this.#lone.remove();
  }

  #readMade(): Set<string> {
    const tables = this.exec<{ name: string; sql: string }>(
      "SELECT name, sql FROM sqlite_master WHERE type = 'table'",
    ).toArray();
    // Version 0.1.0 made this table without the column.
    if (tables.some(({ name, sql }) => name === "holds" && !sql.includes(" caller ")))
      this.exec("ALTER TABLE holds ADD COLUMN caller TEXT");
    return new Set(tables.map(({ name }) => name));
  }
}
