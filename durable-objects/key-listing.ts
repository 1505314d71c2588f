import type { KeyCount, KeyList, ListedKey } from "../core/protocol/answers.ts";
import { publicDecision } from "../core/protocol/decision.ts";
import type { KeysCall } from "../core/protocol/messages.ts";
import type { ObjectParts } from "./object-parts.ts";
import { objectPolicies } from "./object-policies.ts";

/** So many keys are looked at in one go, so that other calls do not wait for a long list. */
const KEYS_A_TURN = 50;

/**
 * The next keys of this object, with what a look at each of them says. All keys of which there is anything have a
 * record, so no others are in memory alone. A key that is whole again is among them until its record is deleted.
 */
export async function listKeys(
  { storage, ask }: Pick<ObjectParts, "storage" | "ask">,
  { policy: name, prefix = "", after, most = 0 }: KeysCall,
): Promise<KeyList> {
  // One more than is asked for tells whether there are more.
  const found = storage.keysAfter(prefix, after, most + 1);
  const keys: ListedKey[] = [];
  for (const [index, key] of found.slice(0, most).entries()) {
    if (index % KEYS_A_TURN === KEYS_A_TURN - 1) await new Promise((resolve) => setTimeout(resolve, 0));
    const peeked = await ask(name, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
    const policy = objectPolicies.get(name);
    if (policy === undefined) continue;
    const { limit, remaining = 0, resetAfterMs = 0 } = publicDecision(policy, key, peeked);
    const { outstanding, holds, leases } = peeked;
    keys.push({ key, limit, remaining, resetAfterMs, outstanding, holds, leases });
  }
  return { keys, hasMore: found.length > most };
}

/** How many keys this object has a record of. */
export function countKeys({ storage }: Pick<ObjectParts, "storage">, { prefix = "" }: KeysCall): KeyCount {
  return { count: storage.countKeys(prefix) };
}
