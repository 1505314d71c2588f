import type { Policy, Rule } from "../../core/policies/policy.ts";
import { rulesIn, stricterOf } from "../../core/policies/terms.ts";

/** Terms are forgotten when nobody has sent them for so long, in milliseconds: their version is not in use any more. */
const HEARD_MS = 60_000;

/** What a policy decides by while two versions of it are in use: a rule for each of its own that can be compared. */
export type Comparison = ReadonlyMap<Rule, Rule>;

interface Heard {
  readonly terms: string;
  readonly comparison: Comparison;
  untilMs: number;
}

/**
 * The terms of other versions of its policies that callers have sent to this object lately: one for each policy, since
 * a deployment has two versions at a time. Of a third one none are taken over until these are forgotten. In memory only.
 */
export class HeardTerms {
  readonly #heard = new Map<string, Heard>();

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
