/** The catalog's tables. Their names and columns are stored for ever: never rename them. */

const SCHEMA = [
  // `fields` is null for what was taken away: a policy's version never falls.
  `CREATE TABLE IF NOT EXISTS policies (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, own_version INTEGER NOT NULL, fields TEXT, last TEXT
  ) WITHOUT ROWID`,
  `CREATE TABLE IF NOT EXISTS overrides (
    policy TEXT, pattern TEXT, version INTEGER NOT NULL, fields TEXT NOT NULL, ends_at_ms INTEGER,
    PRIMARY KEY (policy, pattern)
  ) WITHOUT ROWID`,
  `CREATE TABLE IF NOT EXISTS candidates (
    policy TEXT PRIMARY KEY, version INTEGER NOT NULL, fields TEXT NOT NULL, since_ms INTEGER NOT NULL
  ) WITHOUT ROWID`,
  `CREATE TABLE IF NOT EXISTS tokens (name TEXT PRIMARY KEY, version INTEGER NOT NULL, entry TEXT NOT NULL) WITHOUT ROWID`,
  `CREATE TABLE IF NOT EXISTS changes (revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, pattern TEXT NOT NULL)`,
  `CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, who TEXT NOT NULL, target TEXT NOT NULL, before TEXT, after TEXT
  )`,
];

export type Row = Record<string, SqlStorageValue>;

/** The tables, and the queries on them. All methods are synchronous. */
export class CatalogTables {
  readonly #storage: DurableObjectStorage;
  #isMade = false;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
  }

  /** Runs `work` in a transaction. When it throws, nothing has changed. */
  atomically<Result>(work: () => Result): Result {
    this.#make();
    return this.#storage.transactionSync(work);
  }

  run(query: string, ...bindings: SqlStorageValue[]): void {
    this.#make();
    this.#storage.sql.exec(query, ...bindings);
  }

  all(query: string, ...bindings: SqlStorageValue[]): Row[] {
    this.#make();
    return this.#storage.sql.exec<Row>(query, ...bindings).toArray();
  }

  one(query: string, ...bindings: SqlStorageValue[]): Row | undefined {
    return this.all(query, ...bindings)[0];
  }

  /** The value of the column `number` in a query's only row; `undefined`: it is null. */
  number(query: string, ...bindings: SqlStorageValue[]): number | undefined {
    const value = this.one(query, ...bindings)?.["number"];
    return typeof value === "number" ? value : undefined;
  }

  /** Before any transaction, whose end could take the tables away again. */
  #make(): void {
    if (this.#isMade) return;
    for (const query of SCHEMA) this.#storage.sql.exec(query);
    this.#isMade = true;
  }
}

/** The text in a column that always has some. */
export function textIn(row: Row, column: string): string {
  const value = row[column];
  if (typeof value !== "string") throw new Error(`the column ${column} has no text`);
  return value;
}
