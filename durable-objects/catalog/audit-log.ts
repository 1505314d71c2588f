import type { AuditEntry } from "../../core/catalog/calls.ts";
import { instantText } from "../../core/clock.ts";
import { textIn, type CatalogTables } from "./catalog-tables.ts";

/** So many entries are kept. */
const MOST_ENTRIES = 20_000;

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
    this.#tables.run("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", MOST_ENTRIES);
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
