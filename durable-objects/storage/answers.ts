import type { Tables } from "./tables.ts";

/** The answer to a call with an idempotency key. */
export interface StoredAnswer {
  /** The call in words, to tell another call under the same idempotency key. */
  readonly request: string;
  /** JSON, or how a hold ended: see keys/idempotency.ts. */
  readonly answer: string;
  /** When it was answered. */
  readonly atMs: number;
}

/**
 * The most answers that a key remembers. It is enough for 24 hours with one idempotent call in eight seconds, and an
 * answer takes about 300 bytes.
 */
export const MOST_ANSWERS = 10_000;
/**
 * When a key has more answers, this many of the oldest are deleted at once. So a call costs one deleted row on average,
 * and does not search for the oldest answer each time.
 */
export const ANSWERS_DROPPED = MOST_ANSWERS / 10;

/** The stored answers, by key and idempotency key. */
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

  /** Deletes the key's `ANSWERS_DROPPED` oldest answers. */
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

  /** Deletes answers that were given at or before `atMs`, of keys without a record: those keys are whole. */
  removeUntil(atMs: number): void {
    if (!this.#tables.has("answers")) return;
    this.#tables.exec("DELETE FROM answers WHERE at_ms <= ? AND key NOT IN (SELECT key FROM keys)", atMs);
  }

  /** When the oldest answer of a key without a record was given; `undefined`: there is none. */
  oldestAtMs(): number | undefined {
    if (!this.#tables.has("answers")) return undefined;
    return this.#tables.number(
      "SELECT min(at_ms) AS number FROM answers WHERE key NOT IN (SELECT key FROM keys)",
    );
  }
}
