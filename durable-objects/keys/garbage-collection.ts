import type { Policies } from "../../core/policies/policy.ts";
import { GARBAGE_KEYS, type Storage } from "../storage/storage.ts";
import { endExpired, REMEMBERED_MS } from "./idempotency.ts";
import type { KeyCache } from "./key-cache.ts";

/**
 * How long a key's record stays after the key has become whole, in milliseconds. With less, a key that comes every few
 * seconds would be deleted and inserted again each time. With more, more is stored. An idle object leaves memory after
 * about 10 s too.
 */
export const FORGET_AFTER_MS = 10_000;

/**
 * Garbage collection: deletes keys that are whole again, and answers that are not valid any more.
 *
 * @returns the instant of the next garbage collection; `undefined`: storage is empty
 */
export function collectGarbage(
  storage: Storage,
  cache: KeyCache,
  policies: Pick<Policies, "get">,
  nowMs: number,
): number | undefined {
  if (storage.isEmpty) return undefined;
  const due = storage.readWholeBy(nowMs);
  for (const { key, policy: name } of due) {
    const policy = policies.get(name);
    if (policy === undefined) {
      storage.remove(key);
      continue;
    }
    // The record says when the key was expected to be whole. Memory may know better, or the policy has changed since.
    const keyState = cache.open(policy, key, nowMs);
    if (!keyState.isWhole(nowMs)) {
      cache.write(keyState, keyState.accounts, nowMs, cache.isHot(keyState, nowMs));
      continue;
    }
    for (const claim of keyState.expired) endExpired(storage, keyState, claim);
    storage.remove(key);
    cache.drop(keyState, nowMs);
  }
  storage.answers.removeUntil(nowMs - REMEMBERED_MS);
  if (due.length === GARBAGE_KEYS) return nowMs;
  const dueMs = Math.min(
    (storage.nextWholeAtMs() ?? Infinity) + FORGET_AFTER_MS,
    (storage.answers.oldestAtMs() ?? Infinity) + REMEMBERED_MS,
  );
  return dueMs === Infinity ? undefined : Math.max(dueMs, nowMs + FORGET_AFTER_MS);
}
