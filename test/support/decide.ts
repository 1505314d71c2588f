import { decideRule } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import type { Allowed, Denial } from "../../core/algorithms/algorithm.ts";
import type { Rule } from "../../core/policies/policy.ts";

export type AccountDecision =
  | (Omit<Allowed<unknown>, "state"> & { readonly account: Account })
  | (Denial & {
      readonly allowed: false;
      /** Present when the rule counts denials: the account with this denial, and the decision from it. */
      readonly counted?: Denial & { readonly account: Account };
    });

/** Decides on `cost` units of one rule, with the account after that. */
export function decide(rule: Rule, account: Account, nowMs: number, cost: number): AccountDecision {
  const { holds } = account;
  const decision = decideRule(rule, account, nowMs, cost);
  if (decision.allowed) {
    const { state, ...admitted } = decision;
    return { ...admitted, account: cost === 0 ? account : { state, holds } };
  }
  const { counted, ...denied } = decision;
  if (counted === undefined) return denied;
  const { state, ...countedDenial } = counted;
  return { ...denied, counted: { ...countedDenial, account: { state, holds } } };
}
