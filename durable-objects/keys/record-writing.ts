import { type Account, UNTOUCHED } from "../../core/accounts/account.ts";
import { isOfAnother, later } from "../../core/policies/policy.ts";
import type { StoredAccount } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import { record } from "../storage/write-behind.ts";
import { endExpired } from "./idempotency.ts";
import type { KeyState } from "./key-state.ts";
import { wholeAtMsOf } from "./rule-state.ts";
import { type ChosenVersion, storedVersion } from "./versions.ts";

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
  const wholeMs = Math.max(leastDueMs, wholeAtMsOf(ruleStates, accounts, nowMs));
  const { memory } = storage.leads;
  const records = ruleStates.map(({ rule, stored }, index) =>
    record(rule, accounts[index] ?? UNTOUCHED, ahead[index] ?? 0, nowMs, policy.reservation, stored, memory),
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
    storage.write(
      { key, policy: policy.name, rules: { ...rules, ...storedVersion(keyState.inForce) } },
      wholeMs,
    );
    for (const claim of expired) endExpired(storage, keyState, claim);
  };
  const isOneRow = expired.length === 0 && records.every(({ segment }) => segment === undefined);
  if (isOneRow) write();
  else storage.atomically(write);
  const stored = records.map((each) => each.stored);
  keyState.noteWritten(stored, accounts, wholeMs);
  return wholeMs;
}

/** What was found of a key that is loaded now is written again when it is of an earlier version, or of other rules. */
export function writeFound(storage: KeyStorage, keyState: KeyState, nowMs: number): void {
  const { found, inForce, policy, ruleStates } = keyState;
  const isRecorded = keyState.dueMs > -Infinity;
  if (isRecorded && isOfAnother(found, inForce)) {
    beginAnew(storage, keyState, { policy, inForce }, nowMs);
    return;
  }
  const isNewVersion = isRecorded && later(found, inForce) !== found;
  if (!isNewVersion && !ruleStates.some(({ isConverted }) => isConverted)) return;
  keyState.advance(nowMs);
  writeRecord(storage, keyState, keyState.accounts, nowMs, [], -Infinity);
}

/** Writes what is lost when the key leaves memory. */
export function writeLast(storage: KeyStorage, keyState: KeyState, nowMs: number): void {
  keyState.advance(nowMs);
  if (!keyState.isWritten && !(isUnrecorded(keyState) && keyState.isWhole(nowMs)))
    writeExact(storage, keyState, nowMs);
}

/**
 * Another version is in force from now on. That is stored with all that is stored of the key. What holds have become in
 * memory is written first in any case: from then on they are what memory has, and not what is presumed of a record.
 */
export function adopt(storage: KeyStorage, keyState: KeyState, to: ChosenVersion, nowMs: number): void {
  if (isOfAnother(keyState.inForce, to.inForce)) {
    beginAnew(storage, keyState, to, nowMs);
    return;
  }
  keyState.advance(nowMs);
  if (!isUnrecorded(keyState) || !keyState.isWhole(nowMs)) writeExact(storage, keyState, nowMs);
  keyState.compare(undefined);
  keyState.adopt(storage, to, nowMs);
  if (!isUnrecorded(keyState)) writeExact(storage, keyState, nowMs);
}

/**
 * Another candidate decides the key from now on: nothing of what it was counts for this one, also not what holders have of
 * it. They are still known, so that what they say later is known to be of before.
 */
function beginAnew(storage: KeyStorage, keyState: KeyState, to: ChosenVersion, nowMs: number): void {
  storage.atomically(() => {
    storage.answers.removeAll(keyState.key);
    storage.remove(keyState.key);
  });
  keyState.noteDeleted();
  keyState.replaceAccounts([], true);
  keyState.compare(undefined);
  keyState.adopt(storage, to, nowMs);
  keyState.replaceAccounts([], true);
  // Of a key without a record an object that starts presumes something for a while.
  writeExact(storage, keyState, nowMs);
}

function writeExact(storage: KeyStorage, keyState: KeyState, nowMs: number): void {
  const { accounts } = keyState;
  writeRecord(storage, keyState, accounts, nowMs, [], -Infinity);
  keyState.replaceAccounts(accounts, true);
}

/** Whether nothing of the key is stored, nobody refers to it, and memory knows no more than storage would say. */
export function isEmpty(keyState: KeyState): boolean {
  const { ruleStates, claims, expired, holders, pins, isWritten } = keyState;
  if (!isUnrecorded(keyState)) return false;
  for (const { account } of isWritten ? [] : ruleStates)
    if (account.state !== undefined || account.holds.length > 0) return false;
  return !pins.isAny && claims.size === 0 && expired.length === 0 && holders.size === 0;
}

/** Whether the key has no record: what there is of it is in memory alone. */
export function isUnrecorded({ ruleStates }: KeyState): boolean {
  for (const { stored } of ruleStates) if (stored !== undefined) return false;
  return true;
}
