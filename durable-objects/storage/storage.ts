import type { NewSegment, Segment } from "../../core/algorithms/algorithm.ts";
import type { LeaseCounter } from "../../core/stats/held-times.ts";
import type { Counter } from "../../core/stats/tally.ts";
import { StoredAnswers } from "./answers.ts";
import { Journal, type JournalRoom, type KeyChanges } from "./journal.ts";
import { StoredMoves } from "./moves.ts";
import {
  CallerCounts,
  type Claim,
  type DueKey,
  type KeyRow,
  type StoredKey,
  type SweptKey,
  Tables,
} from "./records.ts";
import { Sweeps } from "./sweeps.ts";
import { CrashAllowances } from "./write-behind.ts";

/** Keys read in one step, so that calls do not wait. */
export const KEYS_SWEPT = 1_000;

/** Keys record by record, in the object's storage or in memory (memory-namespace.ts). */
export interface KeyStorage extends Omit<
  Pick<Storage, keyof Storage>,
  "answers" | "claims" | "moves" | "turn" | "fold" | "keysUnsent" | "keysHolding"
> {
  readonly answers: Omit<StoredAnswers, "forget" | "fold" | "all">;
  readonly claims: Omit<StoredClaims, "forgetCounts" | "fold">;
  readonly moves: Pick<StoredMoves, "isAway" | "isEmpty" | "sweep">;
}

/** The object's storage, record by record. All methods but `removeAll` are synchronous. */
export class Storage {
  readonly answers: StoredAnswers;
  readonly claims: StoredClaims;
  readonly allowances: CrashAllowances;
  readonly sweeps: Sweeps;
  readonly moves: StoredMoves;
  /** Counts expired leases. */
  readonly counter?: LeaseCounter | undefined;
  readonly #tables: Tables;
  readonly #journal: Journal;

  /** @param room shared with other objects; absent: not bounded together */
  constructor(storage: DurableObjectStorage, counter?: LeaseCounter, room?: JournalRoom) {
    this.counter = counter;
    this.#tables = new Tables(storage);
    const host = { fold: this.#foldKey.bind(this), forget: this.#forget.bind(this) };
    this.#journal = new Journal(this.#tables, host, room);
    this.answers = new StoredAnswers(this.#tables, this.#journal, storage.kv);
    this.claims = new StoredClaims(this.#tables, this.#journal);
    this.allowances = new CrashAllowances(storage);
    this.sweeps = new Sweeps(storage);
    this.moves = new StoredMoves(this.#tables, this.#journal);
  }

  #foldKey(key: string, { record, claims, answers }: Partial<KeyChanges>): void {
    if (record !== undefined) this.#tables.writeRecord(record);
    if (claims !== undefined) this.claims.fold(key, claims);
    if (answers !== undefined && answers.size > 0) this.answers.fold(key, answers);
  }

  #forget(): void {
    this.claims.forgetCounts();
    this.answers.forget();
  }

  /** Everything stored of a key except its record has a table, and then the record has one too. */
  get isEmpty(): boolean {
    return this.loneKey === undefined && !this.#tables.has("keys") && this.allowances.isEmpty;
  }

  /** The only key, if nothing but its record is stored: it is deleted with everything else. */
  get loneKey(): string | undefined {
    return this.#tables.lone?.key;
  }

  /**
   * A turn of the object, without I/O: what its calls change is written at its end, mostly as one row, before
   * their answers leave. A part of it that throws changes nothing (`atomically`).
   *
   * @param lost the changes cannot be written: memory knows more than storage, and no answer may leave
   */
  turn<Result>(work: () => Result, lost: (error: unknown) => never): Result {
    return this.#journal.turn(work, lost);
  }

  atomically<Result>(work: () => Result): Result {
    return this.allowances.atomically(() => this.#journal.atomically(work));
  }

  /** Moves what only the journal has to the tables: queries read these. */
  fold(): void {
    this.#journal.fold();
  }

  removeAll(): Promise<void> {
    this.#forget();
    this.#journal.forget();
    this.allowances.forget();
    this.sweeps.begin();
    return this.#tables.removeAll();
  }

  /** The key's record and its due time; `undefined`: only answers may be stored of the key. */
  read(key: string): DueKey | undefined {
    for (const { record, isAnew } of this.#journal.changesOf(key))
      if (record !== undefined || isAnew) return record;
    return this.#tables.readRecord(key);
  }

  /** The first keys with this prefix in byte order, after the key `after` if there is one. */
  keysAfter(prefix: string, after: string | undefined, most: number): string[] {
    this.fold();
    const from = after === undefined ? "key >= ?" : "key > ?";
    const query = `SELECT key FROM keys WHERE ${from} AND key <= ? ${this.#isHere} ORDER BY key LIMIT ?`;
    const rows = this.#tables.keys<{ key: string }>(query, after ?? prefix, lastWith(prefix), most);
    return rows.map(({ key }) => key);
  }

  /** Reads a row for each key. */
  countKeys(prefix: string): number {
    this.fold();
    const query = `SELECT count(*) AS number FROM keys WHERE key >= ? AND key <= ? ${this.#isHere}`;
    return this.#tables.keys<{ number: number }>(query, prefix, lastWith(prefix))[0]?.number ?? 0;
  }

  /** Excludes keys that were given away: their records stay until they have arrived. */
  get #isHere(): string {
    if (this.moves.isEmpty) return "";
    return "AND NOT EXISTS (SELECT 1 FROM moves WHERE moves.key = keys.key AND other IS NOT NULL)";
  }

  /** @param wholeAtMs when the key will be untouched without further calls: a sweep reads it then */
  write({ key, policy, rules }: StoredKey, wholeAtMs: number): void {
    this.#journal.change(key, (changes) => {
      changes.record = { key, policy, rules, wholeAtMs };
    });
    this.sweeps.wrote(wholeAtMs);
  }

  /** Deletes a key's record, claims and segments. */
  remove(key: string): void {
    this.atomically(() => {
      this.claims.removeAll(key);
      this.#journal.begin(key, "begin");
      if (key === this.loneKey) this.#tables.removeLone();
      for (const table of ["keys", "holds", "segments"] as const) this.#tables.remove(table, "key = ?", key);
    });
  }

  segments(key: string, rule: string): Segment[] {
    const query = `SELECT log, start AS "from", entries FROM segments WHERE key = ? AND rule = ? ORDER BY log, start`;
    return this.#tables
      .rows<{ log: number; from: number; entries: ArrayBuffer }>("segments", query, key, rule)
      .map(({ entries, ...segment }) => ({ ...segment, entries: new Float64Array(entries) }));
  }

  /** Adds a segment, and deletes the rule's segments that are no longer needed. */
  writeSegment(key: string, rule: string, { log, from, toMs, keepFromMs, entries }: NewSegment): void {
    const isOver = "key = ? AND rule = ? AND (log <> ? OR to_ms < ?)";
    this.#tables.remove("segments", isOver, key, rule, log, keepFromMs);
    const { buffer } = Float64Array.from(entries);
    this.#tables.put("segments", { key, rule, log, start: from, to_ms: toMs, entries: buffer });
  }

  /** Keys with notices that are to be sent (`StoredAccount.unsent`). It reads all rows, and is used once after a start. */
  keysUnsent(most: number): (readonly [key: string, policy: string])[] {
    this.fold();
    const query = "SELECT key, policy FROM keys WHERE instr(rules, ?) > 0 LIMIT ?";
    const rows = this.#tables.keys<Pick<KeyRow, "key" | "policy">>(query, UNSENT, most);
    return rows.map(({ key, policy }) => [key, policy]);
  }

  /** Keys with holds of callers, or leases. It reads all of their rows, and is used once after a start. */
  keysHolding(most: number): (readonly [key: string, policy: string])[] {
    this.fold();
    const query = "SELECT DISTINCT key FROM holds LIMIT ?";
    const keys = this.#tables.rows<Pick<KeyRow, "key">>("holds", query, most);
    return keys.flatMap(({ key }) => {
      const { policy } = this.read(key) ?? {};
      return policy === undefined ? [] : [[key, policy] as const];
    });
  }

  /** The next `KEYS_SWEPT` keys after one, in table order, and when each was expected to be untouched. */
  keysSwept(after: string): SweptKey[] {
    this.fold();
    const query = `SELECT key, policy, whole_at_ms AS wholeAtMs, instr(rules, ?) AS versionAt
      FROM keys WHERE key > ? ORDER BY key LIMIT ?`;
    return this.#tables.keys<Required<SweptKey>>(query, MARK, after, KEYS_SWEPT);
  }
}

const MARK = '"@":';
/** A rule of that name has a table, not a list. */
const UNSENT = '"unsent":[';

/** A text after every key with this prefix: keys have at most 512 bytes, and this has as many more. */
function lastWith(prefix: string): string {
  return prefix + "\u{10FFFF}".repeat(128);
}

type Used = Pick<DurableObjectStorage, "transactionSync" | "deleteAll" | "getAlarm" | "setAlarm"> & {
  readonly sql: Pick<SqlStorage, "exec">;
  readonly kv: Pick<SyncKvStorage, "get" | "put" | "delete">;
};

/** Counts rows read and written as Cloudflare bills them, one per key-value row and alarm. */
export function countedStorage(storage: Used, counter: Pick<Counter, "add">): DurableObjectStorage {
  /** Rows are read with the cursor, so they are counted at the next statement. */
  let last: Pick<SqlStorageCursor<Record<string, SqlStorageValue>>, "rowsRead"> | undefined;
  const count = (name: "rows_read" | "rows_written", rows = 0) => {
    if (rows > 0) counter.add(name, [], rows);
  };
  const exec = (query: string, ...bindings: unknown[]) => {
    count("rows_read", last?.rowsRead);
    last = undefined;
    const cursor = storage.sql.exec(query, ...bindings);
    // When `exec` returns, its write is done.
    count("rows_written", cursor.rowsWritten);
    return (last = cursor) as never;
  };
  const counted: Used = {
    sql: { exec },
    kv: {
      get: (name: string) => {
        count("rows_read", 1);
        return storage.kv.get(name);
      },
      put: (name, value) => {
        storage.kv.put(name, value);
        count("rows_written", 1);
      },
      delete: (name) => {
        const wasThere = storage.kv.delete(name);
        count("rows_written", Number(wasThere));
        return wasThere;
      },
    },
    transactionSync: (work) => storage.transactionSync(work),
    deleteAll: () => storage.deleteAll(),
    getAlarm: () => storage.getAlarm(),
    setAlarm: (atMs) => {
      count("rows_written", 1);
      return storage.setAlarm(atMs);
    },
  };
  return counted as DurableObjectStorage;
}

/** Callers' holds and leases. */
export class StoredClaims {
  readonly #tables: Tables;
  readonly #journal: Journal;
  /** Claims from before callers were recorded belong to `""`. `undefined`: not counted since a start or rollback. */
  #counts: CallerCounts | undefined;

  constructor(tables: Tables, journal: Journal) {
    this.#tables = tables;
    this.#journal = journal;
  }

  read(key: string): Claim[] {
    const { isAnew, claims } = this.#journal.of(key);
    const found = new Map<string, Claim>();
    const query = "SELECT claim FROM holds WHERE key = ?";
    for (const row of isAnew ? [] : this.#tables.rows<{ claim: string }>("holds", query, key)) {
      const claim = JSON.parse(row.claim) as Claim;
      found.set(claim.id, claim);
    }
    for (const [id, { claim }] of claims) {
      if (claim === undefined) found.delete(id);
      else found.set(id, claim);
    }
    return [...found.values()];
  }

  /** @param isNew whether the claim begins; otherwise it is renewed */
  write(key: string, claim: Claim, isNew: boolean): void {
    this.#journal.change(key, (changes) => changes.change(claim.id, { claim, isNew }));
    if (isNew) this.#counts?.add(claim.caller ?? "", 1);
  }

  remove(key: string, { id, caller = "" }: Pick<Claim, "id" | "caller">): void {
    this.#journal.change(key, (changes) => changes.change(id, { claim: undefined, isNew: false }));
    this.#counts?.add(caller, -1);
  }

  /** The rows of the key's claims are deleted with its others. */
  removeAll(key: string): void {
    for (const claim of this.#counts === undefined ? [] : this.read(key))
      this.#counts?.add(claim.caller ?? "", -1);
  }

  /** Writes the claims that last, and deletes those that ended. */
  fold(key: string, claims: KeyChanges["claims"]): void {
    for (const [id, { claim }] of claims) {
      if (claim === undefined) this.#tables.remove("holds", "key = ? AND id = ?", key, id);
      else this.#tables.put("holds", { key, id, claim: JSON.stringify(claim), caller: claim.caller ?? "" });
    }
  }

  /** Counted at the first use, then updated with each claim. */
  get counts(): Pick<CallerCounts, "all" | "of"> {
    return (this.#counts ??= this.#count());
  }

  forgetCounts(): void {
    this.#counts = undefined;
  }

  #count(): CallerCounts {
    const query = "SELECT key, id, caller FROM holds";
    const counts = new CallerCounts();
    type Row = { key: string; id: string; caller: string | null };
    const { all } = this.#journal;
    for (const { key, id, caller } of this.#tables.rows<Row>("holds", query)) {
      const changes = all.get(key);
      if (changes?.isAnew !== true && changes?.claims.has(id) !== true) counts.add(caller ?? "", 1);
    }
    for (const { claims } of all.values())
      for (const { claim } of claims.values()) if (claim !== undefined) counts.add(claim.caller ?? "", 1);
    return counts;
  }
}
