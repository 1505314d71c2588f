import type {
  AuditEntry,
  CandidateInCatalog,
  CatalogChanges,
  CatalogDocument,
  OverrideChange,
  OverrideInCatalog,
  PolicyChange,
  Table,
  Versioned,
} from "../../core/catalog/calls.ts";
import { instantText } from "../../core/clock.ts";

/** The changes that are kept one by one. A reader of an earlier revision gets everything. */
const MAX_CHANGES = 20_000;
const MAX_ENTRIES = 20_000;

/** The catalog's tables. Never rename them or their columns. */
const SCHEMA = [
  // `fields` is null after a deletion: a policy's version never falls.
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
  // The latest snapshot in Workers KV: one row.
  `CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, revision INTEGER NOT NULL, until_ms INTEGER NOT NULL
  )`,
  `CREATE TABLE IF NOT EXISTS changes (revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, pattern TEXT NOT NULL)`,
  `CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, who TEXT NOT NULL, target TEXT NOT NULL, before TEXT, after TEXT
  )`,
];

const POLICIES = `SELECT policies.*, candidates.version AS candidate_version, candidates.fields AS candidate_fields
  FROM policies LEFT JOIN candidates ON candidates.policy = policies.name`;

/** Without `fields`, the file defines the policy, or it was deleted. */
interface StoredPolicy extends PolicyChange {
  /** Rises with its own fields; `version` also with its overrides and candidate. */
  readonly ownVersion: number;
  /** Its fields before it was deleted. */
  readonly last?: Table;
}

/** Bounded counts: overrides, and of a policy patterns with several wildcards and lengths of their texts. */
export type OverrideCounts = Readonly<Record<"overrides" | "multiWildcards" | "beginnings" | "ends", number>>;

/** A snapshot in Workers KV. */
interface StoredEntry {
  /** Its key. */
  readonly id: string;
  readonly revision: number;
  /** No reader is sent there later. */
  readonly untilMs: number;
}

type Row = Record<string, SqlStorageValue>;

/** All SQL of the catalog, without checks. Methods are synchronous. Writing `undefined` deletes. */
export class CatalogStore {
  readonly #storage: DurableObjectStorage;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
    for (const query of SCHEMA) storage.sql.exec(query);
  }

  /** Runs `work` in a transaction, which is rolled back if it throws or its result is not kept. */
  atomically<Result>(work: () => Result, isKept: (result: Result) => boolean = () => true): Result {
    const undo = new Error("the write is undone");
    let undone: Result | undefined;
    try {
      return this.#storage.transactionSync(() => {
        const result = work();
        if (isKept(result)) return result;
        undone = result;
        throw undo;
      });
    } catch (error) {
      if (error === undo) return undone as Result;
      throw error;
    }
  }

  /** The revision of the last change; 0: none. */
  get revision(): number {
    return this.#number("SELECT max(revision) AS number FROM changes") ?? 0;
  }

  count(table: "policies" | "overrides" | "tokens"): number {
    const where = table === "policies" ? " WHERE fields IS NOT NULL" : "";
    return this.#number(`SELECT count(*) AS number FROM ${table}${where}`) ?? 0;
  }

  policy(name: string): StoredPolicy | undefined {
    return this.#rows(`${POLICIES} WHERE name = ?`, name).map(policyOf)[0];
  }

  policies(): StoredPolicy[] {
    return this.#rows(`${POLICIES} ORDER BY name`).map(policyOf);
  }

  override(policy: string, pattern: string): Versioned<OverrideInCatalog> | undefined {
    const query = "SELECT * FROM overrides WHERE policy = ? AND pattern = ?";
    return this.#rows(query, policy, pattern).map(overrideOf)[0];
  }

  /** The overrides of a policy after a pattern, in byte order. */
  overridesAfter(policy: string, after: string, max: number): Versioned<OverrideInCatalog>[] {
    const query = "SELECT * FROM overrides WHERE policy = ? AND pattern > ? ORDER BY pattern LIMIT ?";
    return this.#rows(query, policy, after, max).map(overrideOf);
  }

  allOverrides(): Versioned<OverrideInCatalog>[] {
    return this.#rows("SELECT * FROM overrides ORDER BY policy, pattern").map(overrideOf);
  }

  endedOverrides(nowMs: number): Versioned<OverrideInCatalog>[] {
    return this.#rows("SELECT * FROM overrides WHERE ends_at_ms <= ?", nowMs).map(overrideOf);
  }

  /** When the next override ends; `undefined`: none does. */
  get nextEndMs(): number | undefined {
    return this.#number("SELECT min(ends_at_ms) AS number FROM overrides");
  }

  countOverrides(policy: string): number {
    return this.#number("SELECT count(*) AS number FROM overrides WHERE policy = ?", policy) ?? 0;
  }

  /** @param keyPrefix counts only patterns that begin with this */
  overrideCounts(policy: string, keyPrefix = ""): OverrideCounts {
    const count = (what: string, where: string, ...values: string[]) =>
      this.#number(
        `SELECT count(${what}) AS number FROM overrides WHERE substr(pattern, 1, length(?1)) = ?1 AND ${where}`,
        keyPrefix,
        ...values,
      ) ?? 0;
    const lengths = (length: string) =>
      count(`DISTINCT ${length}`, "policy = ?2 AND instr(pattern, '*') > 0", policy);
    const upToLast = "rtrim(pattern, replace(pattern, '*', ''))";
    return {
      overrides: count("*", "true"),
      multiWildcards: count("*", "policy = ?2 AND pattern LIKE '%*%*%'", policy),
      beginnings: lengths("instr(pattern, '*')"),
      ends: lengths(`length(pattern) - length(${upToLast})`),
    };
  }

  candidate(policy: string): Versioned<CandidateInCatalog> | undefined {
    return this.#rows("SELECT * FROM candidates WHERE policy = ?", policy).map(candidateOf)[0];
  }

  candidates(): Versioned<CandidateInCatalog>[] {
    return this.#rows("SELECT * FROM candidates ORDER BY policy").map(candidateOf);
  }

  token(name: string): Table | undefined {
    const row = this.#rows("SELECT entry FROM tokens WHERE name = ?", name)[0];
    return row && tableIn(row, "entry");
  }

  tokens(): { name: string; entry: Table }[] {
    const rows = this.#rows("SELECT name, entry FROM tokens ORDER BY name");
    return rows.map((row) => ({ name: textIn(row, "name"), entry: tableIn(row, "entry") }));
  }

  /** Writes a policy's own fields. Each write returns the version. */
  writePolicy(name: string, fields: Table | undefined): number {
    const before = this.policy(name);
    const version = this.#note("policy", name);
    const last = fields === undefined ? (before?.fields ?? before?.last) : undefined;
    this.#put({ name, version, ownVersion: version, ...(fields && { fields }), ...(last && { last }) });
    return version;
  }

  /** The version of its policy rises, too. */
  writeOverride(policy: string, pattern: string, fields: Table | undefined, endsAtMs?: number): number {
    const version = this.#note("override", policy, pattern);
    this.#put({ name: policy, ownVersion: 0, ...this.policy(policy), version });
    if (fields === undefined)
      this.#run("DELETE FROM overrides WHERE policy = ? AND pattern = ?", policy, pattern);
    else {
      const row = { policy, pattern, version, fields: JSON.stringify(fields), ends_at_ms: endsAtMs ?? null };
      this.#replace("overrides", row);
    }
    return version;
  }

  /** The version of its policy rises, too. */
  writeCandidate(policy: string, fields: Table | undefined, sinceMs: number): number {
    const version = this.#note("policy", policy);
    this.#put({ name: policy, ownVersion: 0, ...this.policy(policy), version });
    if (fields === undefined) this.#run("DELETE FROM candidates WHERE policy = ?", policy);
    else this.#replace("candidates", { policy, version, fields: JSON.stringify(fields), since_ms: sinceMs });
    return version;
  }

  writeToken(name: string, entry: Table | undefined): number {
    const version = this.#note("token", name);
    if (entry === undefined) this.#run("DELETE FROM tokens WHERE name = ?", name);
    else this.#replace("tokens", { name, version, entry: JSON.stringify(entry) });
    return version;
  }

  everything(): CatalogChanges {
    return {
      revision: this.revision,
      isWhole: true,
      policies: this.policies().map(changeOf),
      overrides: this.allOverrides().map(({ value }) => value),
      tokens: this.tokens(),
    };
  }

  /** The current state of each item changed after a revision; `undefined`: that is unknown, or there are more changes. */
  changes(since: number, max = MAX_CHANGES): CatalogChanges | undefined {
    const { revision } = this;
    const firstRevision = this.#number("SELECT min(revision) AS number FROM changes") ?? 0;
    if (since <= 0 || since > revision || since < firstRevision - 1 || revision - since > max)
      return undefined;
    const query = "SELECT DISTINCT kind, name, pattern FROM changes WHERE revision > ?";
    const names = { policy: new Set<string>(), token: new Set<string>() };
    const overrides: OverrideChange[] = [];
    for (const row of this.#rows(query, since)) {
      const [kind, name, pattern] = [textIn(row, "kind"), textIn(row, "name"), textIn(row, "pattern")];
      names[kind === "token" ? "token" : "policy"].add(name);
      if (kind === "override")
        overrides.push(this.override(name, pattern)?.value ?? { policy: name, pattern });
    }
    return {
      revision,
      isWhole: false,
      policies: [...names.policy].flatMap((name) => this.policy(name) ?? []).map(changeOf),
      overrides,
      tokens: [...names.token].map((name) => {
        const entry = this.token(name);
        return { name, ...(entry && { entry }) };
      }),
    };
  }

  get entry(): StoredEntry | undefined {
    const row = this.#rows("SELECT * FROM entries")[0];
    return (
      row && {
        id: textIn(row, "id"),
        revision: Number(row["revision"]),
        untilMs: Number(row["until_ms"]),
      }
    );
  }

  writeEntry({ id, revision, untilMs }: StoredEntry): void {
    this.#replace("entries", { number: 1, id, revision, until_ms: untilMs });
  }

  /** The size of the document as JSON, some bytes too large. */
  get bytes(): number {
    const text = (column: string) => `octet_length(json_quote(${column}))`;
    // Each entry has a colon and a comma, and the overrides of a policy have braces too.
    const parts = [
      [`${text("name")} + octet_length(fields) + 2`, "policies WHERE fields IS NOT NULL"],
      [`${text("pattern")} + octet_length(fields) + 2`, "overrides"],
      [`${text("policy")} + 4`, "(SELECT DISTINCT policy FROM overrides)"],
      [`${text("policy")} + octet_length(fields) + 2`, "candidates"],
      [`${text("name")} + octet_length(entry) + 2`, "tokens"],
    ] as const;
    const empty = JSON.stringify({ policies: {}, overrides: {}, tokens: {}, candidates: {} }).length;
    const size = ([bytes, rows]: (typeof parts)[number]) =>
      this.#number(`SELECT sum(${bytes}) AS number FROM ${rows}`) ?? 0;
    return parts.reduce((sum, part) => sum + size(part), empty);
  }

  document(): CatalogDocument {
    const policies = this.policies().flatMap(({ name, fields }) => (fields ? [[name, fields] as const] : []));
    const byPolicy = Map.groupBy(this.allOverrides(), ({ value }) => value.policy);
    const overrides = [...byPolicy].map(([policy, its]) => {
      const patterns = its.map(({ value }) => [value.pattern, value.fields] as const);
      return [policy, Object.fromEntries(patterns)] as const;
    });
    const candidates = this.candidates().map(({ value }) => [value.policy, value.fields] as const);
    // A policy may be called "constructor", and a pattern "__proto__": `fromEntries` makes own fields of
    // them.
    return {
      policies: Object.fromEntries(policies),
      overrides: Object.fromEntries(overrides),
      tokens: Object.fromEntries(this.tokens().map(({ name, entry }) => [name, entry])),
      ...(candidates.length > 0 && { candidates: Object.fromEntries(candidates) }),
    };
  }

  /** `undefined` before or after: there was or is no value. */
  addToAudit(atMs: number, by: string, target: string, before: Table | undefined, after: Table | undefined) {
    const values = { before: textOrNull(before), after: textOrNull(after) };
    this.#replace("audit", { at_ms: atMs, who: by, target, ...values });
    this.#run("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", MAX_ENTRIES);
  }

  /** The audit entries before one, latest first. */
  auditBefore(id: number, max: number): AuditEntry[] {
    const rows = this.#rows("SELECT * FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?", id, max);
    return rows.map((row) => ({
      id: Number(row["id"]),
      at: instantText(Number(row["at_ms"])),
      by: textIn(row, "who"),
      target: textIn(row, "target"),
      before: row["before"] === null ? null : tableIn(row, "before"),
      after: row["after"] === null ? null : tableIn(row, "after"),
    }));
  }

  #put({ name, version, ownVersion, fields, last }: StoredPolicy): void {
    const values = { fields: textOrNull(fields), last: textOrNull(last) };
    this.#replace("policies", { name, version, own_version: ownVersion, ...values });
  }

  /** Adds a change, and returns its revision. */
  #note(kind: "policy" | "override" | "token", name: string, pattern = ""): number {
    const revision = this.revision + 1;
    this.#replace("changes", { revision, kind, name, pattern });
    this.#run("DELETE FROM changes WHERE revision <= ?", revision - MAX_CHANGES);
    return revision;
  }

  /** Writes a row, by column. It replaces the one with the same primary key. */
  #replace(table: string, row: Row): void {
    const columns = Object.keys(row);
    const values = columns.map(() => "?").join(", ");
    const query = `INSERT OR REPLACE INTO ${table} (${columns.join(", ")}) VALUES (${values})`;
    this.#run(query, ...Object.values(row));
  }

  #run(query: string, ...bindings: SqlStorageValue[]): void {
    this.#storage.sql.exec(query, ...bindings);
  }

  #rows(query: string, ...bindings: SqlStorageValue[]): Row[] {
    return this.#storage.sql.exec<Row>(query, ...bindings).toArray();
  }

  /** The column `number` of the only row; `undefined`: null. */
  #number(query: string, ...bindings: SqlStorageValue[]): number | undefined {
    const value = this.#rows(query, ...bindings)[0]?.["number"];
    return typeof value === "number" ? value : undefined;
  }
}

/** Without the fields that only the object needs. */
function changeOf({ name, version, fields, candidate }: StoredPolicy): PolicyChange {
  return { name, version, ...(fields && { fields }), ...(candidate && { candidate }) };
}

function policyOf(row: Row): StoredPolicy {
  const optional = (column: string) => (row[column] === null ? undefined : tableIn(row, column));
  const [fields, last, candidate] = ["fields", "last", "candidate_fields"].map(optional);
  return {
    name: textIn(row, "name"),
    version: Number(row["version"]),
    ownVersion: Number(row["own_version"]),
    ...(fields && { fields }),
    ...(last && { last }),
    ...(candidate && { candidate: { version: Number(row["candidate_version"]), fields: candidate } }),
  };
}

function overrideOf(row: Row): Versioned<OverrideInCatalog> {
  const [policy, pattern] = [textIn(row, "policy"), textIn(row, "pattern")];
  return { version: Number(row["version"]), value: { policy, pattern, fields: tableIn(row, "fields") } };
}

function candidateOf(row: Row): Versioned<CandidateInCatalog> {
  const [policy, sinceMs] = [textIn(row, "policy"), Number(row["since_ms"])];
  return { version: Number(row["version"]), value: { policy, fields: tableIn(row, "fields"), sinceMs } };
}

function tableIn(row: Row, column: string): Table {
  return JSON.parse(textIn(row, column)) as Table;
}

function textIn(row: Row, column: string): string {
  const value = row[column];
  if (typeof value !== "string") throw new Error(`the column ${column} has no text`);
  return value;
}

function textOrNull(table: Table | undefined): string | null {
  return table === undefined ? null : JSON.stringify(table);
}
