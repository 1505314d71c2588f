/** What storage keeps of a key. It is stored as JSON or in columns: never rename a field. */
import { spendableUntilMs, unstoredOf } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import type { PackedState } from "../../core/algorithms/algorithm.ts";
import { withoutBlock } from "../../core/algorithms/penalty.ts";
import type { Lifetimes, Rule } from "../../core/policies/policy.ts";

/** One rule's part of a key's record. */
export interface StoredAccount {
  /** The name of the algorithm that made `state`. */
  readonly algorithm: string;
  /** What the algorithm's `pack` returned. Absent: an untouched quota. */
  readonly state?: unknown;
  /** Units that holders had, and that memory may give out before it writes this record again: see write-behind.ts. */
  readonly ahead: number;
  /**
   * The longest that a holder may still spend units that are in `ahead` and not in `presumed`, in milliseconds. Absent
   * when `ahead` is 0, and in records that are older than reservations.
   */
  readonly ttlMs?: number;
  /**
   * Of `ahead`, the units that were presumed when this was written, and what was left of their time then, in milliseconds.
   * Absent when `ahead` is 0, and in records of versions that gave such units a new life.
   */
  readonly presumed?: readonly (readonly [units: number, leftMs: number])[];
  /** What the rule counts. Absent: requests, or nobody knows, since versions before conversions.ts wrote none. */
  readonly unit?: string;
  /** Which object's memory wrote this (`CrashAllowances.memory`). Absent in records of versions that had no lead, and in shares. */
  readonly by?: number;
}

/** One key's record: the name of its policy, and what is stored of each rule, by the rule's name. */
export interface StoredKey {
  readonly key: string;
  readonly policy: string;
  readonly rules: Readonly<Record<string, StoredAccount>>;
}

/** The name under which the states of a rule are stored. */
export function storedName({ algorithm }: Rule): string {
  return algorithm.storedAs ?? algorithm.name;
}

/** Whether a record can be read under this rule: one of another algorithm cannot. */
export function isReadable(rule: Rule, stored: StoredAccount | undefined): stored is StoredAccount {
  return stored !== undefined && stored.algorithm === storedName(rule);
}

/** The state of a record as the rule reads it: a rule without penalties reads nothing of a block. */
export function readable({ algorithm }: Rule, state: unknown): unknown {
  return algorithm.hasPenalty === true || state === undefined ? state : withoutBlock(state);
}

/**
 * A record tells apart the units that were presumed after so many crashes. Of more, those that end first end a little
 * later, with the next.
 */
const MAX_PRESUMED = 4;

/**
 * The record of an account.
 *
 * @param ahead units that memory may give out before the next write, beside those that holders have now
 * @param lifetimes of reservations under today's policy
 * @param before the record that was written last
 * @param by the memory that the account is in
 */
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
  const units = isShare ? 0 : ahead + unstoredOf(account);
  const ttlMs = lifeMs(account, nowMs, lifetimes, before);
  const header = {
    algorithm: storedName(rule),
    ahead: units,
    ...(units > 0 && { ttlMs, presumed: presumedIn(account, nowMs) }),
    ...(rule.lease === undefined && rule.unit !== "requests" && { unit: rule.unit }),
    ...(!isShare && by !== undefined && { by }),
  };
  if (state === undefined) return { stored: header };
  const earlier = before?.algorithm === header.algorithm ? readable(rule, before.state) : undefined;
  const { record: packed, segment } = rule.algorithm.pack(rule.config, state, nowMs, earlier);
  return { stored: { ...header, state: packed }, segment };
}

/**
 * For how long holders may have units of a record that is written now, in milliseconds: for longer costs another row. A
 * busy key has the shortest lifetimes. Longer ones are measured, and a little longer or shorter the next time.
 */
function lifeMs(
  account: Account,
  nowMs: number,
  { leastMs, mostMs }: Lifetimes,
  before: StoredAccount | undefined,
): number {
  const heldMs = spendableUntilMs(account) - nowMs;
  if (heldMs <= leastMs) return leastMs;
  return Math.max(heldMs, Math.min(2 * heldMs, mostMs), before?.ttlMs ?? 0);
}

/** The units that are presumed, and how much longer, in the order in which they end. */
function presumedIn({ holds }: Account, nowMs: number): NonNullable<StoredAccount["presumed"]> {
  const parts: [units: number, leftMs: number][] = [];
  for (const { isRestored, units, expiresAtMs } of holds)
    if (isRestored === true) parts.push([units, expiresAtMs - nowMs]);
  const merged = parts.splice(0, Math.max(0, parts.length - MAX_PRESUMED));
  const [next] = parts;
  if (next !== undefined) for (const [units] of merged) next[0] += units;
  return parts;
}

/** About the bytes of memory that a claim takes, with its holds in the key's accounts (measured: 330 to 600). */
export const CLAIM_BYTES = 500;

/** A hold or a lease of a caller. Each is a row of its own. */
export interface Claim {
  /** Unguessable, and unique within its key. */
  readonly id: string;
  readonly kind: "hold" | "lease";
  /** Units of each rule, by the rule's name. A hold has units of rates only, a lease of concurrency rules only. */
  readonly units: Readonly<Record<string, number>>;
  /** How long the caller asked for, in milliseconds; a renewal lasts as long unless it says otherwise. */
  readonly ttlMs: number;
  /** When the claim ends unless it is renewed. */
  readonly expiresAtMs: number;
  /** Who made it: see core/protocol/names.ts. Absent: it is not known. */
  readonly caller?: string;
  /** Of a lease: it rises with each lease of the key. */
  readonly fencingToken?: number;
  /** Of a lease whose end is learned from: when it was granted. */
  readonly grantedAtMs?: number;
  /** Of a lease: it belongs to a WebSocket, and is renewed while the socket is open. */
  readonly isSocket?: boolean;
  /** Of a lease: the link that has it, by the id of the call that took it over. Absent: the one of its own `id`. */
  readonly link?: string;
  /** Of a hold: it is part of a call on several keys, which settles or cancels it within moments. */
  readonly isProvisional?: boolean;
  /** Of a hold: the id of the lease that was taken with it, and the idempotency key of its call. */
  readonly lease?: string;
  readonly idempotencyKey?: string;
}

/**
 * The record of an object's only key. As long as nothing but it and the lead is stored, it is one row of the storage's own
 * key-value table, which costs no row to make: a table of ours costs two. So a key with an object of its own writes two
 * rows, this one and the alarm, until it is forgotten. When anything else has to be stored, the record moves to the
 * table `keys` (records.ts). From then on what is here does not count.
 */

/** A key's record as it is stored, here and in the table `keys`. Stored: never rename a field. */
export interface KeyRow {
  readonly key: string;
  readonly policy: string;
  /** JSON. */
  readonly rules: string;
  /** When the key is expected to be whole. */
  readonly wholeAtMs: number;
}

/** What a sweep reads of a key's record. */
export interface SweptKey extends Omit<KeyRow, "rules"> {
  /** Where the record says under which version of the policy it was written (keys/versions.ts); 0: it does not. */
  readonly versionAt?: number;
}

/** Where the row is. Stored: never rename it. */
const ROW = "record";

/** The row, and what memory knows of it. */
export class LoneRecord {
  readonly #storage: DurableObjectStorage;
  #row: KeyRow | undefined;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
    this.reload();
  }

  get row(): KeyRow | undefined {
    return this.#row;
  }

  write(row: KeyRow): void {
    this.#storage.kv.put<KeyRow>(ROW, row);
    this.#row = row;
  }

  remove(): void {
    if (this.#row === undefined) return;
    this.#storage.kv.delete(ROW);
    this.#row = undefined;
  }

  /** A transaction was rolled back: what memory knows may not be true any more. */
  reload(): void {
    this.#row = this.#storage.kv.get<KeyRow>(ROW);
  }

  /** The row was deleted. */
  forget(): void {
    this.#row = undefined;
  }
}

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
    // Reading at once costs no file: an object's file is there before its code runs (scripts/workerd.ts).
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

  /** The rows of a query on a table; none when the table was not made. */
  rows<Row extends Record<string, SqlStorageValue>>(
    table: Table,
    query: string,
    ...bindings: SqlStorageValue[]
  ): Row[] {
    return this.has(table) ? this.exec<Row>(query, ...bindings).toArray() : [];
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
