/** Claims: what the holds and the leases of callers have in common. */
import {
  type Account,
  endLease as endLeaseIn,
  extend,
  type Report,
  settle,
} from "../../core/accounts/account.ts";
import { admitsTogether, decideTogether, withoutTaking } from "../../core/accounts/joint-decision.ts";
import { randomId } from "../../core/clock.ts";
import { type Cost, costOf, costText, publicName } from "../../core/policies/policy.ts";
import type { Answer, Decided, Lease, Missing } from "../../core/protocol/answers.ts";
import type { HoldParams, LeaseReport, ReleaseParams } from "../../core/protocol/messages.ts";
import { ownHoldId } from "../../core/protocol/names.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { Full } from "../../core/protocol/problems.ts";
import type { Counter } from "../../core/stats/tally.ts";
import { endOfHold, type Idempotent } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { RuleState } from "../keys/rule-state.ts";
import type { Claim } from "../storage/records.ts";
import { isProvisionallyBlocked, whenUncontended } from "./denials.ts";
import type { Acquiring, LinkChange, Operations, Releasing } from "./operations.ts";
import type { Turns } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** The answer when there is no such hold or lease, or no longer. */
export const MISSING: Missing = { missing: true };

/** The lease with this id; `undefined`: the key has none. */
export function leaseIn(keyState: KeyState, id: string): Claim | undefined {
  const claim = keyState.claims.get(id);
  return claim?.kind === "lease" ? claim : undefined;
}

/** The link to the holder that keeps a lease, until another call takes the lease over. */
export function linkOf({ link, id }: Claim): string {
  return link ?? id;
}

/** The hold with this id; `undefined`: the key has none. */
export function holdIn(keyState: KeyState, id: string): Claim | undefined {
  const claim = keyState.claims.get(id);
  return claim?.kind === "hold" ? claim : undefined;
}

/** A lease as callers are told of it, without the claim's other fields. */
export function leasedOf({ id, fencingToken = 0, expiresAtMs }: Claim, nowMs: number): Lease {
  return { id, fencingToken, expiresAfterMs: expiresAtMs - nowMs };
}

/**
 * The claim of a lease that was just admitted.
 *
 * @param accounts the accounts after the admission at `nowMs`, which have its fencing token
 * @returns `undefined` when the cost has no units of a rule that leases
 */
export function newLease(
  { ruleStates }: KeyState,
  accounts: readonly Account[],
  cost: Cost,
  lease: Pick<Claim, "id" | "ttlMs" | "expiresAtMs" | "isSocket" | "caller">,
  nowMs: number,
): Claim | undefined {
  const units: Record<string, number> = {};
  let fencingToken = 0;
  let learns = false;
  for (const [index, { rule }] of ruleStates.entries()) {
    const { leasing } = rule.algorithm;
    if (leasing === undefined || costOf(rule, cost) === 0) continue;
    units[rule.name] = costOf(rule, cost);
    learns ||= leasing.released !== undefined;
    fencingToken = Math.max(fencingToken, leasing.fencingToken(accounts[index]?.state));
  }
  if (Object.keys(units).length === 0) return undefined;
  return { ...lease, kind: "lease", units, fencingToken, ...(learns && { grantedAtMs: nowMs }) };
}

/** What is known of the call for which a lease was granted, when its holder ends it. */
export function reportOf({ grantedAtMs }: Claim, given: LeaseReport, nowMs: number): Report {
  const measuredMs = grantedAtMs === undefined ? undefined : nowMs - grantedAtMs;
  return { outcome: given.outcome ?? "ok", durationMs: given.durationMs ?? measuredMs };
}

/** Ends a lease where its key is: at once, or in `graceMs` when its link has ended and its holder may come back. */
export function endLease(
  operations: Operations,
  keyState: KeyState,
  { id, outcome, durationMs, link, graceMs }: ReleaseParams,
  nowMs: number,
): MaybePromise<boolean> {
  if (graceMs === undefined) return operations.release(keyState, id, nowMs, { outcome, durationMs, link });
  const left = operations.renew(keyState, id, graceMs, nowMs, { from: link });
  return left instanceof Promise ? left.then(isThere) : isThere(left);
}

function isThere(lease: Lease | Missing): boolean {
  return !("missing" in lease);
}

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
    const idempotent = idempotentHold(call);
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
    const earlier = this.#store.earlier(keyState, idempotentHold(call), nowMs);
    if (earlier === undefined || "conflict" in earlier || earlier.hold === undefined) return earlier;
    const claim = holdIn(keyState, earlier.hold.id);
    if (claim === undefined) return earlier;
    return { ...earlier, hold: { ...earlier.hold, expiresAfterMs: claim.expiresAtMs - nowMs } };
  }
}

function idempotentHold({ idempotencyKey, cost, provisional }: HoldParams): Idempotent | undefined {
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

/** Callers' leases: acquire, look, renew and release. */
export class Leases {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #turns: Turns;
  readonly #counter: Pick<Counter, "add"> | undefined;

  /** @param counter absent: nobody counts leases */
  constructor(store: KeyStore, queue: WaitQueue, turns: Turns, counter?: Pick<Counter, "add">) {
    this.#counter = counter;
    this.#store = store;
    this.#queue = queue;
    this.#turns = turns;
  }

  /** Grants a lease at once or when the caller's turn comes, or denies it. Callers are served in order of arrival. */
  acquire(keyState: KeyState, call: Acquiring, nowMs: number): MaybePromise<Answer> {
    const { cost, ttlMs, waitMs, signal, caller, idempotencyKey, priority, shed } = call;
    const turn = { cost, ttlMs, waitMs, signal, caller, idempotencyKey, priority };
    // The same call may be waiting: then both are answered when its turn comes.
    const isShed = shed !== undefined && !this.#queue.hasWaiting(keyState, idempotencyKey);
    if (isShed) return this.#earlier(keyState, call, nowMs) ?? { shed };
    return this.#turns.take(keyState, turn, nowMs, {
      earlier: (atMs) => this.#earlier(keyState, call, atMs),
      grant: (atMs, waitedMs = 0) => this.#grant(keyState, call, atMs, waitedMs),
      deny: (atMs) => this.#deny(keyState, call, atMs),
    });
  }

  /** Moves a lease's end to `ttlMs` from now; `undefined`: the lifetime that the acquire asked for. */
  renew(
    keyState: KeyState,
    id: string,
    ttlMs: number | undefined,
    nowMs: number,
    { from, to }: LinkChange = {},
  ): Lease | Missing {
    const claim = leaseIn(keyState, id);
    if (claim === undefined || isOthers(claim, from)) return MISSING;
    const expiresAtMs = nowMs + (ttlMs ?? claim.ttlMs);
    const renewed = { ...claim, expiresAtMs, ...(to !== undefined && { link: to }) };
    const accounts = keyState.ruleStates.map(({ account }) => extend(account, id, renewed.expiresAtMs));
    this.#store.commit(keyState, { accounts, put: [renewed] }, nowMs);
    this.#queue.serve(keyState);
    return leasedOf(renewed, nowMs);
  }

  /** Ends a lease, and serves the callers that wait. Returns whether there was such a lease. */
  release(keyState: KeyState, id: string, nowMs: number, given: Releasing = {}): boolean {
    const claim = leaseIn(keyState, id);
    if (claim === undefined || isOthers(claim, given.link)) return false;
    const report = reportOf(claim, given, nowMs);
    const accounts = keyState.ruleStates.map(({ rule, account }) =>
      endLeaseIn(rule, account, nowMs, id, report),
    );
    this.#store.commit(keyState, { accounts, end: [claim] }, nowMs);
    this.#counter?.add("leases_released", [publicName(keyState.policy.name)]);
    this.#queue.serve(keyState);
    return true;
  }

  /**
   * The earlier answer to the same call, with how long its lease still lasts. When the lease has ended, the call is
   * decided anew: another caller may have its units.
   */
  #earlier(keyState: KeyState, call: Acquiring, nowMs: number): Answer | undefined {
    const earlier = this.#store.earlier(keyState, idempotentLease(call), nowMs);
    if (earlier === undefined || "conflict" in earlier || earlier.lease === undefined) return earlier;
    const claim = leaseIn(keyState, earlier.lease.id);
    return claim && { ...earlier, lease: leasedOf(claim, nowMs) };
  }

  /** Takes the units if every rule admits them: a concurrency rule's units are leased, a rate's are used. */
  #grant(keyState: KeyState, call: Acquiring, nowMs: number, waitedMs: number): Decided | Full | undefined {
    const { id, cost, ttlMs, confirmWithinMs = Infinity, isSocket, caller } = call;
    const lease = { id, expiresAtMs: nowMs + Math.min(ttlMs, confirmWithinMs) };
    if (lease.expiresAtMs > keyState.endsByMs) return undefined;
    const ruleAccounts = keyState.seenBy(call.priority);
    if (!admitsTogether(ruleAccounts, nowMs, cost)) return undefined;
    const { accounts = [], rules } = decideTogether(ruleAccounts, nowMs, cost, { lease });
    const by = { ...(isSocket && { isSocket }), ...(caller !== undefined && { caller }) };
    const claim = newLease(keyState, accounts, cost, { ...lease, ttlMs, ...by }, nowMs);
    // A cost of 0 only looks: it takes nothing, and there is nothing to write.
    if (claim === undefined) return { rules, waitedMs };
    const answer = { rules, waitedMs, lease: leasedOf(claim, nowMs) };
    const idempotent = idempotentLease(call);
    const remember = idempotent === undefined ? [] : [{ ...idempotent, answer }];
    const full = this.#store.commitWithin(keyState, { accounts, put: [claim], remember }, nowMs);
    if (full !== undefined) return full;
    this.#counter?.add("leases_granted", [publicName(keyState.policy.name)]);
    return answer;
  }

  /** A denial. A rule with `countDenied` counts it. */
  #deny(keyState: KeyState, { cost, priority }: Acquiring, nowMs: number): Decided {
    const { rules, accounts } = decideTogether(keyState.seenBy(priority), nowMs, cost);
    if (accounts !== undefined) this.#store.commit(keyState, { accounts }, nowMs);
    return { rules };
  }
}

/** Whether a lease is not this link's, or no longer. */
function isOthers(claim: Claim, link: string | undefined): boolean {
  return link !== undefined && linkOf(claim) !== link;
}

function idempotentLease({ idempotencyKey, cost, ttlMs }: Acquiring): Idempotent | undefined {
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: `lease of ${costText(cost)} for ${ttlMs} ms` };
}
