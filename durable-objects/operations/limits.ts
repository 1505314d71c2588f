import { type Account, refund, uncharge } from "../../core/accounts/account.ts";
import {
  admitsTogether,
  decideTogether,
  type JointDecision,
  withoutTaking,
} from "../../core/accounts/joint-decision.ts";
import { type Cost, costOf, costText, type Rule, takesNothing } from "../../core/policies/policy.ts";
import type { Answer, Decided } from "../../core/protocol/answers.ts";
import type { LimitParams, SetParams } from "../../core/protocol/messages.ts";
import { writtenKey } from "../../core/protocol/names.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { full, type Full } from "../../core/protocol/problems.ts";
import { chargeOf, type Idempotent, takenOf, takesAll } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { RuleState } from "../keys/rule-state.ts";
import { MISSING } from "./claims.ts";
import {
  cacheableDenial,
  cacheableForMs,
  isProvisionallyBlocked,
  kindMismatch,
  whenUncontended,
} from "./denials.ts";
import type { Limiting } from "./operations.ts";
import type { Turns } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** The calls that take units, and give units back: `limit` and `refund`. */
export class Limits {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #turns: Turns;

  constructor(store: KeyStore, queue: WaitQueue, turns: Turns) {
    this.#store = store;
    this.#queue = queue;
    this.#turns = turns;
  }

  /**
   * Decides on a cost and takes it if every rule admits it: at once or, with `waitMs`, when the caller's turn comes.
   * While callers wait, a call that does not wait is denied: nobody passes them.
   */
  limit(keyState: KeyState, call: Limiting, nowMs: number): MaybePromise<Answer> {
    const { cost, waitMs, signal, caller, idempotencyKey, priority, shed } = call;
    this.#queue.serve(keyState);
    if (takesNothing(keyState.policy, cost)) return this.#look(keyState, call, nowMs);
    const isBehind = this.#queue.aheadOf(keyState, priority, nowMs).length > 0;
    if (shed !== undefined || (waitMs === undefined && !isBehind))
      return this.#limitAtOnce(keyState, call, nowMs);
    const turn = { cost, ttlMs: 0, waitMs, signal, caller, idempotencyKey, priority };
    return this.#turns.take(keyState, turn, nowMs, {
      earlier: (atMs) => this.#standing(keyState, call, atMs),
      grant: (atMs, waitedMs) =>
        admitsTogether(keyState.seenBy(priority), atMs, cost)
          ? this.#answer(keyState, call, this.#decide(keyState, call, atMs), atMs, waitedMs)
          : undefined,
      deny: (atMs) => this.#answer(keyState, call, this.#decide(keyState, call, atMs), atMs),
    });
  }

  /** Decides at once, and waits only for calls on several keys to end: see denials.ts. */
  #limitAtOnce(keyState: KeyState, call: Limiting, nowMs: number): MaybePromise<Answer> {
    const { cost } = call;
    const answerAt = (atMs: number, isLast: boolean): Answer | undefined => {
      // This is looked up each time: a repetition of this call may have been answered while this one waited.
      const standing = this.#standing(keyState, call, atMs) ?? kindMismatch(keyState, "units", atMs);
      if (standing !== undefined) return standing;
      if (call.shed !== undefined) return { shed: call.shed };
      const decided = this.#decide(keyState, call, atMs);
      if (!decided.admitted && !isLast && isProvisionallyBlocked(keyState, call, atMs)) return undefined;
      return this.#answer(keyState, call, decided, atMs);
    };
    const answer = answerAt(nowMs, false);
    if (answer !== undefined) return answer;
    if (call.isBatched === true) return full("batch-waits", 0);
    return whenUncontended(this.#queue, keyState, { cost }, nowMs, answerAt);
  }

  /** The answer to a cost that takes nothing. */
  #look(keyState: KeyState, call: Limiting, nowMs: number): Answer {
    return this.#earlier(keyState, call, nowMs) ?? { rules: this.#turns.look(keyState, call, nowMs) };
  }

  #earlier(keyState: KeyState, { cost, idempotencyKey }: Limiting, atMs: number): Answer | undefined {
    return this.#store.earlier(keyState, idempotentOf(cost, idempotencyKey), atMs);
  }

  /** The earlier answer to the same call, unless it is a denial that a rule has counted: that is decided anew. */
  #standing(keyState: KeyState, call: Limiting, atMs: number): Answer | undefined {
    const earlier = this.#earlier(keyState, call, atMs);
    return earlier !== undefined && isDenial(earlier) ? undefined : earlier;
  }

  #decide(keyState: KeyState, { cost, priority }: Limiting, atMs: number): JointDecision {
    return decideTogether(keyState.seenBy(priority), atMs, cost);
  }

  /** Writes what was decided, and remembers it under the call's idempotency key. */
  #answer(
    keyState: KeyState,
    call: Limiting,
    { admitted, accounts, rules }: JointDecision,
    atMs: number,
    waitedMs?: number,
  ): Answer {
    const { cost, idempotencyKey, priority } = call;
    // A denial that a rule has counted (`countDenied`) is not counted again.
    const isCounted = !admitted && this.#earlier(keyState, call, atMs) !== undefined;
    if (isCounted) return { rules: withoutTaking(keyState.seenBy(priority), atMs, cost) };
    const answer = { rules, ...(waitedMs !== undefined && { waitedMs }) };
    if (accounts === undefined) return admitted ? answer : this.#firmly(keyState, answer);
    const charge = admitted ? chargeOf(keyState.policy.rules, cost) : undefined;
    const idempotent = idempotentOf(cost, idempotencyKey);
    const remember = idempotent === undefined ? [] : [{ ...idempotent, answer, ...(charge && { charge }) }];
    const over = this.#store.commitWithin(keyState, { accounts, remember }, atMs);
    if (over !== undefined || !admitted || idempotent !== undefined) return over ?? answer;
    return this.#withDenialToCome(keyState, priority, answer, atMs);
  }

  /** An admission, with the denial of the next call if nothing is left. */
  #withDenialToCome(
    keyState: KeyState,
    priority: string | undefined,
    answer: Decided,
    atMs: number,
  ): Decided {
    const isLast = answer.rules.some(({ remaining }) => remaining === 0);
    if (!isLast || !keyState.policy.localDecisions.denies) return answer;
    const isInLine = this.#queue.waitersOf(keyState).length > 0;
    return { ...answer, ...cacheableDenial(keyState, { priority, isInLine }, atMs) };
  }

  /** A denial that changes nothing, with how long it stands. */
  #firmly(keyState: KeyState, answer: Decided): Decided {
    const isInLine = this.#queue.waitersOf(keyState).length > 0;
    const firmMs = cacheableForMs(keyState, undefined, isInLine);
    return firmMs > 0 ? { ...answer, firmForMs: firmMs } : answer;
  }

  /** Gives units back, at most up to an untouched quota. */
  refund(
    keyState: KeyState,
    units: Cost,
    idempotencyKey: string,
    charge: string | undefined,
    nowMs: number,
  ): Answer {
    const idempotent = { idempotencyKey, request: refundText(units, charge) };
    const earlier = this.#store.earlier(keyState, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const standing = charge === undefined ? undefined : this.#store.chargeOf(keyState, charge, nowMs);
    if (charge !== undefined && standing === undefined) return MISSING;
    const refunded = keyState.seenBy().map(({ rule, account }) => ({
      rule,
      account:
        standing === undefined
          ? refund(rule, account, nowMs, costOf(rule, units))
          : uncharge(rule, account, nowMs, takenOf(rule, standing.charge, units), standing.atMs),
    }));
    const answer = { rules: withoutTaking(refunded, nowMs, 0) };
    const accounts = refunded.map(({ account }) => account);
    // All in one commit: a charge that stood while its units are back could be given back again.
    const change = { accounts, remember: [{ ...idempotent, answer }] };
    // Nothing is left of a charge that came back whole. So its call is decided anew when it is made again.
    const isWhole = standing !== undefined && takesAll(keyState.policy.rules, standing.charge, units);
    const end = charge === undefined ? {} : isWhole ? { forget: [charge] } : { uncharge: charge };
    const over = this.#store.commitWithin(keyState, { ...change, ...end }, nowMs);
    if (over === undefined) this.#queue.serve(keyState);
    return over ?? answer;
  }
}

function idempotentOf(cost: Cost, idempotencyKey: string | undefined): Idempotent | undefined {
  return idempotencyKey === undefined ? undefined : { idempotencyKey, request: `limit of ${costText(cost)}` };
}

/** A refund in words, with the call whose charge it gives back. Stored: never reword. */
export function refundText(units: Cost, charge: string | undefined): string {
  const text = `refund of ${costText(units)}`;
  return charge === undefined ? text : `${text} of the charge ${JSON.stringify(writtenKey(charge))}`;
}

function isDenial(answer: Answer): boolean {
  return "rules" in answer && answer.rules.some(({ success }) => !success);
}

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
