/** The stored parts of a key, as JSON or columns: never rename a field. */
import { presumableOf } from "../../core/accounts/account.ts";
import { type Account, type Hold, spendableUntilMs } from "../../core/accounts/hold.ts";
import { afterLow, NOTHING_NOTICED, type Noticed, useOf } from "../../core/accounts/notices.ts";
import type { PackedState } from "../../core/algorithms/algorithm.ts";
import { withoutBlock } from "../../core/algorithms/penalty.ts";
import type { Lifetimes, Rule } from "../../core/policies/policy.ts";

/** The unit of records and claims that name none. */
export const USUAL_UNIT = "requests";

export interface StoredAccount {
  readonly algorithm: string;
  /** The result of the algorithm's `pack`. Absent: untouched. */
  readonly state?: unknown;
  /** Units that holders had, and that memory may admit before the next write (write-behind.ts). */
  readonly ahead: number;
  /** How long holders may spend units of `ahead` beside `presumed`. Absent: none, or an earlier version. */
  readonly ttlMs?: number;
  /** The part of `ahead` that was presumed, and its remaining time. Absent: none, or an earlier version. */
  readonly presumed?: readonly (readonly [units: number, leftMs: number])[];
  /** What the rule counts. Absent: requests, or unknown, since versions before conversions.ts wrote none. */
  readonly unit?: string;
  /** The memory that wrote this (`CrashAllowances.memory`). Absent in shares and earlier versions. */
  readonly by?: number;
  /** Thresholds that use has reached. Absent: none. */
  readonly reached?: Noticed["reached"];
  /** Notices that are still to be sent. Absent: none. Storage is searched for its name (storage.ts). */
  readonly unsent?: Noticed["unsent"];
}

/** One key's record, by rule name. */
export interface StoredKey {
  readonly key: string;
  readonly policy: string;
  readonly rules: Readonly<Record<string, StoredAccount>>;
}

/** What is noticed of a rule, as a part of its record, and as it was found there. */
export function storedNotices({ reached, unsent }: Noticed): Pick<StoredAccount, "reached" | "unsent"> {
  return { ...(reached.length > 0 && { reached }), ...(unsent.length > 0 && { unsent }) };
}

export function noticesIn(
  rule: Rule,
  { reached = [], unsent = [] }: Partial<StoredAccount> = {},
  account: Account,
  nowMs: number,
): Noticed {
  if (reached.length + unsent.length === 0) return NOTHING_NOTICED;
  const noticed = { reached, unsent };
  // While memory was ahead of this record, use may have been as low as the record says now, and no lower. What is leased
  // is stored, and thresholds with it.
  return rule.lease === undefined ? afterLow(noticed, useOf(rule, account, nowMs, 0), nowMs) : noticed;
}

export function storedName({ algorithm }: Rule): string {
  return algorithm.storedAs ?? algorithm.name;
}

export function isReadable(rule: Rule, stored: StoredAccount | undefined): stored is StoredAccount {
  return stored !== undefined && stored.algorithm === storedName(rule);
}

/** The state as the rule reads it: without its block if the rule has no penalty. */
export function readable({ algorithm }: Rule, state: unknown): unknown {
  return algorithm.hasPenalty === true || state === undefined ? state : withoutBlock(state);
}

/** A record keeps the units apart that were presumed after this many crashes. Others end a little later. */
const MAX_PRESUMED = 4;

/** `ahead`: units that memory may admit before the next write. `by`: the memory that has the account. */
export function record(
  rule: Rule,
  account: Account,
  ahead: number,
  nowMs: number,
  lifetimes: Lifetimes,
  before: StoredAccount | undefined,
  by?: number,
): { readonly stored: StoredAccount; readonly segment?: PackedState["segment"] } {
  const { state } = account;
  const { isShare = false } = rule.algorithm;
  const units = isShare ? 0 : ahead + presumableOf(account, nowMs);
  const ttlMs = lifeMs(account, nowMs, lifetimes, before);
  const header = {
    algorithm: storedName(rule),
    ahead: units,
    ...(units > 0 && { ttlMs, presumed: presumedIn(account, nowMs) }),
    ...(rule.lease === undefined && rule.unit !== USUAL_UNIT && { unit: rule.unit }),
    ...(!isShare && by !== undefined && { by }),
  };
  if (state === undefined) return { stored: header };
  const earlier = before?.algorithm === header.algorithm ? readable(rule, before.state) : undefined;
  const { record: packed, segment } = rule.algorithm.pack(rule.config, state, nowMs, earlier);
  return { stored: { ...header, state: packed }, segment };
}

/** How long holders may have units of this record. Exceeding it costs another row, so it is doubled. */
function lifeMs(account: Account, nowMs: number, lifetimes: Lifetimes, before?: StoredAccount): number {
  const { leastMs, mostMs } = lifetimes;
  const heldMs = spendableUntilMs(account) - nowMs;
  if (heldMs <= leastMs) return leastMs;
  return Math.max(heldMs, Math.min(2 * heldMs, mostMs), before?.ttlMs ?? 0);
}

function presumedIn({ holds }: Account, nowMs: number): NonNullable<StoredAccount["presumed"]> {
  const parts: [units: number, leftMs: number][] = [];
  for (const { isRestored, units, expiresAtMs } of holds)
    if (isRestored === true) parts.push([units, expiresAtMs - nowMs]);
  const merged = parts.splice(0, Math.max(0, parts.length - MAX_PRESUMED));
  const [next] = parts;
  if (next !== undefined) for (const [units] of merged) next[0] += units;
  return parts;
}

/** About the bytes of memory of a claim with its holds in the accounts (measured: 330 to 600). */
export const CLAIM_BYTES = 500;

/** A hold or a lease of a caller. */
export interface Claim {
  /** Unguessable, and unique within its key. */
  readonly id: string;
  readonly kind: "hold" | "lease";
  /** By rule name. A hold has units of rates only, a lease of concurrency rules only. */
  readonly units: Readonly<Record<string, number>>;
  /** Of a hold, by rule name: the capacity of the quota when it was taken. Absent: unknown. */
  readonly capacities?: Readonly<Record<string, number>>;
  /** The requested duration, in milliseconds, and the default of renewals. */
  readonly ttlMs: number;
  readonly expiresAtMs: number;
  /** Whose it is, where groups share a rule. */
  readonly group?: string;
  /** See core/protocol/names.ts. Absent: unknown. */
  readonly caller?: string;
  /** Of a lease: it rises with each lease of the key. */
  readonly fencingToken?: number;
  /** Of a lease: when it was granted. Absent: an older build granted it. */
  readonly grantedAtMs?: number;
  /** Of a lease: the slots of a holder, which leases them by itself (operations/slots.ts). Its row may end later. */
  readonly isSlots?: boolean;
  /** Of such slots: how many of them its holder had leased when it last said so. Absent: unknown. */
  readonly leased?: number;
  /** Of a lease: it is renewed while its WebSocket is open. */
  readonly isSocket?: boolean;
  /** Of such a lease: how long it outlasts the connection, also if the object dies with it. */
  readonly graceMs?: number | undefined;
  /** Of a lease: its link, by the id of the call that took it over. Absent: its own `id`. */
  readonly link?: string;
  /** Of a hold: its call on several keys settles or cancels it within moments. */
  readonly isProvisional?: boolean;
  /** Of a hold: the units of its rules. Absent: requests, or an earlier version took it. */
  readonly unitNames?: readonly string[];
  /** Of a hold: the id of the lease taken with it, and the idempotency key of its call. */
  readonly lease?: string;
  readonly idempotencyKey?: string;
}

/** Adds a hold for each claim that has units of the rule. They are sorted once: there may be thousands. */
export function withClaims(rule: string, restored: Account, claims: ReadonlyMap<string, Claim>): Account {
  if (claims.size === 0) return restored;
  const holds: Hold[] = [...restored.holds];
  const leasesOfProvisional = new Set<string>();
  for (const { lease, isProvisional } of claims.values())
    if (lease !== undefined && isProvisional === true) leasesOfProvisional.add(lease);
  for (const { id, units: byRule, expiresAtMs, isProvisional, group, capacities } of claims.values()) {
    const units = Object.hasOwn(byRule, rule) ? (byRule[rule] ?? 0) : 0;
    if (units === 0) continue;
    const mark = (isProvisional === true || leasesOfProvisional.has(id)) && { isProvisional: true };
    const capacity = capacities !== undefined && Object.hasOwn(capacities, rule) && capacities[rule];
    const of = { ...(capacity && { capacity }), ...(group !== undefined && { group }) };
    holds.push({ id, units, expiresAtMs, isStored: true, ...mark, ...of });
  }
  if (holds.length === restored.holds.length) return restored;
  return { state: restored.state, holds: holds.toSorted((a, b) => a.expiresAtMs - b.expiresAtMs) };
}

/** A type, since an interface is none of SQLite's rows. */
export type StoredAnswer = {
  /** The request as text: it identifies another request under the same idempotency key. */
  readonly request: string;
  /** JSON, or how a hold ended (keys/idempotency.ts). */
  readonly answer: string;
  readonly atMs: number;
};

/** A number for each caller, and their sum. Callers without a name are `""`. */
export class CallerCounts {
  all: number;
  readonly #counts: Map<string, number>;

  constructor(counts: Iterable<readonly [caller: string, count: number]> = []) {
    this.#counts = new Map(counts);
    this.all = [...this.#counts.values()].reduce((sum, count) => sum + count, 0);
  }

  of(caller: string): number {
    return this.#counts.get(caller) ?? 0;
  }

  add(caller: string, more: number): void {
    const before = this.of(caller);
    const after = Math.max(0, before + more);
    this.all += after - before;
    if (after > 0) this.#counts.set(caller, after);
    else this.#counts.delete(caller);
  }

  entries(): [caller: string, count: number][] {
    return [...this.#counts];
  }
}

/** A key's record, with the instant from which a sweep reads it. */
export type DueKey = StoredKey & Pick<KeyRow, "wholeAtMs">;

/** A key's record as stored: never rename a field. A type, since an interface is none of SQLite's rows. */
export type KeyRow = {
  readonly key: string;
  readonly policy: string;
  /** JSON. */
  readonly rules: string;
  /** When the key is expected to be untouched. */
  readonly wholeAtMs: number;
};

export type SweptKey = Omit<KeyRow, "rules"> & {
  /** The position of the policy version in the record (keys/versions.ts); 0: none. */
  readonly versionAt?: number;
};

/** Never rename tables or columns. Making one costs two rows, and a rowid another per write. */
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
  journal: `CREATE TABLE IF NOT EXISTS journal (
    place INTEGER PRIMARY KEY, turn INTEGER NOT NULL, first INTEGER NOT NULL, changes TEXT NOT NULL
  )`,
};
export type Table = keyof typeof SCHEMA;
type SqlRow = Readonly<Record<string, SqlStorageValue>>;
/** The name of an only key's row. Stored: never rename it. */
const ROW = "record";

export class Tables {
  readonly #storage: DurableObjectStorage;
  #made: Set<string>;
  #loneRow: KeyRow | undefined;
  /** Rises with each write. */
  writes = 0;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
    this.#loneRow = storage.kv.get<KeyRow>(ROW);
    // Reading at once costs no file: the runtime makes an object's file before its code runs
    // (scripts/workerd.ts).
    this.#made = this.#readMade();
  }

  has(table: Table): boolean {
    return this.#made.has(table);
  }

  /**
   * The record of an object's only key. While only it and the crash allowances are stored, it is a row of the
   * key-value table, which costs no row to make: a table costs two. So a key with its own object writes two
   * rows, this and the alarm. When anything more is stored, the record moves to the table `keys`.
   */
  get lone(): KeyRow | undefined {
    return this.has("keys") ? undefined : this.#loneRow;
  }

  /** The rows of a query on the table `keys`; an only key's record is read as if it were there. */
  keys<Row extends SqlRow>(query: string, ...bindings: SqlStorageValue[]): Row[] {
    const { lone } = this;
    if (lone === undefined) return this.rows("keys", query, ...bindings);
    const { key, policy, rules, wholeAtMs } = lone;
    const keys = "WITH keys (key, policy, rules, whole_at_ms) AS (SELECT ?, ?, ?, ?)";
    // One row is in order, and the runtime counts each row that is sorted as read.
    const ofOne = `${keys} ${query.replace("ORDER BY key", "")}`;
    return this.exec<Row>(ofOne, key, policy, rules, wholeAtMs, ...bindings).toArray();
  }

  readRecord(key: string): DueKey | undefined {
    const query = "SELECT key, policy, rules, whole_at_ms AS wholeAtMs FROM keys WHERE key = ?";
    const row = this.lone ?? this.rows<KeyRow>("keys", query, key)[0];
    if (row?.key !== key) return undefined;
    const { policy, rules, wholeAtMs } = row;
    return { key, policy, wholeAtMs, rules: JSON.parse(rules) as StoredKey["rules"] };
  }

  writeRecord({ rules, ...rest }: DueKey): void {
    const row = { ...rest, rules: JSON.stringify(rules) };
    if (this.has("keys") || (this.#loneRow?.key ?? row.key) !== row.key) return this.#writeKey(row);
    this.writes += 1;
    this.#storage.kv.put<KeyRow>(ROW, row);
    this.#loneRow = row;
  }

  /** What identifies a key's record in the table. */
  recordText(key: string): string | undefined {
    const query = "SELECT rules || whole_at_ms AS text FROM keys WHERE key = ?";
    return this.rows<{ text: string }>("keys", query, key)[0]?.text;
  }

  removeLone(): void {
    this.writes += 1;
    this.#storage.kv.delete(ROW);
    this.#loneRow = undefined;
  }

  /** Makes the table if needed. Every stored part of a key needs a record, so `keys` is made first. */
  make(table: Table): void {
    if (this.has(table)) return;
    if (table !== "keys") this.make("keys");
    const { lone } = this;
    this.atomically(() => {
      this.#storage.sql.exec(SCHEMA[table]);
      this.#made.add(table);
      if (lone === undefined) return;
      this.#writeKey(lone);
      this.removeLone();
    });
  }

  #writeKey({ wholeAtMs, ...row }: KeyRow): void {
    this.put("keys", { ...row, whole_at_ms: wholeAtMs });
  }

  /** Writes a row, by column. It replaces the one with the same primary key. */
  put(table: Table, row: SqlRow): void {
    this.make(table);
    const columns = Object.keys(row);
    const values = columns.map(() => "?").join(", ");
    const query = `INSERT OR REPLACE INTO ${table} (${columns.join(", ")}) VALUES (${values})`;
    this.exec(query, ...Object.values(row));
  }

  /** Deletes rows of a table, if it exists. */
  remove(table: Table, condition: string, ...bindings: SqlStorageValue[]): void {
    if (this.has(table)) this.exec(`DELETE FROM ${table} WHERE ${condition}`, ...bindings);
  }

  /** The rows of a query on a table; none if the table does not exist. */
  rows<Row extends SqlRow>(table: Table, query: string, ...bindings: SqlStorageValue[]): Row[] {
    return this.has(table) ? this.exec<Row>(query, ...bindings).toArray() : [];
  }

  exec<Row extends SqlRow>(query: string, ...bindings: SqlStorageValue[]) {
    if (!/^(SELECT|WITH) /.test(query)) this.writes += 1;
    return this.#storage.sql.exec<Row>(query, ...bindings);
  }

  /** Runs `work` in a transaction, which is rolled back if `work` throws. */
  atomically<Result>(work: () => Result): Result {
    try {
      return this.#storage.transactionSync(work);
    } catch (error) {
      // The rollback also removed each table that `work` made.
      this.#made = this.#readMade();
      this.#loneRow = this.#storage.kv.get<KeyRow>(ROW);
      throw error;
    }
  }

  removeAll(): Promise<void> {
    // workerd deletes the tables before the promise resolves, so the next write must make its table again.
    this.#made.clear();
    this.#loneRow = undefined;
    return this.#storage.deleteAll();
  }

  #readMade(): Set<string> {
    const query = "SELECT name, sql FROM sqlite_master WHERE type = 'table'";
    const tables = this.exec<{ name: string; sql: string }>(query).toArray();
    // Version 0.1.0 made this table without the column.
    if (tables.some(({ name, sql }) => name === "holds" && !sql.includes(" caller ")))
      this.exec("ALTER TABLE holds ADD COLUMN caller TEXT");
    return new Set(tables.map(({ name }) => name));
  }
}
