/**
 * Charges: what a call took, remembered beside its answer. So it can be given back by the call's idempotency key: once,
 * and no more than it was.
 */
import type { Rule } from "../../core/policies/policy.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";

/** What a call took of each rule, by the rule's name. Stored: fields are added, and none is renamed. */
export type Charge = Readonly<Record<string, Taken>>;

interface Taken {
  readonly units: number;
  /** The terms under which the units were taken. Under others nobody knows which of them time has given back. */
  readonly terms: string;
}

/** A charge that has not been given back. */
export interface StandingCharge {
  readonly charge: Charge;
  /** When the units were taken. */
  readonly atMs: number;
}

/** The charge of a cost; `undefined`: the cost takes nothing. */
export function chargeOf(rules: readonly Rule[], cost: Cost): Charge | undefined {
  const taken = rules
    .map((rule): [string, Taken] => [rule.name, { units: costOf(rule, cost), terms: termsOf(rule) }])
    .filter(([, { units }]) => units > 0);
  return taken.length === 0 ? undefined : Object.fromEntries(taken);
}

/** How many of `units` the charge took of this rule, on the terms that the rule still has. */
export function takenOf(rule: Rule, charge: Charge, units: Cost): number {
  const taken = Object.hasOwn(charge, rule.name) ? charge[rule.name] : undefined;
  return taken?.terms === termsOf(rule) ? Math.min(taken.units, costOf(rule, units)) : 0;
}

/** Whether these units are all that the charge took, so that nothing of it is left. */
export function takesAll(rules: readonly Rule[], charge: Charge, units: Cost): boolean {
  return Object.entries(charge).every(([name, taken]) => {
    const rule = rules.find((each) => each.name === name);
    return rule !== undefined && takenOf(rule, charge, units) === taken.units;
  });
}

/** Stored: never reword. With other words, charges from before could not be given back. */
function termsOf({ algorithm, capacity, quota }: Rule): string {
  return `${algorithm.name} ${capacity} ${quota.units}/${quota.windowMs ?? 0}`;
}
