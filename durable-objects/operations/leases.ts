import { endLease, extend } from "../../core/accounts/account.ts";
import { admitsTogether, decideTogether } from "../../core/accounts/joint-decision.ts";
import { publicName } from "../../core/policies/policy.ts";
import type { Answer, Decided, Lease, Missing } from "../../core/protocol/answers.ts";
import { costText } from "../../core/protocol/cost.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { Full } from "../../core/protocol/problems.ts";
import type { Counter } from "../../core/stats/tally.ts";
import type { Idempotent } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { Claim } from "../storage/records.ts";
import { leasedOf, leaseIn, linkOf, MISSING, newLease, reportOf } from "./claims.ts";
import type { Acquiring, LinkChange, Releasing } from "./operations.ts";
import type { Turns } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

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
      endLease(rule, account, nowMs, id, report),
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
    const earlier = this.#store.earlier(keyState, idempotentOf(call), nowMs);
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
    const idempotent = idempotentOf(call);
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

function idempotentOf({ idempotencyKey, cost, ttlMs }: Acquiring): Idempotent | undefined {
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: `lease of ${costText(cost)} for ${ttlMs} ms` };
}
