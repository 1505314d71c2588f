import type { AuditEntry } from "../../core/catalog/calls.ts";
import type { Table } from "../../core/catalog/overrides.ts";
import { instantText } from "../../core/clock.ts";

/** So many changes are remembered one by one. Who knows less gets all there is. */
const MAX_CHANGES = 20_000;

/** What is stored of a policy: `fields` is undefined where the file says what it is, and where it is gone. */
export interface StoredPolicy {
  readonly name: string;
  /** Rises with every change of it or of its overrides. */
  readonly version: number;
  /** Rises with every change of its own fields. */
  readonly ownVersion: number;
  readonly fields?: Table;
  /** What it was when it was taken away. */
  readonly last?: Table;
}

/** What is stored of an override. */
export interface StoredOverride {
  readonly policy: string;
  readonly pattern: string;
  readonly version: number;
  readonly fields: Table;
}

/** What there may be so many of: overrides of all policies; of one policy patterns with several wildcards, and lengths. */
type OverrideBound = "overrides" | "manifold" | "beginnings" | "ends";

/** The catalog, table by table. All methods are synchronous. */
export class CatalogStore {
  readonly #tables: CatalogTables;

  constructor(tables: CatalogTables) {
    this.#tables = tables;
  }

  /** The revision of the last change; 0: there was none. */
  get revision(): number {
    return this.#tables.number("SELECT max(revision) AS number FROM changes") ?? 0;
  }

  /** The first change that is still remembered. */
  get firstRevision(): number {
    return this.#tables.number("SELECT min(revision) AS number FROM changes") ?? 0;
  }

  /** How many there are now. */
  count(table: "policies" | "overrides" | "tokens"): number {
    const where = table === "policies" ? " WHERE fields IS NOT NULL" : "";
    return this.#tables.number(`SELECT count(*) AS number FROM ${table}${where}`) ?? 0;
  }

  policy(name: string): StoredPolicy | undefined {
    const row = this.#tables.one("SELECT * FROM policies WHERE name = ?", name);
    return row && policyOf(row);
  }

  policies(): StoredPolicy[] {
    return this.#tables.all("SELECT * FROM policies ORDER BY name").map(policyOf);
  }

  override(policy: string, pattern: string): StoredOverride | undefined {
    const row = this.#tables.one("SELECT * FROM overrides WHERE policy = ? AND pattern = ?", policy, pattern);
    return row && overrideOf(row);
  }

  /** The overrides of a policy after a pattern, in the order of their bytes. */
  overridesAfter(policy: string, after: string, most: number): StoredOverride[] {
    return this.#tables
      .all(
        "SELECT * FROM overrides WHERE policy = ? AND pattern > ? ORDER BY pattern LIMIT ?",
        policy,
        after,
        most,
      )
      .map(overrideOf);
  }

  allOverrides(): StoredOverride[] {
    return this.#tables.all("SELECT * FROM overrides ORDER BY policy, pattern").map(overrideOf);
  }

  /** Those that have ended by now. */
  endedOverrides(nowMs: number): StoredOverride[] {
    return this.#tables.all("SELECT * FROM overrides WHERE ends_at_ms <= ?", nowMs).map(overrideOf);
  }

  /** When the next override ends; `undefined`: none does. */
  get nextEndMs(): number | undefined {
    return this.#tables.number("SELECT min(ends_at_ms) AS number FROM overrides");
  }

  countOverrides(policy: string): number {
    return this.#tables.number("SELECT count(*) AS number FROM overrides WHERE policy = ?", policy) ?? 0;
  }

  /**
   * How much of each bound overrides take.
   *
   * @param keyPrefix counts only patterns that begin with this
   */
  overrideCounts(policy: string, keyPrefix = ""): Record<OverrideBound, number> {
    const count = (what: string, where: string, ...values: string[]) =>
      this.#tables.number(
        `SELECT count(${what}) AS number FROM overrides WHERE substr(pattern, 1, length(?1)) = ?1 AND ${where}`,
        keyPrefix,
        ...values,
      ) ?? 0;
    const lengths = (length: string) =>
      count(`DISTINCT ${length}`, "policy = ?2 AND instr(pattern, '*') > 0", policy);
    const upToLast = "rtrim(pattern, replace(pattern, '*', ''))";
    return {
      overrides: count("*", "true"),
      manifold: count("*", "policy = ?2 AND pattern LIKE '%*%*%'", policy),
      beginnings: lengths("instr(pattern, '*')"),
      ends: lengths(`length(pattern) - length(${upToLast})`),
    };
  }

  token(name: string): Table | undefined {
    const row = this.#tables.one("SELECT entry FROM tokens WHERE name = ?", name);
    return row && tableIn(row, "entry");
  }

  tokens(): { name: string; entry: Table }[] {
    const rows = this.#tables.all("SELECT name, entry FROM tokens ORDER BY name");
    return rows.map((row) => ({ name: textIn(row, "name"), entry: tableIn(row, "entry") }));
  }

  /** Writes a policy's own fields; `undefined`: they are taken away. Returns the version. */
  writePolicy(name: string, fields: Table | undefined): number {
    const before = this.policy(name);
    const version = this.#note("policy", name);
    const last = fields === undefined ? (before?.fields ?? before?.last) : undefined;
    this.#put({ name, version, ownVersion: version, ...(fields && { fields }), ...(last && { last }) });
    return version;
  }

  /** Something of a policy beside its own fields has changed: its version rises. Returns the version. */
  touch(name: string): number {
    const version = this.#note("policy", name);
    this.#put({ name, ownVersion: 0, ...this.policy(name), version });
    return version;
  }

  /** Writes an override; `undefined`: it is taken away. The version of its policy rises with it. */
  writeOverride(policy: string, pattern: string, fields: Table | undefined, endsAtMs?: number): number {
    const version = this.#note("override", policy, pattern);
    this.#put({ name: policy, ownVersion: 0, ...this.policy(policy), version });
    if (fields === undefined)
      this.#tables.run("DELETE FROM overrides WHERE policy = ? AND pattern = ?", policy, pattern);
    else
      this.#tables.run(
        "INSERT OR REPLACE INTO overrides (policy, pattern, version, fields, ends_at_ms) VALUES (?, ?, ?, ?, ?)",
        policy,
        pattern,
        version,
        JSON.stringify(fields),
        endsAtMs ?? null,
      );
    return version;
  }

  writeToken(name: string, entry: Table | undefined): number {
    const version = this.#note("token", name);
    if (entry === undefined) this.#tables.run("DELETE FROM tokens WHERE name = ?", name);
    else
      this.#tables.run(
        "INSERT OR REPLACE INTO tokens (name, version, entry) VALUES (?, ?, ?)",
        name,
        version,
        JSON.stringify(entry),
      );
    return version;
  }

  /** What has changed after a revision, each thing once. */
  changedAfter(revision: number): { kind: string; name: string; pattern: string }[] {
    const query = "SELECT DISTINCT kind, name, pattern FROM changes WHERE revision > ?";
    return this.#tables.all(query, revision).map((row) => ({
      kind: textIn(row, "kind"),
      name: textIn(row, "name"),
      pattern: textIn(row, "pattern"),
    }));
  }

  #put({ name, version, ownVersion, fields, last }: StoredPolicy): void {
    const text = (table: Table | undefined) => (table === undefined ? null : JSON.stringify(table));
    const query =
      "INSERT OR REPLACE INTO policies (name, version, own_version, fields, last) VALUES (?, ?, ?, ?, ?)";
    this.#tables.run(query, name, version, ownVersion, text(fields), text(last));
  }

  /** Notes a change, and returns its revision. */
  #note(kind: "policy" | "override" | "token", name: string, pattern = ""): number {
    const revision = this.revision + 1;
    const query = "INSERT INTO changes (revision, kind, name, pattern) VALUES (?, ?, ?, ?)";
    this.#tables.run(query, revision, kind, name, pattern);
    this.#tables.run("DELETE FROM changes WHERE revision <= ?", revision - MAX_CHANGES);
    return revision;
  }
}

function policyOf(row: Row): StoredPolicy {
  const [fields, last] = [row["fields"], row["last"]];
  return {
    name: textIn(row, "name"),
    version: Number(row["version"]),
    ownVersion: Number(row["own_version"]),
    ...(typeof fields === "string" && { fields: JSON.parse(fields) as Table }),
    ...(typeof last === "string" && { last: JSON.parse(last) as Table }),
  };
}

function overrideOf(row: Row): StoredOverride {
  return {
    policy: textIn(row, "policy"),
    pattern: textIn(row, "pattern"),
    version: Number(row["version"]),
    fields: tableIn(row, "fields"),
  };
}

function tableIn(row: Row, column: string): Table {
  return JSON.parse(textIn(row, column)) as Table;
}

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

/** So many entries are kept. */
const MAX_ENTRIES = 20_000;

/** Who changed what, and when. */
export class AuditLog {
  readonly #tables: CatalogTables;

  constructor(tables: CatalogTables) {
    this.#tables = tables;
  }

  /** Adds an entry. `undefined`: there was nothing, or is nothing. */
  add(atMs: number, by: string, target: string, before: unknown, after: unknown): void {
    const text = (value: unknown) => (value === undefined ? null : JSON.stringify(value));
    this.#tables.run(
      "INSERT INTO audit (at_ms, who, target, before, after) VALUES (?, ?, ?, ?, ?)",
      atMs,
      by,
      target,
      text(before),
      text(after),
    );
    this.#tables.run("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", MAX_ENTRIES);
  }

  /** The entries before one, the latest first. */
  before(id: number, most: number): AuditEntry[] {
    const value = (text: SqlStorageValue | undefined): unknown =>
      typeof text === "string" ? JSON.parse(text) : null;
    const rows = this.#tables.all("SELECT * FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?", id, most);
    return rows.map((row) => ({
      id: Number(row["id"]),
      at: instantText(Number(row["at_ms"])),
      by: textIn(row, "who"),
      target: textIn(row, "target"),
      before: value(row["before"]),
      after: value(row["after"]),
    }));
  }
}
