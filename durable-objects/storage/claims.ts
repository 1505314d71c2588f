import type { Claim } from "./records.ts";
import type { Tables } from "./tables.ts";

/** How many claims the object has: in all, and of each caller. Claims of before callers were told apart are of `""`. */
export interface ClaimCounts {
  readonly all: number;
  of(caller: string): number;
}

/** The stored holds and leases. Each is a row of its own. */
export class StoredClaims {
  readonly #tables: Tables;
  /** By caller. `undefined`: they have to be counted (again). */
  #counts: Map<string, number> | undefined;

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  read(key: string): Claim[] {
    if (!this.#tables.has("holds")) return [];
    return this.#tables
      .exec<{ claim: string }>("SELECT claim FROM holds WHERE key = ?", key)
      .toArray()
      .map(({ claim }) => JSON.parse(claim) as Claim);
  }

  /** @param isNew whether the claim begins; else it is renewed */
  write(key: string, claim: Claim, isNew: boolean): void {
    this.#tables.make("holds");
    const { id, caller = "" } = claim;
    this.#tables.exec(
      "INSERT OR REPLACE INTO holds (key, id, claim, caller) VALUES (?, ?, ?, ?)",
      key,
      id,
      JSON.stringify(claim),
      caller,
    );
    if (isNew) this.#count(caller, 1);
  }

  remove(key: string, id: string): void {
    this.#uncount("DELETE FROM holds WHERE key = ? AND id = ? RETURNING caller", key, id);
  }

  removeAll(key: string): void {
    if (this.#tables.has("holds")) this.#uncount("DELETE FROM holds WHERE key = ? RETURNING caller", key);
  }

  /** Claims are counted once, when this is first asked for, and then with each that comes or goes. */
  get counts(): ClaimCounts {
    const counts = (this.#counts ??= this.#read());
    let all = 0;
    for (const count of counts.values()) all += count;
    return { all, of: (caller) => counts.get(caller) ?? 0 };
  }

  /** A transaction was rolled back, or everything was deleted: what has been counted is not true any more. */
  forgetCounts(): void {
    this.#counts = undefined;
  }

  #read(): Map<string, number> {
    if (!this.#tables.has("holds")) return new Map();
    const rows = this.#tables.exec<{ caller: string | null; number: number }>(
      "SELECT caller, count(*) AS number FROM holds GROUP BY caller",
    );
    return new Map(rows.toArray().map(({ caller, number }) => [caller ?? "", number]));
  }

  #uncount(query: string, ...bindings: string[]): void {
    for (const { caller } of this.#tables.exec<{ caller: string | null }>(query, ...bindings).toArray())
      this.#count(caller ?? "", -1);
  }

  #count(caller: string, more: number): void {
    if (this.#counts === undefined) return;
    const count = (this.#counts.get(caller) ?? 0) + more;
    if (count > 0) this.#counts.set(caller, count);
    else this.#counts.delete(caller);
  }
}
