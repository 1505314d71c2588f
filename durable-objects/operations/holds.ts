import { holdIn, inWords, leasedOf, leaseIn, MISSING, newLease } from "./claims.ts";
import { randomId } from "../../core/clock.ts";
import { isProvisionallyBlocked, whenUncontended } from "./contention.ts";
import { costOf, decideTogether, withoutTaking } from "../../core/accounts/joint-decision.ts";
import { settle, type Account } from "../../core/accounts/account.ts";
import { CANCELLED, EXPIRED, HOLD_ENDED, type Idempotent } from "../keys/idempotency.ts";
import type { RuleState, KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { AnswerText, Cost, Decided, HoldCall } from "../../core/protocol/messages.ts";
import type { Claim } from "../storage/storage.ts";
import type { WaitQueue } from "./wait-queue.ts";

type Holding = Omit<HoldCall, "policy" | "key">;

/** Callers' holds: units set apart until it is known how many were used. */
export class Holds {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;

  constructor(store: KeyStore, queue: WaitQueue) {
    this.#store = store;
    this.#queue = queue;
  }

  /** Sets units apart if every rule admits them. */
  hold(keyState: KeyState, call: Holding, nowMs: number): AnswerText | Promise<AnswerText> {
    const { cost, provisional } = call;
    const earlier = this.#earlier(keyState, call, nowMs);
    if (earlier !== undefined) return earlier;
    // A call on several keys respects who waits, as the others of its kind do.
    const isBehind = provisional !== undefined && this.#queue.waitersOf(keyState).length > 0;
    const placed = isBehind ? undefined : this.#place(keyState, call, nowMs);
    if (placed !== undefined) return placed;
    if (provisional?.waitMs === 0 || !isProvisionallyBlocked(keyState, cost, nowMs))
      return this.#deny(keyState, cost, nowMs);
    const waiting = { cost, ttlMs: call.ttlMs, ...(provisional && { waitMs: provisional.waitMs }) };
    return whenUncontended(this.#queue, keyState, waiting, nowMs, (atMs, isLast) => {
      // The same call made again may have been answered while this one waited.
      const placedNow = this.#earlier(keyState, call, atMs) ?? this.#place(keyState, call, atMs);
      const isOver = isLast || !isProvisionallyBlocked(keyState, cost, atMs);
      return placedNow ?? (isOver ? this.#deny(keyState, cost, atMs) : undefined);
    });
  }

  /** Ends a hold with what was used. Late or again, it is answered and changes nothing. */
  settle(keyState: KeyState, id: string, used: Cost, nowMs: number): AnswerText {
    const claim = holdIn(keyState, id);
    if (claim === undefined) return this.#settledBefore(keyState, id, nowMs);
    const accounts = keyState.ruleStates.map((ruleState) => settled(ruleState, claim, used, nowMs));
    const after = keyState.ruleStates.map(({ rule }, index) => ({
      rule,
      account: accounts[index] as Account,
    }));
    const answer = JSON.stringify({ rules: withoutTaking(after, nowMs, 0) } satisfies Decided);
    const isRepeatable = claim.isProvisional !== true || claim.idempotencyKey !== undefined;
    const remember = isRepeatable ? [{ ...endOf(id), answer }] : [];
    this.#store.commit(keyState, { accounts, end: [claim], remember }, nowMs);
    this.#queue.serve(keyState);
    return answer;
  }

  /** Ends a hold of which nothing was used, and the lease that was taken with it. */
  cancel(keyState: KeyState, id: string, nowMs: number): AnswerText {
    const claim = holdIn(keyState, id);
    if (claim === undefined) {
      const isCancelled = this.#store.earlier(keyState, endOf(id), nowMs) === CANCELLED;
      return isCancelled ? figures(keyState, nowMs) : MISSING;
    }
    const { lease = "", isProvisional, idempotencyKey } = claim;
    const leased = leaseIn(keyState, lease);
    const end = leased === undefined ? [claim] : [claim, leased];
    const accounts = keyState.ruleStates.map(({ rule, account }) =>
      end.reduce((current, { id: each }) => settle(rule, current, nowMs, each, 0), account),
    );
    // A call on several keys that was denied as a whole has not been answered yet: its repetition is decided anew.
    const forget = isProvisional === true && idempotencyKey !== undefined ? [idempotencyKey] : [];
    const remember = isProvisional === true ? [] : [{ ...endOf(id), answer: CANCELLED }];
    this.#store.commit(keyState, { accounts, end, forget, remember }, nowMs);
    this.#queue.serve(keyState);
    return figures(keyState, nowMs);
  }

  #settledBefore(keyState: KeyState, id: string, nowMs: number): AnswerText {
    const isExpired = keyState.expired.some((claim) => claim.id === id && claim.kind === "hold");
    const earlier = isExpired ? EXPIRED : this.#store.earlier(keyState, endOf(id), nowMs);
    if (earlier === undefined) return MISSING;
    return earlier === EXPIRED || earlier === CANCELLED ? figures(keyState, nowMs) : earlier;
  }

  #place(keyState: KeyState, call: Holding, nowMs: number): AnswerText | undefined {
    const { cost, ttlMs, idempotencyKey, provisional } = call;
    const hold = { id: randomId(), expiresAtMs: nowMs + ttlMs };
    const leaseTtlMs = keyState.policy.lease?.ttlMs ?? 0;
    const lease = { id: randomId(), expiresAtMs: nowMs + leaseTtlMs };
    const { admitted, accounts, rules } = decideTogether(keyState.ruleStates, nowMs, cost, { hold, lease });
    if (!admitted || accounts === undefined) return undefined;
    const leased = newLease(keyState, accounts, cost, { ...lease, ttlMs: leaseTtlMs });
    const rates = keyState.ruleStates.filter(({ rule }) => rule.lease === undefined);
    const claim: Claim = {
      ...hold,
      kind: "hold",
      units: Object.fromEntries(rates.map(({ rule }) => [rule.name, costOf(rule, cost)])),
      ttlMs,
      ...(leased && { lease: leased.id }),
      ...(provisional && { isProvisional: true }),
      ...(idempotencyKey !== undefined && { idempotencyKey }),
    };
    const answer = JSON.stringify({
      rules,
      hold: { id: hold.id, units: cost, expiresAfterMs: ttlMs },
      ...(leased && { lease: leasedOf(leased, nowMs) }),
    } satisfies Decided);
    const idempotent = idempotentOf(call);
    const remember = idempotent === undefined ? [] : [{ ...idempotent, answer }];
    this.#store.commit(keyState, { accounts, put: leased ? [claim, leased] : [claim], remember }, nowMs);
    return answer;
  }

  #deny(keyState: KeyState, cost: Cost, nowMs: number): AnswerText {
    const { admitted, accounts, rules } = decideTogether(keyState.ruleStates, nowMs, cost);
    // Admitted here: it stood behind others of its kind. Nothing is taken, and it may ask again in its order.
    if (!admitted && accounts !== undefined) this.#store.commit(keyState, { accounts }, nowMs);
    const isContended = admitted || isProvisionallyBlocked(keyState, cost, nowMs);
    return JSON.stringify({ rules, ...(isContended && { isContended }) } satisfies Decided);
  }

  /** The same call's answer from before; of a hold that is still there, how long it still lasts. */
  #earlier(keyState: KeyState, call: Holding, nowMs: number): AnswerText | undefined {
    const earlier = this.#store.earlier(keyState, idempotentOf(call), nowMs);
    const answer = earlier === undefined ? undefined : (JSON.parse(earlier) as Partial<Decided>);
    const claim = holdIn(keyState, answer?.hold?.id ?? "");
    if (answer?.hold === undefined || claim === undefined) return earlier;
    return JSON.stringify({ ...answer, hold: { ...answer.hold, expiresAfterMs: claim.expiresAtMs - nowMs } });
  }
}

function idempotentOf({ idempotencyKey, cost, provisional }: Holding): Idempotent | undefined {
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: provisional?.request ?? `hold of ${inWords(cost)}` };
}

/** How the end of a hold is remembered: under its own id. */
function endOf(id: string): Idempotent {
  return { idempotencyKey: id, request: HOLD_ENDED };
}

function figures({ ruleStates }: KeyState, nowMs: number): AnswerText {
  return JSON.stringify({ rules: withoutTaking(ruleStates, nowMs, 0) } satisfies Decided);
}

/** A rule's account after a hold: what is left out of `used` was used as it was held. */
function settled({ rule, account }: RuleState, claim: Claim, used: Cost, nowMs: number): Account {
  if (rule.lease !== undefined) return account;
  const held = Object.hasOwn(claim.units, rule.name) ? (claim.units[rule.name] ?? 0) : 0;
  const units = typeof used === "object" && !Object.hasOwn(used, rule.unit) ? held : costOf(rule, used);
  if (held > 0) return settle(rule, account, nowMs, claim.id, units);
  if (units === 0) return account;
  return { ...account, state: rule.algorithm.debit(rule.config, account.state, nowMs, units) };
}
