import type { Policies, Policy } from "../../core/policies/policy.ts";
import type { AnswerPlace, Swept } from "../storage/answers.ts";
import { GARBAGE_KEYS, type Storage } from "../storage/storage.ts";
import { isUnrecorded } from "./blank.ts";
import { endExpired, REMEMBERED_MS } from "./idempotency.ts";
import type { KeyCache } from "./key-cache.ts";

/**
 * How long a key's record stays after the key has become whole, in milliseconds. With less, a key that comes every few
 * seconds would be deleted and inserted again each time. With more, more is stored. An idle object leaves memory after
 * about 10 s too.
 */
export const FORGET_AFTER_MS = 10_000;

/** The least time between two garbage collections, in milliseconds, unless there is more to do at once. */
export const APART_MS = 60_000;
/** So many keys are looked at in one go, so that calls do not wait. */
const KEYS_A_TURN = 50;
/** Before all answers. */
const FIRST: AnswerPlace = { key: "", idempotencyKey: "" };

/**
 * Garbage collection: deletes keys that are whole again, and answers that are not valid any more. Where it yields, calls
 * may come in between.
 *
 * @returns the instant of the next garbage collection; `undefined`: storage is empty
 */
export function* collectGarbage(
  storage: Storage,
  cache: KeyCache,
  policies: Pick<Policies, "get">,
  nowMs: () => number,
): Generator<undefined, number | undefined> {
  if (storage.isEmpty) return undefined;
  const due = storage.readWholeBy(nowMs());
  for (const [index, { key, policy }] of due.entries()) {
    if (index % KEYS_A_TURN === KEYS_A_TURN - 1) yield;
    forgetKey(storage, cache, policies.get(policy), key, nowMs());
  }
  let oldestMs = Infinity;
  for (let after: AnswerPlace | undefined = FIRST; after !== undefined;) {
    if (after !== FIRST) yield;
    const swept: Swept = storage.answers.sweep(after, nowMs() - REMEMBERED_MS);
    oldestMs = Math.min(oldestMs, swept.oldestMs);
    after = swept.last;
  }
  if (due.length === GARBAGE_KEYS) return nowMs();
  storage.moves.removeDue(nowMs());
  yield* forgetUnrecorded(cache, nowMs);
  // As long as the lead matters, memory may know of keys that have no record.
  const leadEndsMs = storage.leads.endsAtMs(policies);
  const wholeMs = Math.min(storage.nextWholeAtMs() ?? Infinity, leadEndsMs > nowMs() ? leadEndsMs : Infinity);
  const moveMs = storage.moves.nextDueMs() ?? Infinity;
  const dueMs = Math.min(Math.min(wholeMs, moveMs) + FORGET_AFTER_MS, oldestMs + REMEMBERED_MS);
  return dueMs === Infinity ? undefined : Math.max(dueMs, nowMs() + APART_MS);
}

/** Deletes a key that was expected to be whole by now, if it is. */
function forgetKey(
  storage: Storage,
  cache: KeyCache,
  policy: Policy | undefined,
  key: string,
  nowMs: number,
): void {
  if (policy === undefined) return storage.remove(key);
  // Nobody opens a key that was given away, and what is left of it is whole.
  if ((storage.moves.read(key)?.other ?? null) !== null) return storage.remove(key);
  // The record says when the key was expected to be whole. Memory may know better, or the policy has changed since.
  const keyState = cache.open(policy, key, nowMs);
  if (!keyState.isWhole(nowMs)) {
    cache.write(keyState, keyState.accounts, nowMs);
    cache.take(keyState, keyState.accounts, nowMs, true);
    return;
  }
  for (const claim of keyState.expired) endExpired(storage, keyState, claim);
  storage.remove(key);
  cache.drop(keyState);
}

/** Removes keys from memory that are whole and have no record. */
function* forgetUnrecorded(cache: KeyCache, nowMs: () => number): Generator<undefined, void> {
  for (const [index, keyState] of [...cache.states].entries()) {
    if (index % KEYS_A_TURN === KEYS_A_TURN - 1) yield;
    const isUsed = keyState.claims.size + keyState.holders.size > 0;
    if (!isUsed && isUnrecorded(keyState) && keyState.isWhole(nowMs())) cache.drop(keyState);
  }
}
