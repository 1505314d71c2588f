import type { Policies } from "../../core/policies/policy.ts";
import { SWEEP_KEYS, type Storage } from "../storage/storage.ts";
import { endExpired, REMEMBERED_MS } from "./idempotency.ts";
import type { KeyCache } from "./key-cache.ts";

/**
 * How long after becoming whole a key's record goes. Sooner would delete and insert again for keys that come
 * every few seconds, later keeps more storage; an idle object leaves memory after about as long anyway.
 */
export const FORGET_AFTER_MS = 10_000;

/**
 * Forgets keys that are whole again, and answers that no longer stand.
 *
 * @returns when to look again, in milliseconds; `undefined`: nothing is left
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
    // What was written may be older than memory, and the policy may have changed since.
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
  if (due.length === SWEEP_KEYS) return nowMs;
  const dueMs = Math.min(
    (storage.nextWholeAtMs() ?? Infinity) + FORGET_AFTER_MS,
    (storage.answers.oldestAtMs() ?? Infinity) + REMEMBERED_MS,
  );
  return dueMs === Infinity ? undefined : Math.max(dueMs, nowMs + FORGET_AFTER_MS);
}
