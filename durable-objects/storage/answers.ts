import type { Tables } from "./tables.ts";

/** What an idempotency key was used for, and what was answered. */
export interface StoredAnswer {
  readonly request: string;
  readonly answer: string;
  readonly atMs: number;
}

/**
 * How many answers a key remembers: enough for 24 hours at one idempotent call in eight seconds, against
 * about 300 bytes each. When there are more, the oldest tenth goes at once, so a call costs one deleted row
 * on average and not a search for the oldest each time.
 */
export const MOST_ANSWERS = 10_000;
export const ANSWERS_DROPPED = MOST_ANSWERS / 10;

/** Answers by key and idempotency key. */
export class StoredAnswers {
  readonly #tables: Tables;

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  read(key: string, idempotencyKey: string): StoredAnswer | undefined {
    if (!this.#tables.has("answers")) return undefined;
    return this.#tables
      .exec<{ request: string; answer: string; atMs: number }>(
        "SELECT request, answer, at_ms AS atMs FROM answers WHERE key = ? AND idempotency_key = ?",
        key,
        idempotencyKey,
      )
      .toArray()[0];
  }

  write(key: string, idempotencyKey: string, { request, answer, atMs }: StoredAnswer): void {
    this.#tables.make("answers");
    this.#tables.exec(
      "INSERT OR REPLACE INTO answers (key, idempotency_key, request, answer, at_ms) VALUES (?, ?, ?, ?, ?)",
      key,
      idempotencyKey,
      request,
      answer,
      atMs,
    );
  }

  remove(key: string, idempotencyKey: string): void {
    this.#tables.exec("DELETE FROM answers WHERE key = ? AND idempotency_key = ?", key, idempotencyKey);
  }

  count(key: string): number {
    if (!this.#tables.has("answers")) return 0;
    return this.#tables.number("SELECT count(*) AS number FROM answers WHERE key = ?", key) ?? 0;
  }

  /** Forgets the oldest tenth of a key's answers. */
  removeOldest(key: string): void {
    this.#tables.exec(
      `DELETE FROM answers WHERE key = ?1 AND idempotency_key IN
        (SELECT idempotency_key FROM answers WHERE key = ?1 ORDER BY at_ms LIMIT ?2)`,
      key,
      ANSWERS_DROPPED,
    );
  }

  removeAll(key: string): void {
    if (this.#tables.has("answers")) this.#tables.exec("DELETE FROM answers WHERE key = ?", key);
  }

  /** Forgets answers given at or before `atMs` of keys that are whole, that is, have no record. */
  removeUntil(atMs: number): void {
    if (!this.#tables.has("answers")) return;
    this.#tables.exec("DELETE FROM answers WHERE at_ms <= ? AND key NOT IN (SELECT key FROM keys)", atMs);
  }

  /** When the oldest answer was given that only its age keeps. */
  oldestAtMs(): number | undefined {
    if (!this.#tables.has("answers")) return undefined;
    return this.#tables.number(
      "SELECT min(at_ms) AS number FROM answers WHERE key NOT IN (SELECT key FROM keys)",
    );
  }
}
