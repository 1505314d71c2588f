import type { Claim } from "../storage/records.ts";
import type { KeyState } from "./key-state.ts";

/**
 * Due times: from when on a sweep looks at a key (garbage-collection.ts). A record is never due before a claim of its
 * key ends: the alarm finds claims by it, and a version that does not know their policy goes by it alone. It may be due
 * before what was consumed has come back, since memory may be ahead of it: the sweep writes a later one then.
 *
 * @returns when these claims let the key's record be due; -Infinity: there are none
 */
export function dueWith({ claims }: KeyState, put: readonly Claim[], nowMs: number): number {
  // One that waits to be confirmed most likely will be, and then lasts as long as its caller has asked for.
  const ends = put.map(({ id, ttlMs, expiresAtMs }) =>
    claims.has(id) ? expiresAtMs : Math.max(expiresAtMs, nowMs + ttlMs),
  );
  return Math.max(-Infinity, ...ends);
}

/** The same where a record is written for nothing else: it leaves room for claims to be renewed as long again. */
export function roomyDueMs(dueMs: number, nowMs: number): number {
  return dueMs + Math.max(0, dueMs - nowMs);
}
