/** The tables of the statistics. */
import type { Counts } from "../../core/stats/counts.ts";
import type { Step } from "../../core/stats/messages.ts";

/** Never rename tables or columns. With `WITHOUT ROWID` a write costs one row instead of two. */
const SCHEMA = [
  `CREATE TABLE IF NOT EXISTS documents (
    name TEXT, part INTEGER, text TEXT NOT NULL, PRIMARY KEY (name, part)
  ) WITHOUT ROWID`,
  `CREATE TABLE IF NOT EXISTS history (
    step TEXT, policy TEXT, slot INTEGER, number INTEGER NOT NULL, counts TEXT NOT NULL, PRIMARY KEY (step, policy, slot)
  ) WITHOUT ROWID`,
];

/** A day of minutes, 30 days of hours. The place of a row, where it replaces an older one: never change. */
export const STEPS_KEPT: Readonly<Record<Step, number>> = { minute: 1_440, hour: 720 };

/** A value may have 2 MB, and a character at most four bytes. */
const MAX_PART_LENGTH = 400_000;

/** All methods are synchronous. */
export class StatsStorage {
  readonly #storage: DurableObjectStorage;
  readonly #parts = new Map<string, number>();

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
    for (const table of SCHEMA) storage.sql.exec(table);
  }

  atomically(work: () => void): void {
    this.#storage.transactionSync(work);
  }

  read<Value>(name: string): Value | undefined {
    const query = "SELECT text FROM documents WHERE name = ? ORDER BY part";
    const parts = this.#storage.sql.exec<{ text: string }>(query, name).toArray();
    this.#parts.set(name, parts.length);
    return parts.length === 0 ? undefined : (JSON.parse(parts.map(({ text }) => text).join("")) as Value);
  }

  names(prefix: string): string[] {
    const query = "SELECT DISTINCT name FROM documents WHERE name >= ? AND name < ?";
    const rows = this.#storage.sql.exec<{ name: string }>(query, prefix, `${prefix}\u{10FFFF}`).toArray();
    return rows.map(({ name }) => name);
  }

  /** Stores a value, with a row for each 400,000 characters. */
  write(name: string, value: object): void {
    const text = JSON.stringify(value);
    const parts = Math.max(1, Math.ceil(text.length / MAX_PART_LENGTH));
    for (let part = 0; part < parts; part += 1) {
      const from = part * MAX_PART_LENGTH;
      const query = "INSERT OR REPLACE INTO documents (name, part, text) VALUES (?, ?, ?)";
      this.#storage.sql.exec(query, name, part, text.slice(from, from + MAX_PART_LENGTH));
    }
    if ((this.#parts.get(name) ?? parts) > parts)
      this.#storage.sql.exec("DELETE FROM documents WHERE name = ? AND part >= ?", name, parts);
    this.#parts.set(name, parts);
  }

  remove(name: string): void {
    this.#storage.sql.exec("DELETE FROM documents WHERE name = ?", name);
    this.#parts.delete(name);
  }

  writeStep(step: Step, policy: string, number: number, counts: Counts): void {
    const slot = number % STEPS_KEPT[step];
    const query =
      "INSERT OR REPLACE INTO history (step, policy, slot, number, counts) VALUES (?, ?, ?, ?, ?)";
    this.#storage.sql.exec(query, step, policy, slot, number, JSON.stringify(counts));
  }

  /** The steps of a policy's history from one on, in order. */
  steps(step: Step, policy: string, from: number): { readonly number: number; readonly counts: Counts }[] {
    const query =
      "SELECT number, counts FROM history WHERE step = ? AND policy = ? AND number >= ? ORDER BY number";
    const rows = this.#storage.sql
      .exec<{ number: number; counts: string }>(query, step, policy, from)
      .toArray();
    return rows.map(({ number, counts }) => ({ number, counts: JSON.parse(counts) as Counts }));
  }
}
