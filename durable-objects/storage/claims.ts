import type { Journal, KeyChanges } from "./journal.ts";
import { CallerCounts, type Claim, type Tables } from "./records.ts";

/** Where what only the journal has is. */
export interface Journaled {
  readonly journal: Journal | undefined;
  /** The journal, made if need be. */
  readonly made: Journal;
  fold(): void;
}

/** Callers' holds and leases. */
export class StoredClaims {
  readonly #tables: Tables;
  readonly #journaled: Journaled;
  /** Claims from before callers were recorded belong to `""`. `undefined`: not counted since a start or rollback. */
  #counts: CallerCounts | undefined;

  constructor(tables: Tables, journaled: Journaled) {
    this.#tables = tables;
    this.#journaled = journaled;
  }

  read(key: string): Claim[] {
    const changes = [...(this.#journaled.journal?.changesOf(key) ?? [])];
    const begin = changes.findIndex(({ isAnew }) => isAnew);
    const found = new Map<string, Claim>();
    const query = "SELECT claim FROM holds WHERE key = ?";
    for (const row of begin < 0 ? this.#tables.rows<{ claim: string }>("holds", query, key) : []) {
      const claim = JSON.parse(row.claim) as Claim;
      found.set(claim.id, claim);
    }
    for (const { claims } of changes.slice(0, begin < 0 ? undefined : begin + 1).toReversed())
      for (const [id, { claim }] of claims) {
        if (claim === undefined) found.delete(id);
        else found.set(id, claim);
      }
    return [...found.values()];
  }

  /** @param isNew whether the claim begins; otherwise it is renewed */
  write(key: string, claim: Claim, isNew: boolean): void {
    this.#journaled.made.change(key, (changes) => changes.change(claim.id, { claim, isNew }));
    if (isNew) this.#counts?.add(claim.caller ?? "", 1);
  }

  remove(key: string, { id, caller = "" }: Pick<Claim, "id" | "caller">): void {
    this.#journaled.made.change(key, (changes) => changes.change(id, { claim: undefined, isNew: false }));
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
    const all = new Map(this.#journaled.journal?.all);
    for (const { key, id, caller } of this.#tables.rows<Row>("holds", query)) {
      const changes = all.get(key);
      if (changes?.isAnew !== true && changes?.claims.has(id) !== true) counts.add(caller ?? "", 1);
    }
    for (const { claims } of all.values())
      for (const { claim } of claims.values()) if (claim !== undefined) counts.add(claim.caller ?? "", 1);
    return counts;
  }
}
