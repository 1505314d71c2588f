import type { Rule } from "../policies/policy.ts";

/**
 * The units that a call asks for. A number is for every rule. An object gives a number for each unit (`Rule.unit`),
 * and 1 counts for a unit that is left out.
 */
export type Cost = number | Readonly<Record<string, number>>;

/** The units that a cost has for a rule. */
export function costOf(rule: Pick<Rule, "unit">, cost: Cost): number {
  if (typeof cost === "number") return cost;
  return Object.hasOwn(cost, rule.unit) ? (cost[rule.unit] ?? 1) : 1;
}

/** Whether a cost has no units for any rule: then the call only looks, as with a cost of 0. */
export function takesNothing(
  { rules }: { readonly rules: readonly Pick<Rule, "unit">[] },
  cost: Cost,
): boolean {
  return typeof cost === "number" ? cost === 0 : rules.every((rule) => costOf(rule, cost) === 0);
}

/** A cost as text. The same cost has the same text, in whatever order its units were given. */
export function costText(cost: Cost): string {
  if (typeof cost === "number") return String(cost);
  return Object.keys(cost)
    .toSorted()
    .map((unit) => `${cost[unit]} ${unit}`)
    .join(", ");
}
