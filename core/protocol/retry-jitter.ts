/**
 * Jitter on the wait that a denied caller is told.
 *
 * Callers that were denied together are told the same instant, and come back together: most of them are denied again,
 * and so on. With jitter each waits a random time longer, so they come one after the other. Nobody is told less than the
 * exact wait, which stays in the decisions of the rules.
 */
import type { Policy } from "../policies/policy.ts";
import type { Decision } from "./decision.ts";

/**
 * The decision as its caller is told it. A policy without `retryJitter` tells the exact wait.
 *
 * @param random draws a number from 0, included, to 1, not included; it is asked only if there is something to add
 */
export function withJitter(
  { retryJitter }: Pick<Policy, "retryJitter">,
  decision: Decision,
  random: () => number,
): Decision {
  const { retryAfterMs } = decision;
  // 0, `null` (never) and a wait that nobody knows stay what they are.
  if (retryJitter === undefined || typeof retryAfterMs !== "number" || retryAfterMs <= 0) return decision;
  const mostMs = "mostMs" in retryJitter ? retryJitter.mostMs : Math.ceil(retryAfterMs * retryJitter.share);
  const toldMs = retryAfterMs + Math.floor(random() * (mostMs + 1));
  return { ...decision, retryAfterMs: Math.min(toldMs, Number.MAX_SAFE_INTEGER) };
}
