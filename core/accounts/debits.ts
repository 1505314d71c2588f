/**
 * Consumption that is said and not asked for: a debit that cannot be denied, and a key whose consumption is set. Both
 * leave holds alone, and neither is under the bound of the limit. Pure, as account.ts is.
 */
import type { Rule } from "../policies/policy.ts";
import type { Account } from "./account.ts";

/** So many units cannot be counted exactly; `most` can be, when none is used. */
export interface TooMany {
  readonly most: number;
}

/**
 * Takes units whatever is there, as a call that passes would: so `minInterval` begins. What is missing is a debt.
 *
 * @param units 0: the account stays as it is
 */
export function forced(rule: Rule, account: Account, nowMs: number, units: number): Account | TooMany {
  if (units === 0) return account;
  const { algorithm, config } = rule;
  const noted = algorithm.noteHold(config, account.state, nowMs);
  return debited(rule, { ...account, state: noted }, nowMs, units);
}

/** The account as if exactly so many units had been taken now, and none before. It begins no `minInterval`. */
export function withUsed(rule: Rule, { holds }: Account, nowMs: number, used: number): Account | TooMany {
  return debited(rule, { state: undefined, holds }, nowMs, used);
}

function debited(rule: Rule, { state, holds }: Account, nowMs: number, units: number): Account | TooMany {
  const { algorithm, config } = rule;
  const most = algorithm.mostDebit?.(config, state, nowMs) ?? Infinity;
  if (units > most) return { most: algorithm.mostDebit?.(config, undefined, nowMs) ?? most };
  return { state: algorithm.debit(config, state, nowMs, units), holds };
}
