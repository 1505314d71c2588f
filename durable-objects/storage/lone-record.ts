/**
 * The record of an object's only key. As long as nothing but it and the lead is stored, it is one row of the storage's own
 * key-value table, which costs no row to make: a table of ours costs two. So a key with an object of its own writes two
 * rows, this one and the alarm, until it is forgotten. When anything else has to be stored, the record moves to the
 * table `keys` (tables.ts). From then on what is here does not count.
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
