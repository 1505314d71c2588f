import type { Time } from "../../core/clock.ts";
import type { Policies, Policy } from "../../core/policies/policy.ts";
import type { MovedKey, ObjectStub } from "../../core/protocol/object-methods.ts";
import { longestMs } from "../../core/reservations/sizing.ts";
import type { KeyCache } from "../keys/key-cache.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Move } from "../storage/moves.ts";
import { type Claim, type StoredAccount, type StoredKey, storedName } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";

/** By rule name: units that isolates may have. */
export type PresumedUnits = ReadonlyMap<string, number>;

/** A key brings its newest answers: more would not fit in a message. */
const MAX_ANSWERS_MOVED = 20_000;

export function packRows(storage: Storage, key: string, { move, dueMs }: Move): MovedKey {
  const record = storage.read(key);
  return {
    move,
    wholeAtMs: dueMs,
    ...(record && { rules: record.rules }),
    claims: storage.claims.read(key),
    segments: storage.moves.segmentsOf(key),
    answers: storage.answers.all(key, MAX_ANSWERS_MOVED),
  };
}

/** Replaces a key's rows, all or none. `laterMs`: how far this object's clock is ahead of the sender's. */
export function storeRows(
  storage: Storage,
  policy: Policy,
  key: string,
  moved: MovedKey,
  laterMs: number,
  presumed: PresumedUnits,
): void {
  const { move, rules, claims, wholeAtMs } = moved;
  const dueMs = wholeAtMs + Math.max(0, laterMs);
  storage.atomically(() => {
    removeRows(storage, key);
    writeRecord(storage, policy, key, rules, presumed, dueMs);
    storage.moves.putSegments(key, moved.segments);
    for (const { idempotencyKey, ...answer } of moved.answers)
      storage.answers.write(key, idempotencyKey, answer);
    for (const claim of claims as readonly Claim[]) {
      const { expiresAtMs, grantedAtMs } = claim;
      const granted = grantedAtMs !== undefined && { grantedAtMs: grantedAtMs + laterMs };
      storage.claims.write(key, { ...claim, expiresAtMs: expiresAtMs + laterMs, ...granted }, true);
    }
    storage.moves.write(key, { move, other: null, times: 0, dueMs });
  });
}

export function removeRows(storage: Storage, key: string): void {
  storage.answers.removeAll(key);
  storage.remove(key);
}

/**
 * Writes the record of a key from elsewhere, or only its presumed units. No memory of this object wrote it, so
 * isolates' and presumed units are held for a reservation's life. Returns whether there was any to write.
 */
export function writeRecord(
  storage: Storage,
  policy: Policy,
  key: string,
  records: MovedKey["rules"],
  presumed: PresumedUnits,
  dueMs: number,
): boolean {
  const known = (records ?? {}) as StoredKey["rules"];
  const unrecorded = policy.rules
    .filter(({ name }) => !Object.hasOwn(known, name) && (presumed.get(name) ?? 0) > 0)
    .map((rule): [string, StoredAccount] => [rule.name, { algorithm: storedName(rule), ahead: 0 }]);
  const hasUnits = [...presumed.values()].some((units) => units > 0);
  if (records === undefined && !hasUnits) return false;
  const rules = [...Object.entries(known), ...unrecorded].map(([name, stored]) => {
    const { by: _, presumed: __, ...account } = stored;
    const units = presumed.get(name) ?? 0;
    const ttlMs = Math.max(account.ttlMs ?? 0, longestMs(policy.reservation));
    return [name, units === 0 ? account : { ...account, ahead: account.ahead + units, ttlMs }] as const;
  });
  storage.write({ key, policy: policy.name, rules: Object.fromEntries(rules) }, dueMs);
  return true;
}

interface ObjectFinder {
  isHere(name: string | undefined): boolean;
  objectAt(name: string): ObjectStub;
}

/** The parts of an object by which its keys move. */
export interface MovesHost {
  readonly policies: Pick<Policies, "get">;
  readonly storage: Storage;
  readonly cache: KeyCache;
  readonly residents: OwnedKeys;
  readonly places: ObjectFinder;
  readonly time: Pick<Time, "after">;
  readonly nowMs: () => number;
  /** A key was written, and is untouched from that instant. */
  readonly onWritten: (wholeMs: number, nowMs: number) => void;
  readonly endLine: (keyState: KeyState, moved: Error) => void;
}

/** The key has moved: the call is repeated where it is. */
export class KeyHasMoved extends Error {
  constructor(key: string) {
    super(`the key ${JSON.stringify(key)} has moved to another object`);
  }
}

/** Keys known to be here without a read of storage, at about 100 bytes each. */
const MAX_REMEMBERED = 20_000;

/** Keys that only this object admits. One without rows is here while this memory remembers its arrival. */
export class OwnedKeys {
  readonly #storage: Storage;
  readonly #known = new Set<string>();

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  has(key: string): boolean {
    if (this.#known.has(key)) return true;
    const move = this.#storage.moves.read(key);
    const isHere = move === undefined ? this.#storage.read(key) !== undefined : move.other === null;
    if (isHere) this.add(key);
    return isHere;
  }

  add(key: string): void {
    // A forgotten key is searched again.
    for (const oldest of this.#known) {
      if (this.#known.size < MAX_REMEMBERED) break;
      this.#known.delete(oldest);
    }
    this.#known.add(key);
  }

  remove(key: string): void {
    this.#known.delete(key);
  }
}
