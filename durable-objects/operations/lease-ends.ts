import type { Lease, Missing } from "../../core/protocol/answers.ts";
import type { WantedRelease } from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Operations } from "./operations.ts";

/** Ends a lease where its key is: at once, or in `graceMs` when its link has ended and its holder may come back. */
export function endLease(
  operations: Operations,
  keyState: KeyState,
  { id, outcome, durationMs, link, graceMs }: WantedRelease,
  nowMs: number,
): Maybe<boolean> {
  if (graceMs === undefined) return operations.release(keyState, id, nowMs, { outcome, durationMs, link });
  const left = operations.renew(keyState, id, graceMs, nowMs, { from: link });
  return left instanceof Promise ? left.then(isThere) : isThere(left);
}

function isThere(lease: Lease | Missing): boolean {
  return !("missing" in lease);
}
