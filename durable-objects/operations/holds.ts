import { settle, type Account } from "../../core/accounts/account.ts";
import { admitsTogether, decideTogether, withoutTaking } from "../../core/accounts/joint-decision.ts";
import { randomId } from "../../core/clock.ts";
import type { Answer, Decided } from "../../core/protocol/answers.ts";
import { ownHoldId } from "../../core/protocol/caller-keys.ts";
import { costOf, costText, type Cost } from "../../core/protocol/cost.ts";
import type { HoldParams } from "../../core/protocol/messages.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { Full } from "../../core/protocol/problems.ts";
import { endOfHold, type Idempotent } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { RuleState } from "../keys/rule-state.ts";
import type { Claim } from "../storage/records.ts";
import { holdIn, leasedOf, leaseIn, MISSING, newLease } from "./claims.ts";
import { isProvisionallyBlocked, whenUncontended } from "./denials.ts";
import type { Turns } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** Callers' holds: units are set apart until the caller knows how many it has used. */
export class Holds {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #turns: Turns;

  constructor(store: KeyStore, queue: WaitQueue, turns: Turns) {
    this.#store = store;
    this.#queue = queue;
    this.#turns = turns;
  }

  /** Holds units if every rule admits them. Waits only for provisional holds to end: see denials.ts. */
  hold(keyState: KeyState, call: HoldParams, nowMs: number): MaybePromise<Answer> {
    const { cost, provisional } = call;
    const earlier = this.#earlier(keyState, call, nowMs);
    if (earlier !== undefined) return earlier;
    if (call.shed !== undefined) return { shed: call.shed };
    // Nobody passes callers that wait for units of rates.
    this.#queue.serve(keyState);
    if (keyState.policy.lease === undefined && this.#queue.aheadOf(keyState, call.priority, nowMs).length > 0)
      return { rules: this.#turns.look(keyState, call, nowMs) };
    // A part of a call on several keys does not pass callers that wait for this key.
    const isBehind = provisional !== undefined && this.#queue.waitersOf(keyState).length > 0;
    const placed = isBehind ? undefined : this.#place(keyState, call, nowMs);
    if (placed !== undefined) return placed;
    if (provisional?.waitMs === 0 || !isProvisionallyBlocked(keyState, call, nowMs))
      return this.#deny(keyState, call, nowMs);
    const waiting = { cost, ttlMs: call.ttlMs, ...(provisional && { waitMs: provisional.waitMs }) };
    return whenUncontended(this.#queue, keyState, waiting, nowMs, (atMs, isLast) => {
      // A repetition of this call may have been answered while this one waited.
      const placedNow = this.#earlier(keyState, call, atMs) ?? this.#place(keyState, call, atMs);
      const isOver = isLast || !isProvisionallyBlocked(keyState, call, atMs);
      return placedNow ?? (isOver ? this.#deny(keyState, call, atMs) : undefined);
    });
  }

  /** Ends a hold with the units really used. A settle that is late or repeated is answered, and changes nothing. */
  settle(keyState: KeyState, id: string, used: Cost, nowMs: number): Answer {
    const claim = holdIn(keyState, id);
    if (claim === undefined) return this.#settledBefore(keyState, id, nowMs);
    const accounts = keyState.ruleStates.map((ruleState) => settled(ruleState, claim, used, nowMs));
    const after = keyState.seenBy().map(({ rule }, index) => ({
      rule,
      account: accounts[index] as Account,
    }));
    const answer = { rules: withoutTaking(after, nowMs, 0) };
    const isRepeatable = claim.isProvisional !== true || claim.idempotencyKey !== undefined;
    const remember = isRepeatable ? [{ ...endOfHold(id), answer }] : [];
    this.#store.commit(keyState, { accounts, end: [claim], remember }, nowMs);
    this.#queue.serve(keyState);
    return answer;
  }

  /** Ends a hold as unused, and also the lease that was taken with it. */
  cancel(keyState: KeyState, id: string, nowMs: number): Answer {
    const claim = holdIn(keyState, id);
    if (claim === undefined) {
      const isCancelled = this.#store.endOf(keyState, id, nowMs) === "cancelled";
      return isCancelled ? figures(keyState, nowMs) : MISSING;
    }
    const { lease = "", isProvisional, idempotencyKey } = claim;
    const leased = leaseIn(keyState, lease);
    const end = leased === undefined ? [claim] : [claim, leased];
    const accounts = keyState.ruleStates.map(({ rule, account }) =>
      end.reduce((current, { id: each }) => settle(rule, current, nowMs, each, 0), account),
    );
    // One key denied the call on several keys, so its hold here is cancelled. A repetition of the call is decided anew.
    const forget = isProvisional === true && idempotencyKey !== undefined ? [idempotencyKey] : [];
    const remember = isProvisional === true ? [] : [{ ...endOfHold(id), answer: "cancelled" as const }];
    this.#store.commit(keyState, { accounts, end, forget, remember }, nowMs);
    this.#queue.serve(keyState);
    return figures(keyState, nowMs);
  }

  /** The answer to a settle when the key has no such hold any more. */
  #settledBefore(keyState: KeyState, id: string, nowMs: number): Answer {
    const isExpired = keyState.expired.some((claim) => claim.id === id && claim.kind === "hold");
    const earlier = isExpired ? "expired" : this.#store.endOf(keyState, id, nowMs);
    if (earlier === undefined) return MISSING;
    return typeof earlier === "string" ? figures(keyState, nowMs) : earlier;
  }

  /** Takes the hold, and a lease beside it when a rule leases; `undefined`: a rule denies the cost. */
  #place(keyState: KeyState, call: HoldParams, nowMs: number): Decided | Full | undefined {
    const { cost, ttlMs, idempotencyKey, provisional, caller } = call;
    const ruleAccounts = keyState.seenBy(call.priority);
    if (!admitsTogether(ruleAccounts, nowMs, cost)) return undefined;
    const hold = { id: call.id ?? ownHoldId(caller, randomId()), expiresAtMs: nowMs + ttlMs };
    const leaseTtlMs = keyState.policy.lease?.ttlMs ?? 0;
    const lease = { id: randomId(), expiresAtMs: nowMs + leaseTtlMs };
    const mark = provisional && { isProvisional: true };
    const taking = { hold: { ...hold, ...mark }, lease: { ...lease, ...mark } };
    const { accounts = [], rules } = decideTogether(ruleAccounts, nowMs, cost, taking);
    const by = caller === undefined ? {} : { caller };
    const leased = newLease(keyState, accounts, cost, { ...lease, ttlMs: leaseTtlMs, ...by }, nowMs);
    const rates = keyState.ruleStates.filter(({ rule }) => rule.lease === undefined);
    const claim: Claim = {
      ...hold,
      kind: "hold",
      units: Object.fromEntries(rates.map(({ rule }) => [rule.name, costOf(rule, cost)])),
      ttlMs,
      ...by,
      ...(leased && { lease: leased.id }),
      ...(provisional && { isProvisional: true }),
      ...(idempotencyKey !== undefined && { idempotencyKey }),
    };
    const answer: Decided = {
      rules,
      hold: { id: hold.id, units: cost, expiresAfterMs: ttlMs },
      ...(leased && { lease: leasedOf(leased, nowMs) }),
    };
    const idempotent = idempotentOf(call);
    const remember = idempotent === undefined ? [] : [{ ...idempotent, answer }];
    const change = { accounts, put: leased ? [claim, leased] : [claim], remember };
    return this.#store.commitWithin(keyState, change, nowMs) ?? answer;
  }

  #deny(keyState: KeyState, call: HoldParams, nowMs: number): Decided {
    const { admitted, accounts, rules } = decideTogether(keyState.seenBy(call.priority), nowMs, call.cost);
    // If the cost is admitted here, other callers wait before this call. It takes nothing, and may ask again.
    if (!admitted && accounts !== undefined) this.#store.commit(keyState, { accounts }, nowMs);
    const isContended = admitted || isProvisionallyBlocked(keyState, call, nowMs);
    return { rules, ...(isContended && { isContended }) };
  }

  /** The earlier answer to the same call. If its hold still lasts, the answer says for how much longer. */
  #earlier(keyState: KeyState, call: HoldParams, nowMs: number): Answer | undefined {
    const earlier = this.#store.earlier(keyState, idempotentOf(call), nowMs);
    if (earlier === undefined || "conflict" in earlier || earlier.hold === undefined) return earlier;
    const claim = holdIn(keyState, earlier.hold.id);
    if (claim === undefined) return earlier;
    return { ...earlier, hold: { ...earlier.hold, expiresAfterMs: claim.expiresAtMs - nowMs } };
  }
}

function idempotentOf({ idempotencyKey, cost, provisional }: HoldParams): Idempotent | undefined {
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: provisional?.request ?? `hold of ${costText(cost)}` };
}

/** What the rules say now, as the answer to a call that has changed nothing or is done. */
function figures(keyState: KeyState, nowMs: number): Decided {
  return { rules: withoutTaking(keyState.seenBy(), nowMs, 0) };
}

/** A rule's account after a hold has been settled. A unit that `used` does not name was used as it was held. */
function settled({ rule, account }: RuleState, claim: Claim, used: Cost, nowMs: number): Account {
  if (rule.lease !== undefined) return account;
  const held = Object.hasOwn(claim.units, rule.name) ? (claim.units[rule.name] ?? 0) : 0;
  const units = typeof used === "object" && !Object.hasOwn(used, rule.unit) ? held : costOf(rule, used);
  if (held > 0) return settle(rule, account, nowMs, claim.id, units);
  if (units === 0) return account;
  return { ...account, state: rule.algorithm.debit(rule.config, account.state, nowMs, units) };
}
