/**
 * Terms: what the rules of a policy say, as text. While a deployment is rolled out, versions of a policy mix: callers
 * have one and the object has another. So callers send their terms, and an object that hears others than its own decides
 * by the stricter of both: what passes has to pass under both. Which of the two is the newer nobody has to know, and it
 * holds for going back to an earlier version as well.
 *
 * Rules are compared by their names. One that the other version does not have, or that has another algorithm there, is
 * decided as the object knows it.
 */
import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
import { both, type BothConfig } from "../algorithms/both.ts";
import { parsePolicies } from "./parse-policies.ts";
import type { Rule } from "./policy.ts";

/** The rules of another version of a policy; none: this version cannot read them. */
export function rulesIn(policy: string, terms: string): readonly Rule[] {
  try {
    const rules = Object.fromEntries(JSON.parse(terms) as readonly [string, unknown][]);
    return parsePolicies({ [policy]: { rules } }).get(policy)?.rules ?? [];
  } catch (error) {
    console.warn(`policy ${policy}: another version has terms that this one cannot read: ${String(error)}`);
    return [];
  }
}

/**
 * The rule, deciding by the stricter of its own terms and those of the rule with its name.
 *
 * @returns `undefined`: they cannot be compared
 */
export function stricterOf(rule: Rule, others: readonly Rule[]): Rule | undefined {
  const other = others.find(({ name }) => name === rule.name);
  if (other === undefined || storedName(other) !== storedName(rule)) return undefined;
  if ((other.algorithm.isPenal === true) !== (rule.algorithm.isPenal === true)) return undefined;
  const config: BothConfig = { own: rule.config, other: other.config };
  const algorithm = both(rule.algorithm, other.algorithm) as unknown as AnyAlgorithm;
  return { ...rule, algorithm, config, capacity: algorithm.capacity(config) };
}

function storedName({ algorithm }: Rule): string {
  return algorithm.storedAs ?? algorithm.name;
}
