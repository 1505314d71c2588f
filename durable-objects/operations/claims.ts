import {
  admitsTogether,
  decideTogether,
  endLease as endLeaseIn,
  extend,
  settle,
  withoutTaking,
} from "../../core/accounts/account.ts";
import { type Account, capacityOf } from "../../core/accounts/hold.ts";
import { randomId, andThen } from "../../core/clock.ts";
import { type Cost, costOf, costText, publicName } from "../../core/policies/policy.ts";
import type { Answer, Decided, Lease, Missing } from "../../core/protocol/answers.ts";
import { ownHoldId } from "../../core/protocol/names.ts";
import { full, type Full } from "../../core/protocol/problems.ts";
import { countHeld, type LeaseCounter } from "../../core/stats/held-times.ts";
import {
  endOfHold,
  type Idempotent,
  remembering,
  ofGroupText,
  planFor,
  planOfKey,
} from "../keys/idempotency.ts";
import type { KeyState, RuleState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { exactly } from "../keys/versions.ts";
import { type Claim, USUAL_UNIT } from "../storage/records.ts";
import {
  type Acquiring,
  MISSING,
  type Operations,
  type Releasing,
  type Renewing,
  type Params,
} from "./operations.ts";
import type { Shedders } from "./shedders.ts";
import type { SlotOwner } from "./slots.ts";
import { behindOlder, isProvisionallyBlocked, peekTurn, takeTurn, whenUncontended } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

export function claimIn(keyState: KeyState, kind: Claim["kind"], id: string): Claim | undefined {
  const claim = keyState.claims.get(id);
  return claim?.kind === kind ? claim : undefined;
}

export function leaseLink({ link, id }: Claim): string {
  return link ?? id;
}

/** What a socket's lease says of it. The slots of a pool are not kept for a grace. */
export function socketOf({ policy }: KeyState, graceMs: number | undefined) {
  return { isSocket: true, ...(policy.pool === undefined && { graceMs }) };
}

/** A socket's lease is renewed each half of its time. If it is not, it lasts for its grace after that. */
function lastingMs({ ttlMs, graceMs = 0 }: Pick<Claim, "ttlMs" | "graceMs">): number {
  return Math.max(ttlMs, Math.ceil(ttlMs / 2) + graceMs);
}

/** Ends a lease where its key is: at once, or in `graceMs` so that a disconnected holder may return. */
export function endLease(operations: Operations, keyState: KeyState, call: Params<"release">, nowMs: number) {
  const { id, link, graceMs } = call;
  if (graceMs === undefined) return operations.release(keyState, call, nowMs);
  const renewed = operations.renew(keyState, { id, ttlMs: graceMs, from: link }, nowMs);
  return andThen(renewed, (lease) => !("missing" in lease));
}

/** Operations on holds (units set aside until the caller knows its usage) and on leases. */
export class Claims {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #shedders: Shedders;
  readonly #slots: SlotOwner;
  readonly #counter: LeaseCounter | undefined;

  constructor(
    store: KeyStore,
    queue: WaitQueue,
    shedders: Shedders,
    slots: SlotOwner,
    counter?: LeaseCounter,
  ) {
    this.#store = store;
    this.#queue = queue;
    this.#shedders = shedders;
    this.#slots = slots;
    this.#counter = counter;
  }

  readonly hold: Operations["hold"] = (keyState, call, nowMs) => {
    const { cost, provisional } = call;
    const earlier = this.#earlierHold(keyState, call, nowMs) ?? standing(keyState, "hold", call, nowMs);
    if (earlier !== undefined) return earlier;
    if (call.shed !== undefined) return { shed: call.shed };
    // The call does not pass callers that wait for units of rates.
    this.#queue.serve(keyState, false);
    if (keyState.policy.lease === undefined && this.#queue.aheadOf(keyState, call, nowMs).length > 0)
      return { rules: peekTurn(this.#queue, keyState, call, nowMs) };
    // A part of a call on several keys does not pass callers that wait for this key.
    const ahead = () =>
      call.group === undefined ? this.#queue.waitersOf(keyState) : this.#queue.aheadOf(keyState, call, nowMs);
    const isBehind = provisional !== undefined && ahead().length > 0;
    const placed = isBehind ? undefined : this.#place(keyState, call, nowMs);
    if (placed !== undefined) {
      this.#queue.admitted(keyState);
      return placed;
    }
    if (provisional?.waitMs === 0 || !isProvisionallyBlocked(keyState, call, nowMs))
      return this.#denyHold(keyState, call, nowMs);
    if (call.isBatched === true) return full("batch-waits", 0);
    const waiting = {
      cost,
      group: call.group,
      inForce: call.inForce,
      ttlMs: call.ttlMs,
      ...(provisional && { waitMs: provisional.waitMs }),
    };
    return whenUncontended(this.#queue, keyState, waiting, nowMs, (atMs, isLast) => {
      // A repetition of this call may have been answered while this one waited.
      const placedNow = this.#earlierHold(keyState, call, atMs) ?? this.#place(keyState, call, atMs);
      const isOver = isLast || !isProvisionallyBlocked(keyState, call, atMs);
      return placedNow ?? (isOver ? this.#denyHold(keyState, call, atMs) : undefined);
    });
  };

  readonly settle = (keyState: KeyState, { id, used, had = [] }: Params<"settle">, nowMs: number): Answer => {
    const claim = claimIn(keyState, "hold", id);
    if (claim === undefined) return this.#settledBefore(keyState, id, nowMs);
    const { unitNames = [USUAL_UNIT] } = claim;
    if (!had.every((unit) => unitNames.includes(unit))) return MISSING;
    const accounts = keyState.ruleStates.map((ruleState) => settled(ruleState, claim, used, nowMs));
    const settledRules = keyState
      .seenBy(claim)
      .map(({ rule }, index) => ({ rule, account: accounts[index] as Account }));
    const answer = { rules: withoutTaking(settledRules, nowMs, 0), ...planOfKey(keyState) };
    const isRepeatable = claim.isProvisional !== true || claim.idempotencyKey !== undefined;
    const remember = isRepeatable ? remembering(endOfHold(id), answer) : [];
    this.#store.commit(keyState, { accounts, end: [claim], remember }, nowMs);
    this.#queue.serve(keyState);
    return { ...answer, ...leaseBeside(keyState, claim.lease, nowMs) };
  };

  readonly cancel = (keyState: KeyState, { id }: Params<"cancel">, nowMs: number): Answer => {
    const claim = claimIn(keyState, "hold", id);
    if (claim === undefined) {
      const isCancelled = this.#store.answers.endOf(keyState, id, nowMs) === "cancelled";
      return isCancelled ? rulesNow(keyState, nowMs) : MISSING;
    }
    const { lease = "", isProvisional, idempotencyKey } = claim;
    const leased = claimIn(keyState, "lease", lease);
    const end = leased === undefined ? [claim] : [claim, leased];
    const accounts = keyState.accountsWithout(end, nowMs);
    // Nothing is charged, so a repetition is decided again.
    const forget = idempotencyKey === undefined ? [] : [idempotencyKey];
    const remember = isProvisional === true ? [] : remembering(endOfHold(id), "cancelled");
    this.#store.commit(keyState, { accounts, end, forget, remember }, nowMs);
    this.#queue.serve(keyState);
    return rulesNow(keyState, nowMs);
  };

  #settledBefore(keyState: KeyState, id: string, nowMs: number): Answer {
    const isExpired = keyState.expired.some((claim) => claim.id === id && claim.kind === "hold");
    const earlier = isExpired ? "expired" : this.#store.answers.endOf(keyState, id, nowMs);
    // Else a caller would believe that its usage counts.
    if (earlier === undefined || earlier === "cancelled") return MISSING;
    return typeof earlier === "string" ? rulesNow(keyState, nowMs) : earlier;
  }

  /** Takes the hold, and a lease if a rule leases; `undefined`: a rule denies the cost. */
  #place(keyState: KeyState, call: Params<"hold">, nowMs: number): Decided | Full | undefined {
    const { cost, ttlMs, idempotencyKey, provisional, caller } = call;
    const ruleAccounts = keyState.seenBy(call);
    if (!admitsTogether(ruleAccounts, nowMs, cost)) return undefined;
    const of = call.group === undefined ? undefined : { group: call.group };
    const hold = { id: call.id ?? ownHoldId(caller, randomId()), expiresAtMs: nowMs + ttlMs, ...of };
    const leaseTtlMs = keyState.policy.lease?.ttlMs ?? 0;
    const lease = { id: randomId(), expiresAtMs: nowMs + leaseTtlMs, ...of };
    const mark = provisional && { isProvisional: true };
    const taking = { hold: { ...hold, ...mark }, lease: { ...lease, ...mark } };
    const { accounts = [], rules } = decideTogether(ruleAccounts, nowMs, cost, taking);
    const by = caller === undefined ? {} : { caller };
    const leased = newLease(keyState, accounts, cost, { ...lease, ttlMs: leaseTtlMs, ...by }, nowMs);
    const rates = ruleAccounts.filter(({ rule }) => rule.lease === undefined);
    const unitNames = [...new Set(rates.map(({ rule }) => rule.unit))];
    const isUsual = provisional !== undefined || unitNames.every((unit) => unit === USUAL_UNIT);
    const claim: Claim = {
      ...hold,
      kind: "hold",
      units: Object.fromEntries(rates.map(({ rule }) => [rule.name, costOf(rule, cost)])),
      capacities: Object.fromEntries(rates.map(({ rule }) => [rule.name, capacityOf(rule)])),
      ttlMs,
      ...by,
      ...(!isUsual && { unitNames }),
      ...(leased && { lease: leased.id }),
      ...(provisional && { isProvisional: true }),
      ...(idempotencyKey !== undefined && { idempotencyKey }),
    };
    const answer: Decided = {
      rules,
      hold: { id: hold.id, units: cost, expiresAfterMs: ttlMs },
      ...(leased && { lease: leaseOf(leased, nowMs) }),
    };
    const remember = remembering(idempotentHold(call), { ...answer, ...planFor(keyState, call) });
    const put = leased ? [claim, leased] : [claim];
    const change = { accounts, put, remember, ...exactly(keyState, call) };
    return this.#store.commitWithin(keyState, change, nowMs) ?? answer;
  }

  #denyHold(keyState: KeyState, call: Params<"hold">, nowMs: number): Decided {
    const { admitted, accounts, rules } = decideTogether(keyState.seenBy(call), nowMs, call.cost);
    // A cost admitted here still waits behind other callers. It takes nothing and may be repeated.
    if (!admitted && accounts !== undefined)
      this.#store.commit(keyState, { accounts, ...exactly(keyState, call) }, nowMs);
    const isContended = admitted || isProvisionallyBlocked(keyState, call, nowMs);
    const denied = behindOlder(this.#queue, keyState, call, nowMs, rules);
    return { rules: denied, ...(isContended && { isContended }) };
  }

  /** The earlier answer to the same call, if its lease has not ended, with the remaining time of both. */
  #earlierHold(keyState: KeyState, call: Params<"hold">, nowMs: number): Answer | undefined {
    const earlier = this.#store.answers.earlier(keyState, idempotentHold(call), nowMs);
    if (earlier === undefined || "conflict" in earlier || earlier.hold === undefined) return earlier;
    const leased = leaseBeside(keyState, earlier.lease?.id, nowMs);
    // Its lease has ended: the call is made anew, as an acquire.
    if (earlier.lease !== undefined && leased.lease === undefined) return undefined;
    const claim = claimIn(keyState, "hold", earlier.hold.id);
    const held = claim && { hold: { ...earlier.hold, expiresAfterMs: claim.expiresAtMs - nowMs } };
    return { ...earlier, ...leased, ...held };
  }

  readonly acquire: Operations["acquire"] = (keyState, call, nowMs) => {
    const { idempotencyKey, shed } = call;
    if (call.waitMs > 0) this.#slots.settleOwed(keyState, call.mark, nowMs);
    // The same call may be waiting: then its turn answers both.
    const isShed = shed !== undefined && !this.#queue.hasWaiting(keyState, idempotencyKey);
    const answer = isShed
      ? (this.#earlierLease(keyState, call, nowMs) ?? { shed })
      : takeTurn(this.#queue, keyState, call, nowMs, {
          earlier: (atMs) =>
            this.#earlierLease(keyState, call, atMs) ?? standing(keyState, "lease", call, atMs),
          grant: (atMs, waitedMs = 0) => this.#grant(keyState, call, atMs, waitedMs),
          deny: (atMs) => this.#denyLease(keyState, call, atMs),
        });
    this.#shedders.note(keyState, nowMs);
    return answer;
  };

  readonly renew = (keyState: KeyState, call: Renewing, nowMs: number): Lease | Missing => {
    const { id, ttlMs, from, to } = call;
    const claim = claimIn(keyState, "lease", id);
    if (claim === undefined || isOthers(claim, from)) return MISSING;
    const kept = { ...claim, ...to };
    const expiresAtMs = nowMs + (ttlMs ?? lastingMs(kept));
    const renewed = { ...kept, expiresAtMs };
    const accounts = keyState.ruleStates.map(({ account }) => extend(account, id, expiresAtMs));
    this.#store.commit(keyState, { accounts, put: [renewed] }, nowMs);
    this.#queue.serve(keyState);
    return leaseOf(renewed, nowMs);
  };

  readonly release = (keyState: KeyState, call: Releasing, nowMs: number): boolean => {
    const { id, outcome = "ok" } = call;
    const claim = claimIn(keyState, "lease", id);
    if (claim === undefined && call.mayBeYoung === true) return this.#slots.release(keyState, id, nowMs);
    const isEnded = claim !== undefined && !isOthers(claim, call.link);
    if (isEnded) {
      const { grantedAtMs } = claim;
      const sinceMs = grantedAtMs === undefined ? undefined : nowMs - grantedAtMs;
      const { durationMs = sinceMs } = call;
      const accounts = keyState.ruleStates.map(({ rule, account }) =>
        endLeaseIn(rule, account, nowMs, id, { outcome, durationMs }),
      );
      this.#store.commit(keyState, { accounts, end: [claim] }, nowMs);
      this.#counter?.add("leases_released", [publicName(keyState.policy.name)]);
      countHeld(this.#counter, publicName(keyState.policy.name), grantedAtMs, nowMs);
      this.#queue.serve(keyState);
    }
    this.#shedders.note(keyState, nowMs);
    return isEnded;
  };

  /** The earlier answer to the same call, if its lease has not ended, with the lease's remaining time. */
  #earlierLease(keyState: KeyState, call: Acquiring, nowMs: number): Answer | undefined {
    const earlier = this.#store.answers.earlier(keyState, idempotentLease(call), nowMs);
    if (earlier === undefined || "conflict" in earlier || earlier.lease === undefined) return earlier;
    const claim = claimIn(keyState, "lease", earlier.lease.id);
    return claim && { ...earlier, lease: leaseOf(claim, nowMs) };
  }

  /** Takes the units if every rule admits them: concurrency rules lease them, rates use them. */
  #grant(keyState: KeyState, call: Acquiring, nowMs: number, waitedMs: number): Decided | Full | undefined {
    const { id, cost, ttlMs, confirmWithinMs = Infinity, isSocket, caller } = call;
    const of = call.group === undefined ? undefined : { group: call.group };
    const ofSocket = isSocket === true ? socketOf(keyState, call.graceMs) : {};
    const lastsMs = Math.min(lastingMs({ ttlMs, ...ofSocket }), confirmWithinMs);
    const lease = { id, expiresAtMs: nowMs + lastsMs, ...of };
    if (lease.expiresAtMs > keyState.endsByMs) return undefined;
    const ruleAccounts = keyState.seenBy(call);
    if (!admitsTogether(ruleAccounts, nowMs, cost)) return undefined;
    const { accounts = [], rules } = decideTogether(ruleAccounts, nowMs, cost, { lease });
    const by = { ...ofSocket, ...(caller !== undefined && { caller }) };
    const claim = newLease(keyState, accounts, cost, { ...lease, ttlMs, ...by }, nowMs);
    // A cost of 0 takes nothing and writes nothing.
    if (claim === undefined) return { rules, waitedMs };
    const answer = { rules, waitedMs, lease: leaseOf(claim, nowMs) };
    const remember = remembering(idempotentLease(call), { ...answer, ...planFor(keyState, call) });
    const change = { accounts, put: [claim], remember, ...exactly(keyState, call) };
    const over = this.#store.commitWithin(keyState, change, nowMs);
    if (over !== undefined) return over;
    this.#counter?.add("leases_granted", [publicName(keyState.policy.name)]);
    return answer;
  }

  /** A rule with `countDenied` counts the denial. */
  #denyLease(keyState: KeyState, call: Acquiring, nowMs: number): Decided {
    const { rules, accounts } = decideTogether(keyState.seenBy(call), nowMs, call.cost);
    if (accounts !== undefined) this.#store.commit(keyState, { accounts, ...exactly(keyState, call) }, nowMs);
    return { rules: behindOlder(this.#queue, keyState, call, nowMs, rules) };
  }
}

function leaseOf({ id, fencingToken = 0, expiresAtMs }: Claim, nowMs: number): Lease {
  return { id, fencingToken, expiresAfterMs: expiresAtMs - nowMs };
}

/** The lease that came with a hold, if it lasts. */
function leaseBeside(keyState: KeyState, id: string | undefined, nowMs: number): Pick<Decided, "lease"> {
  const claim = claimIn(keyState, "lease", id ?? "");
  return claim === undefined ? {} : { lease: leaseOf(claim, nowMs) };
}

/** The claim of a lease that `accounts` just admitted; `undefined`: the cost has no units to lease. */
function newLease(
  { ruleStates }: KeyState,
  accounts: readonly Account[],
  cost: Cost,
  lease: Pick<Claim, "id" | "ttlMs" | "expiresAtMs" | "isSocket" | "graceMs" | "caller" | "group">,
  nowMs: number,
): Claim | undefined {
  const units: Record<string, number> = {};
  let fencingToken = 0;
  for (const [index, { rule }] of ruleStates.entries()) {
    const { leasing } = rule.algorithm;
    if (leasing === undefined || costOf(rule, cost) === 0) continue;
    units[rule.name] = costOf(rule, cost);
    fencingToken = Math.max(fencingToken, leasing.fencingToken(accounts[index]?.state));
  }
  if (Object.keys(units).length === 0) return undefined;
  return { ...lease, kind: "lease", units, fencingToken, grantedAtMs: nowMs };
}

function idempotentHold(call: Params<"hold">): Idempotent | undefined {
  const { idempotencyKey, cost, provisional } = call;
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: provisional?.request ?? `hold of ${costText(cost)}${ofGroupText(call)}` };
}

function idempotentLease(call: Acquiring): Idempotent | undefined {
  const { idempotencyKey, cost, ttlMs } = call;
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: `lease of ${costText(cost)} for ${ttlMs} ms${ofGroupText(call)}` };
}

function isOthers(claim: Claim, link: string | undefined): boolean {
  return link !== undefined && leaseLink(claim) !== link;
}

/** Its message came again, to an object that has lost its memory since: what it was given is stored. */
function standing(
  keyState: KeyState,
  kind: Claim["kind"],
  { id, cost }: { readonly id?: string | undefined; readonly cost: Cost },
  nowMs: number,
): Decided | undefined {
  const claim = id === undefined ? undefined : claimIn(keyState, kind, id);
  if (claim === undefined) return undefined;
  const given = leaseOf(claim, nowMs);
  if (kind === "lease") return { ...rulesNow(keyState, nowMs), waitedMs: 0, lease: given };
  const { expiresAfterMs } = given;
  return {
    ...rulesNow(keyState, nowMs),
    hold: { id: claim.id, units: cost, expiresAfterMs },
    ...leaseBeside(keyState, claim.lease, nowMs),
  };
}

function rulesNow(keyState: KeyState, nowMs: number): Decided {
  return { rules: withoutTaking(keyState.seenBy(), nowMs, 0), ...planOfKey(keyState) };
}

/** A rule's account after a settle. A unit missing in `used` counts as it was held. Held slots were a rate's before. */
function settled({ rule, account }: RuleState, claim: Claim, used: Cost, nowMs: number): Account {
  if (rule.lease !== undefined) return settle(rule, account, nowMs, claim.id, 0);
  const held = Object.hasOwn(claim.units, rule.name) ? (claim.units[rule.name] ?? 0) : 0;
  const units = typeof used === "object" && !Object.hasOwn(used, rule.unit) ? held : costOf(rule, used);
  if (held > 0) return settle(rule, account, nowMs, claim.id, units);
  if (units === 0) return account;
  return { ...account, state: rule.algorithm.debit(rule.config, account.state, nowMs, units) };
}
