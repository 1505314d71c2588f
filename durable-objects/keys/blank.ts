import type { KeyState } from "./key-state.ts";

/** Whether nothing of the key is stored, nobody refers to it, and memory knows no more than storage would say. */
export function isBlank(keyState: KeyState): boolean {
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
