import type { Policy, Rule } from "../policies/policy.ts";
import { heldMs } from "./sizing.ts";

/**
 * The most milliseconds until a rule's quota is whole, as far as an isolate knows: others may have emptied it, and may
 * use what they hold now until their holds expire.
 *
 * @param wholeMs until the latest instant for which the object said that it would be whole; may be in the past
 */
export function ceilingMs(policy: Policy, { algorithm, config }: Rule, wholeMs: number): number {
  const heldForMs = heldMs(policy.reservation.mostMs);
  const lateMs = algorithm.endsLateMs?.(config) ?? Infinity;
  // What is held now is used before this end. The answer that named it may have been as late as a deadline.
  if (wholeMs > heldForMs + policy.deadlineMs + lateMs) return wholeMs + lateMs;
  return Math.max(wholeMs, heldForMs + algorithm.wholeFromEmptyMs(config));
}
