import type { AnyAlgorithm } from "../../core/algorithms/algorithm.ts";
import { dualConfig, type DualConfig } from "../../core/algorithms/dual-config.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policy, Rule } from "../../core/policies/policy.ts";

/** Terms are forgotten when nobody has sent them for so long, in milliseconds: their version is not in use any more. */
const HEARD_MS = 60_000;

/** What a policy decides by while two versions of it are in use: a rule for each of its own that can be compared. */
export type Comparison = ReadonlyMap<Rule, Rule>;

interface HeardFingerprint {
  readonly terms: string;
  readonly comparison: Comparison;
  untilMs: number;
}

/**
 * The terms of other versions of its policies that callers have sent to this object lately: one for each policy, since
 * a deployment has two versions at a time. Of a third one none are taken over until these are forgotten. In memory only.
 */
export class RuleFingerprints {
  readonly #heard = new Map<string, HeardFingerprint>();

  /** A call has come with these terms. */
  hear(policy: Pick<Policy, "name" | "terms" | "rules"> | undefined, terms: string, nowMs: number): void {
    if (policy === undefined || terms === policy.terms) return;
    const known = this.#heard.get(policy.name);
    if (known !== undefined && known.untilMs > nowMs) {
      if (known.terms === terms) known.untilMs = nowMs + HEARD_MS;
      return;
    }
    const others = rulesIn(policy.name, terms);
    const compared = policy.rules.map((rule): [Rule, Rule | undefined] => [rule, stricterOf(rule, others)]);
    const comparison = new Map(compared.filter((each): each is [Rule, Rule] => each[1] !== undefined));
    this.#heard.set(policy.name, { terms, comparison, untilMs: nowMs + HEARD_MS });
  }

  /** What the policy decides by beside its own terms; `undefined`: nobody has sent other terms lately. */
  comparison(policy: string, nowMs: number): Comparison | undefined {
    const heard = this.#heard.get(policy);
    if (heard === undefined || heard.untilMs > nowMs) return heard?.comparison;
    this.#heard.delete(policy);
    return undefined;
  }
}

/*
 * Terms: what the rules of a policy say, as text. While a deployment is rolled out, versions of a policy mix: callers
 * have one and the object has another. So callers send their terms, and an object that hears others than its own decides
 * by the stricter of both: what passes has to pass under both. Which of the two is the newer nobody has to know, and it
 * holds for going back to an earlier version as well.
 *
 * Rules are compared by their names. One that the other version does not have, or that has another algorithm there, is
 * decided as the object knows it.
 */

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
  const config: DualConfig = { own: rule.config, other: other.config };
  const algorithm = dualConfig(rule.algorithm, other.algorithm) as unknown as AnyAlgorithm;
  return { ...rule, algorithm, config, capacity: algorithm.capacity(config) };
}

function storedName({ algorithm }: Rule): string {
  return algorithm.storedAs ?? algorithm.name;
}
