/** All that is stored of a key, as it goes to another object. */
import type { MovedKey } from "../../core/protocol/moves.ts";
import type { Move } from "../storage/moves.ts";
import type { Claim, StoredAccount } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";

/** Reads what is stored of a key that is given away. */
export function packRows(storage: Storage, key: string, { move, dueMs }: Move): MovedKey {
  const record = storage.read(key);
  return {
    move,
    wholeAtMs: dueMs,
    ...(record && { rules: record.rules }),
    claims: storage.claims.read(key),
    ...storage.moves.rowsOf(key),
  };
}

/**
 * Stores a key that has come, in place of what there was of it. All or nothing of it is stored.
 *
 * @param laterMs how much this object's clock shows more than the sender's did
 */
export function storeRows(
  storage: Storage,
  policy: string,
  key: string,
  moved: MovedKey,
  laterMs: number,
): void {
  const { move, rules, claims, wholeAtMs } = moved;
  const dueMs = wholeAtMs + Math.max(0, laterMs);
  storage.atomically(() => {
    removeRows(storage, key);
    if (rules !== undefined) storage.write({ key, policy, rules: fromElsewhere(rules) }, dueMs);
    storage.moves.putRows(key, moved);
    for (const claim of claims as readonly Claim[]) {
      const { expiresAtMs, grantedAtMs } = claim;
      const granted = grantedAtMs !== undefined && { grantedAtMs: grantedAtMs + laterMs };
      storage.claims.write(key, { ...claim, expiresAtMs: expiresAtMs + laterMs, ...granted }, true);
    }
    storage.moves.write(key, { move, other: null, dueMs });
  });
}

/** Deletes what is stored of a key, except its move. */
export function removeRows(storage: Storage, key: string): void {
  storage.answers.removeAll(key);
  storage.remove(key);
}

/**
 * No memory of this object has written these records. So units that were ahead of them, which isolates may have, are
 * held for as long as a reservation could live from now on.
 */
function fromElsewhere(rules: NonNullable<MovedKey["rules"]>): Readonly<Record<string, StoredAccount>> {
  return Object.fromEntries(
    Object.entries(rules as Readonly<Record<string, StoredAccount>>).map(([name, { by: _, ...account }]) => [
      name,
      account,
    ]),
  );
}
