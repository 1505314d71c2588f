import type { Account } from "../../core/accounts/account.ts";
import { withoutTaking } from "../../core/accounts/joint-decision.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { Answer } from "../../core/protocol/answers.ts";
import { costOf, costText } from "../../core/protocol/cost.ts";
import type { LimitParams, SetParams } from "../../core/protocol/messages.ts";
import { full, type Full } from "../../core/protocol/problems.ts";
import { chargeOf } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { RuleState } from "../keys/rule-state.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** The calls that change what a key has used and decide nothing: a debit that is forced, and a set. */
export class Debits {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;

  constructor(store: KeyStore, queue: WaitQueue) {
    this.#store = store;
    this.#queue = queue;
  }

  /** Takes a cost under all rules whatever is there, once for each idempotency key. The answer admits. */
  force(keyState: KeyState, { cost, idempotencyKey }: LimitParams, nowMs: number): Answer {
    this.#checkPolicy(keyState);
    const idempotent =
      idempotencyKey === undefined ? undefined : { idempotencyKey, request: `debit of ${costText(cost)}` };
    const earlier = this.#store.earlier(keyState, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const accounts = accountsOf(keyState.ruleStates, ({ rule, account }) =>
      forced(rule, account, nowMs, costOf(rule, cost)),
    );
    if ("full" in accounts) return accounts;
    const answer = { rules: withoutTaking(after(keyState, accounts), nowMs, 0) };
    const charge = chargeOf(keyState.policy.rules, cost);
    const remember = idempotent === undefined ? [] : [{ ...idempotent, answer, ...(charge && { charge }) }];
    return this.#store.commitWithin(keyState, { accounts, remember }, nowMs) ?? answer;
  }

  /** Sets what the rules that count a rate have used; `undefined`: it is done. Holds and leases stay. */
  setUsed(keyState: KeyState, { used }: SetParams, nowMs: number): Full | undefined {
    this.#checkPolicy(keyState);
    const accounts = accountsOf(keyState.ruleStates, ({ rule, account }) => {
      const isNamed = typeof used === "number" || Object.hasOwn(used, rule.unit);
      return isNamed && rule.lease === undefined
        ? withUsed(rule, account, nowMs, costOf(rule, used))
        : account;
    });
    if ("full" in accounts) return accounts;
    this.#store.commit(keyState, { accounts, isExact: true }, nowMs);
    this.#queue.serve(keyState);
    return undefined;
  }

  /** The worker refuses such calls with words for whoever made them. */
  #checkPolicy({ policy }: KeyState): void {
    if (policy.pool === undefined) return;
    throw new Error(
      `the policy ${JSON.stringify(policy.name)} has a pool, where nothing can be forced or set`,
    );
  }
}

function accountsOf(
  ruleStates: readonly RuleState[],
  next: (ruleState: RuleState) => Account | TooMany,
): readonly Account[] | Full {
  const accounts: Account[] = [];
  for (const ruleState of ruleStates) {
    const account = next(ruleState);
    if ("most" in account) return full("debt", account.most);
    accounts.push(account);
  }
  return accounts;
}

function after({ ruleStates }: KeyState, accounts: readonly Account[]) {
  return ruleStates.map(({ rule, account }, index) => ({ rule, account: accounts[index] ?? account }));
}

/*
 * Consumption that is said and not asked for: a debit that cannot be denied, and a key whose consumption is set. Both
 * leave holds alone, and neither is under the bound of the limit. Pure, as account.ts is.
 */

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
