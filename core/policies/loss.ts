/** What a crash or a vanished isolate may cost: units that were set apart, and count as used though nobody used them. */
import type { Rule } from "./policy.ts";

const SOON_MS = 10_000;
const LEAST_SHARE = 0.001;

/**
 * The most units of a rule that may be lost: what comes back within 10 s, or 0.1 % of the limit where that is more. It
 * need not be a whole number.
 */
export function mostLost({ capacity, quota }: Pick<Rule, "capacity" | "quota">): number {
  const soon = quota.windowMs === undefined ? 0 : (quota.units * SOON_MS) / quota.windowMs;
  return Math.max(soon, capacity * LEAST_SHARE);
}
