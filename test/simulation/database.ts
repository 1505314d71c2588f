import { DatabaseSync, type SQLInputValue, type StatementSync } from "node:sqlite";
import type { KeyRow } from "../../durable-objects/storage/records.ts";

export class Died extends Error {}

/** An object's storage on SQLite in memory, which survives the object as on disk. */
export class Database {
  readonly #db = new DatabaseSync(":memory:");
  readonly #statements = new Map<string, StatementSync>();
  /** The table of `kv` is there; otherwise it may be. */
  #hasKv = false;
  rowsWritten = 0;
  /** After this number of writes the machine dies: each further write throws. */
  writesLeft = Infinity;

  clear(): void {
    this.#dropAll();
    this.rowsWritten = 0;
  }

  /** Changes the stored rules of every key. */
  rewrite(change: (rules: string) => string): void {
    const hasKeys = this.#all("SELECT name FROM sqlite_master WHERE name = 'keys'").length > 0;
    for (const { key, rules } of hasKeys ? this.#all("SELECT key, rules FROM keys") : [])
      this.#prepare("UPDATE keys SET rules = ? WHERE key = ?").run(change(String(rules)), String(key));
    const record = this.#get("record") as KeyRow | undefined;
    if (record !== undefined) this.#put("record", { ...record, rules: change(record.rules) });
  }

  /** Changes the row of all keys. */
  rewriteLead(change: (lead: string) => string): void {
    const lead = this.#get("lead");
    if (lead !== undefined) this.#put("lead", JSON.parse(change(JSON.stringify(lead))));
  }

  get storage(): DurableObjectStorage {
    const exec = (query: string, ...bindings: SQLInputValue[]) => {
      if (!/^(SELECT|WITH) /.test(query)) {
        this.#countDown();
        this.rowsWritten += Number(this.#prepare(query).run(...bindings).changes);
        return { toArray: () => [], one: () => undefined };
      }
      const rows = this.#all(query, ...bindings);
      return { toArray: () => rows, one: () => rows[0] };
    };
    const transactionSync = <Result>(work: () => Result): Result => {
      this.#prepare("SAVEPOINT work").run();
      try {
        const result = work();
        this.#prepare("RELEASE work").run();
        return result;
      } catch (error) {
        this.#hasKv = false;
        // A savepoint that is rolled back is still open.
        this.#db.exec("ROLLBACK TO work");
        this.#db.exec("RELEASE work");
        throw error;
      }
    };
    const kv = {
      get: (name: string) => this.#get(name),
      put: (name: string, value: unknown) => this.#put(name, value),
      delete: (name: string) => this.#delete(name),
    };
    const deleteAll = async () => this.#dropAll();
    return { sql: { exec }, kv, transactionSync, deleteAll } as unknown as DurableObjectStorage;
  }

  #dropAll(): void {
    this.#hasKv = false;
    for (const { name } of this.#all("SELECT name FROM sqlite_master WHERE type = 'table'"))
      this.#db.exec(`DROP TABLE ${String(name)}`);
  }

  #get(name: string): unknown {
    this.#hasKv ||= this.#all("SELECT name FROM sqlite_master WHERE name = 'kv'").length > 0;
    const row = this.#hasKv ? this.#all("SELECT value FROM kv WHERE name = ?", name)[0] : undefined;
    return row === undefined ? undefined : JSON.parse(String(row["value"]));
  }

  #delete(name: string): boolean {
    if (this.#get(name) === undefined) return false;
    this.#countDown();
    this.#prepare("DELETE FROM kv WHERE name = ?").run(name);
    this.rowsWritten += 1;
    return true;
  }

  #countDown(): void {
    this.writesLeft -= 1;
    if (this.writesLeft < 0) throw new Died("the machine has died");
  }

  #put(name: string, value: unknown): void {
    this.#countDown();
    if (!this.#hasKv)
      this.#db.exec("CREATE TABLE IF NOT EXISTS kv (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID");
    this.#hasKv = true;
    this.#prepare("INSERT OR REPLACE INTO kv (name, value) VALUES (?, ?)").run(name, JSON.stringify(value));
    this.rowsWritten += 1;
  }

  #all(query: string, ...bindings: SQLInputValue[]): Record<string, unknown>[] {
    const rows = this.#prepare(query).all(...bindings) as Record<string, unknown>[];
    // The runtime returns an `ArrayBuffer` where Node returns its bytes.
    for (const row of rows)
      for (const [name, value] of Object.entries(row))
        if (value instanceof Uint8Array) row[name] = value.slice().buffer;
    return rows;
  }

  #prepare(query: string): StatementSync {
    const isKept = !query.startsWith("CREATE");
    const statement = this.#statements.get(query) ?? this.#db.prepare(query);
    if (isKept) this.#statements.set(query, statement);
    return statement;
  }
}
