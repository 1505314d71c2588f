/** What a call asks for, in units. */
import type { Rule } from "../policies/policy.ts";

/** Units to take: of every rule, or by the unit that a rule counts; a unit that is left out counts once. */
export type Cost = number | Readonly<Record<string, number>>;

/** The units of a cost that a rule counts: a cost may be given per unit, and what is left out counts once. */
export function costOf(rule: Rule, cost: Cost): number {
  if (typeof cost === "number") return cost;
  return Object.hasOwn(cost, rule.unit) ? (cost[rule.unit] ?? 1) : 1;
}

/** A cost as text, the same for the same cost however it was written. */
export function costText(cost: Cost): string {
  if (typeof cost === "number") return String(cost);
  return Object.keys(cost)
    .toSorted()
    .map((unit) => `${cost[unit]} ${unit}`)
    .join(", ");
}
