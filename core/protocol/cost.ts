import type { Rule } from "../policies/policy.ts";

/**
 * The units that a call asks for. A number is for every rule. An object gives a number for each unit (`Rule.unit`),
 * and 1 counts for a unit that is left out.
 */
export type Cost = number | Readonly<Record<string, number>>;

/** The units that a cost has for a rule. */
export function costOf(rule: Rule, cost: Cost): number {
  if (typeof cost === "number") return cost;
  return Object.hasOwn(cost, rule.unit) ? (cost[rule.unit] ?? 1) : 1;
}

/** A cost as text. The same cost has the same text, in whatever order its units were given. */
export function costText(cost: Cost): string {
  if (typeof cost === "number") return String(cost);
  return Object.keys(cost)
    .toSorted()
    .map((unit) => `${cost[unit]} ${unit}`)
    .join(", ");
}
