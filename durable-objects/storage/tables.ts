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
  holds: `CREATE TABLE IF NOT EXISTS holds (
    key TEXT, id TEXT, claim TEXT NOT NULL, PRIMARY KEY (key, id)
  ) WITHOUT ROWID`,
  segments: `CREATE TABLE IF NOT EXISTS segments (
    key TEXT, rule TEXT, log INTEGER, start INTEGER, to_ms INTEGER NOT NULL, entries BLOB NOT NULL,
    PRIMARY KEY (key, rule, log, start)
  ) WITHOUT ROWID`,
};
export type Table = keyof typeof SCHEMA;

/** The tables that exist. Each does only while there is something in it. */
export class Tables {
  readonly #storage: DurableObjectStorage;
  #made: Set<string>;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
    this.#made = this.#readMade();
  }

  has(table: Table): boolean {
    return this.#made.has(table);
  }

  make(table: Table): void {
    if (this.#made.has(table)) return;
    this.#storage.sql.exec(SCHEMA[table]);
    this.#made.add(table);
  }

  exec<Row extends Record<string, SqlStorageValue>>(query: string, ...bindings: SqlStorageValue[]) {
    return this.#storage.sql.exec<Row>(query, ...bindings);
  }

  /** The one figure that a query asks for, as `number`. */
  number(query: string, ...bindings: SqlStorageValue[]): number | undefined {
    return this.exec<{ number: number | null }>(query, ...bindings).one().number ?? undefined;
  }

  atomically<Result>(work: () => Result): Result {
    try {
      return this.#storage.transactionSync(work);
    } catch (error) {
      // A table that the work made has gone with it.
      this.#made = this.#readMade();
      throw error;
    }
  }

  removeAll(): Promise<void> {
    // workerd deletes before the promise resolves, so whoever writes next must make the tables anew.
    this.#made.clear();
    return this.#storage.deleteAll();
  }

  #readMade(): Set<string> {
    const tables = this.exec<{ name: string }>("SELECT name FROM sqlite_master WHERE type = 'table'");
    return new Set(tables.toArray().map(({ name }) => name));
  }
}
