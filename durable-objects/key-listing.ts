import type { KeyCount, KeyList, ListedKey } from "../core/protocol/answers.ts";
import { publicDecision } from "../core/protocol/decision.ts";
import type { KeysCall } from "../core/protocol/keys-call.ts";
import type { KeyParts } from "./key-parts.ts";
import { isBlank, isUnrecorded } from "./keys/blank.ts";

/** So many keys are looked at in one go, so that other calls do not wait for a long list. */
const KEYS_A_TURN = 50;

type Parts = Pick<KeyParts, "storage" | "cache" | "ask" | "policies">;

/**
 * The next keys of this object, with what a look at each of them says: keys with a record, and keys that memory alone
 * knows of. A key that is whole again is among them until it is forgotten.
 */
export async function listKeys(
  { storage, cache, ask, policies }: Parts,
  { policy: name, prefix = "", after, most = 0 }: KeysCall,
): Promise<KeyList> {
  // One more than is asked for tells whether there are more.
  const stored = storage.keysAfter(prefix, after, most + 1);
  const others = unrecorded(cache, prefix).filter((key) => after === undefined || byBytes(key, after) > 0);
  const found = others.length === 0 ? stored : [...stored, ...others].toSorted(byBytes).slice(0, most + 1);
  const keys: ListedKey[] = [];
  for (const [index, key] of found.slice(0, most).entries()) {
    if (index % KEYS_A_TURN === KEYS_A_TURN - 1) await new Promise((resolve) => setTimeout(resolve, 0));
    const policy = cache.policyOf(name, policies.get(name), key);
    // It may have moved meanwhile: then it is listed there.
    if (policy === undefined || storage.moves.isAway(policy, key)) continue;
    const peeked = await ask(name, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
    const { limit, remaining = 0, resetAfterMs = 0 } = publicDecision(policy, key, peeked);
    const { outstanding, holds, leases } = peeked;
    keys.push({ key, limit, remaining, resetAfterMs, outstanding, holds, leases });
  }
  return { keys, hasMore: found.length > most };
}

/** How many keys this object knows of. */
export function countKeys(
  { storage, cache }: Pick<Parts, "storage" | "cache">,
  { prefix = "" }: KeysCall,
): KeyCount {
  return { count: storage.countKeys(prefix) + unrecorded(cache, prefix).length };
}

/** Keys with this prefix of which memory alone knows, in no order. */
function unrecorded(cache: Parts["cache"], prefix: string): string[] {
  const keys: string[] = [];
  for (const state of cache.states)
    if (state.key.startsWith(prefix) && isUnrecorded(state) && !state.isWritten && !isBlank(state))
      keys.push(state.key);
  return keys;
}

/** The order of two keys in storage: that of their bytes in UTF-8, which is that of their code points. */
function byBytes(one: string, other: string): number {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  // Where they differ in the second half of a code point, the first half is the same.
  const pointOf = (text: string) => text.codePointAt(at) ?? -1;
  return pointOf(one) - pointOf(other);
}
