import { UNTOUCHED, type Account } from "../../core/accounts/account.ts";
import type { StoredAccount } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import { record } from "../storage/write-behind.ts";
import { endExpired } from "./idempotency.ts";
import type { KeyState } from "./key-state.ts";

/** Writes these accounts as the key's record: see `KeyCache.write`. */
export function writeRecord(
  storage: KeyStorage,
  keyState: KeyState,
  accounts: readonly Account[],
  nowMs: number,
  ahead: readonly number[],
  leastDueMs: number,
): number {
  const { key, policy, ruleStates, expired } = keyState;
  const wholeMs = Math.max(leastDueMs, keyState.wholeAtMs(accounts, nowMs));
  const ttlMs = policy.reservation.mostMs;
  const { memory } = storage.leads;
  const records = ruleStates.map(({ rule, stored }, index) =>
    record(rule, accounts[index] ?? UNTOUCHED, ahead[index] ?? 0, nowMs, ttlMs, stored, memory),
  );
  const rules = Object.fromEntries(
    ruleStates.map(({ rule }, index) => [rule.name, records[index]?.stored]),
  ) as Record<string, StoredAccount>;
  const write = () => {
    // Segments first: their table makes the table of records, so that a first record is not written twice.
    for (const [index, { rule }] of ruleStates.entries()) {
      const segment = records[index]?.segment;
      if (segment !== undefined) storage.writeSegment(key, rule.name, segment);
    }
    storage.write({ key, policy: policy.name, rules }, wholeMs);
    for (const claim of expired) endExpired(storage, keyState, claim);
  };
  const isOneRow = expired.length === 0 && records.every(({ segment }) => segment === undefined);
  if (isOneRow) write();
  else storage.atomically(write);
  const stored = records.map((each) => each.stored);
  keyState.noteWritten(stored, accounts, wholeMs);
  return wholeMs;
}
