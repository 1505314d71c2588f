import { withoutTaking } from "../../core/accounts/joint-decision.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { KeyState } from "../keys/key-state.ts";

/**
 * For how long a denial stands before its wait is over, whatever isolates do, in milliseconds; 0: nobody knows.
 *
 * An exact wait reckons that every unit which is held is used. So units that come back unused end it sooner. Where
 * nobody holds units of the key, only who says so gives any back: by a refund, a reset, a debit or another policy. That
 * may happen through another isolate, which is why the policy bounds the time (`denialTtl`). Units that are taken, or
 * held and given back, after the denial make it last longer, or leave it as it was.
 *
 * An exact wait also reckons that units are used when their hold ends. Those that the holder itself used and settled in
 * the window before that leave the view of a sliding window counter sooner. It has a sixteenth of the limit at most, so
 * a cost of 1 passes sooner by a fifteenth of the time between two units at most, and no message is worth that.
 *
 * Where nobody could tell, it is not firm: callers that wait in line may leave it, and so their places; of a pool other
 * regions hold units; and what a region decides alone is over when the pool answers again.
 *
 * @param holder the id of the isolate that is told, which knows when it gives back units itself
 * @param isInLine callers wait for units of the key
 */
export function firmForMs(keyState: KeyState, holder: string | undefined, isInLine: boolean): number {
  const { accounts, policy, holders } = keyState;
  const isShared = policy.pool !== undefined || policy.region !== undefined;
  if (isShared || isInLine || !policy.localDecisions.denies) return 0;
  const own = holder === undefined ? undefined : holders.get(holder)?.hold;
  const isHeld = accounts.some(({ holds }) => holds.some(({ id }) => id !== own));
  return isHeld ? 0 : policy.denialTtlMs;
}

/**
 * What would be said of a further call of cost 1, if that is a denial, and for how long it stands: so whoever was given
 * the last unit need not ask again to hear that there is none.
 *
 * @param holder the id of the isolate that is told
 * @param isInLine callers wait for units of the key
 */
export function denialToCome(
  keyState: KeyState,
  {
    holder,
    priority,
    isInLine,
  }: { readonly holder?: string; readonly priority?: string | undefined; readonly isInLine: boolean },
  nowMs: number,
): Pick<Decided, "next" | "firmForMs"> {
  const next = withoutTaking(keyState.seenBy(priority), nowMs, 1);
  if (next.every(({ success }) => success)) return {};
  const firmMs = firmForMs(keyState, holder, isInLine);
  return { next, ...(firmMs > 0 && { firmForMs: firmMs }) };
}
