import { MAX_UNITS } from "../../core/algorithms/algorithm.ts";
import { randomId } from "../../core/clock.ts";
import { type Cost, costOf, costText } from "../../core/policies/policy.ts";
import { planIn } from "../../core/policies/seen-policy.ts";
import type { Answer, Decided, Lease, Missing, Peeked, RuleDecision } from "../../core/protocol/answers.ts";
import type { GiveBackMessage, SeenBy } from "../../core/protocol/calls.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { conflictWith, planOfKey } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { policyFor } from "../keys/versions.ts";
import { refundText } from "../operations/limits.ts";
import type { LocalOperations } from "../operations/local-operations.ts";
import {
  type Acquiring,
  MISSING,
  type Operations,
  type Params,
  type Releasing,
  type Renewing,
} from "../operations/operations.ts";
import { PooledLeases } from "./pooled-leases.ts";
import { isAllowed, PooledLimits } from "./pooled-limits.ts";
import type { PoolAnswer, PoolCall } from "./protocol.ts";
import { PoolFailure, PoolSession, type PoolSessionHost } from "./session.ts";
import { costsOf, freeUnits, leaseWaitMs, pooledRules } from "./share-algorithm.ts";

export interface PooledHost extends PoolSessionHost {
  readonly store: KeyStore;
  readonly local: LocalOperations;
  /** Opens the region's own state of the key while it is alone (`onFailure = "local"`). */
  openAlone(keyState: KeyState): [keyState: KeyState, nowMs: number];
}

type PoolParams = Omit<PoolCall, "cost" | "rules" | "holding"> & { readonly cost: Cost };

/** In `used` of a `settle` call: as many units as were held. */
const AS_HELD = -1;
const OVER_ANY_LIMIT = MAX_UNITS + 1;
const NOTHING = { outstanding: 0, holds: 0, leases: 0, reclaimed: 0, queueLength: 0 };

/**
 * The operations of an object that is a region of a pool. The module is loaded at the first call to such a
 * key.
 *
 * Costs of rates are decided from the region's share (pooled-limits.ts), leases in the region's slots
 * (pooled-leases.ts). The pool itself decides and remembers calls that can be repeated or ended in any
 * region: holds, refunds, calls with an idempotency key. If it does not answer, a policy with `onFailure =
 * "local"` continues with the region's own part of the limit. Otherwise the call fails, and the worker
 * applies the policy.
 */
export class PooledOperations implements Operations {
  readonly #host: PooledHost;
  readonly #session: PoolSession;
  readonly #limits: PooledLimits;
  readonly #leases: PooledLeases;

  constructor(host: PooledHost) {
    this.#host = host;
    this.#session = new PoolSession(host);
    this.#limits = new PooledLimits(this.#session, host.store, host.local.reservations);
    this.#leases = new PooledLeases(this.#session, host.queue);
  }

  limit(keyState: KeyState, limiting: Params<"limit">): Promise<Answer> {
    const { cost, idempotencyKey, attempt, inForce } = limiting;
    const isPlain = idempotencyKey === undefined && costsOf(keyState, cost).some((units) => units > 0);
    const text = attempt?.request ?? `limit of ${costText(cost)}`;
    const request = idempotencyKey === undefined ? {} : { request: text };
    const round = attempt === undefined ? {} : { round: attempt.round };
    // The pool knows no override that blocks. It denies this cost, and stores that.
    const taken = attempt?.isBlocked === true ? OVER_ANY_LIMIT : cost;
    const { local } = this.#host;
    const ask = () =>
      isPlain
        ? this.#limits.limit(keyState, cost)
        : this.#decide(
            keyState,
            { op: "limit", cost: taken, ...request, ...round },
            named(idempotencyKey),
            policyFor(keyState.chosen, { inForce }),
          );
    const call = { cost, idempotencyKey, attempt, inForce };
    return this.#orAlone(keyState, ask, (own, nowMs) => local.limit(own, call, nowMs));
  }

  refund(keyState: KeyState, refunding: Params<"refund">): Promise<Answer> {
    const { units, idempotencyKey, charge } = refunding;
    const isNamed = charge === undefined ? {} : { isNamed: true as const };
    const request = refundText(units, charge);
    const names = [...named(charge), ...named(idempotencyKey)];
    const { whole } = keyState.chosen;
    const each = charge === undefined ? [] : [...(whole.plans ?? [])];
    const plans = Object.fromEntries(each.map(([plan, policy]) => [plan, pooledRules(policy)]));
    const call = {
      op: "refund",
      cost: units,
      request,
      ...isNamed,
      ...(each.length > 0 && { plans }),
    } as const;
    const ask = () => this.#decide(keyState, call, names);
    return this.#orAlone(keyState, ask, (alone, nowMs) => {
      const answer = this.#host.local.refund(alone, refunding, nowMs);
      // The pool may know the charge, and does not answer.
      if ("missing" in answer) throw new PoolFailure("the charge is not known here");
      return answer;
    });
  }

  reserve(keyState: KeyState, call: Params<"reserve">): Promise<Answer> {
    const { local } = this.#host;
    const ask = () => this.#limits.reserve(keyState, call);
    // Nothing is reserved while the region is alone: every answer needs `source: "fallback"`.
    return this.#orAlone(keyState, ask, (own, nowMs) => local.limit(own, { cost: call.cost }, nowMs));
  }

  giveBack(keyState: KeyState, returned: GiveBackMessage, nowMs: number): void {
    this.#host.local.giveBack(keyState, returned, nowMs);
    this.#limits.gaveBack(keyState);
  }

  hold(keyState: KeyState, call: Params<"hold">): Promise<Answer> {
    const { lease, rules } = keyState.policy;
    const alone = (own: KeyState, nowMs: number) => this.#host.local.hold(own, call, nowMs);
    // Slots are held for as long as the lease; units of rates beside them for as long as the hold.
    const hasRates = rules.some((rule) => rule.lease === undefined);
    const ttlMs = Math.max(hasRates ? call.ttlMs : 0, lease?.ttlMs ?? 0);
    const ask = () =>
      lease === undefined
        ? this.#holdInPool(keyState, call)
        : this.#leases.withSlots(keyState, { ...call, ttlMs }, (nowMs) => alone(keyState, nowMs));
    return this.#orAlone(keyState, ask, alone);
  }

  #holdInPool(keyState: KeyState, call: Params<"hold">): Promise<Answer> {
    const { id = randomId(), cost, ttlMs, idempotencyKey, provisional } = call;
    const text = provisional?.request ?? `hold of ${costText(cost)}`;
    const request = idempotencyKey === undefined ? {} : { request: text };
    const names = [...held(id), ...named(idempotencyKey)];
    return this.#decide(keyState, { op: "hold", cost, id, ttlMs, ...request }, names);
  }

  async settle(keyState: KeyState, { id, used, had }: Params<"settle">): Promise<Answer> {
    const [own, nowMs] = this.#ownerOf(keyState, id);
    if (own !== undefined) return this.#host.local.settle(own, { id, used, ...(had && { had }) }, nowMs);
    // The pool does not know with which units a hold was taken.
    if (had !== undefined) return MISSING;
    const units = keyState.ruleStates.map(({ rule }) => {
      const isLeftOut = typeof used === "object" && !Object.hasOwn(used, rule.unit);
      return isLeftOut ? AS_HELD : costOf(rule, used);
    });
    return await this.#decide(keyState, { op: "settle", cost: 0, id, used: units }, held(id));
  }

  async cancel(keyState: KeyState, { id }: Params<"cancel">): Promise<Answer> {
    const [own, nowMs] = this.#ownerOf(keyState, id);
    if (own === undefined) return await this.#decide(keyState, { op: "settle", cost: 0, id }, held(id));
    await this.#leases.adopt(keyState);
    const answer = this.#host.local.cancel(own, { id }, nowMs);
    this.#leases.serve(keyState);
    return answer;
  }

  acquire(keyState: KeyState, call: Acquiring): Promise<Answer> {
    const acquire = (own: KeyState, nowMs: number) => this.#host.local.acquire(own, call, nowMs);
    const ask = () =>
      this.#leases.withSlots(keyState, call, (nowMs, rules) => {
        const answer = acquire(keyState, nowMs);
        if (answer instanceof Promise || rules === undefined) return answer;
        return withRulesOfPool(answer, sooner(keyState, rules, call.cost, nowMs));
      });
    return this.#orAlone(keyState, ask, acquire);
  }

  async renew(keyState: KeyState, call: Renewing): Promise<Lease | Missing> {
    const { id } = call;
    const [own, nowMs] = this.#ownerOf(keyState, id);
    const claim = own?.claims.get(id);
    if (own === undefined || claim === undefined) return MISSING;
    if (own !== keyState) return this.#host.local.renew(own, call, nowMs);
    const leaseMs = call.ttlMs ?? claim.ttlMs;
    return await this.#leases.withSlots(keyState, { cost: 0, ttlMs: leaseMs }, (atMs) => {
      const isShort = keyState.ruleStates.some((ruleState) => freeUnits(ruleState) < 0);
      if (atMs + leaseMs > keyState.endsByMs || isShort)
        throw new PoolFailure("the pool does not keep the slot for so long");
      return this.#host.local.renew(keyState, call, atMs);
    });
  }

  async release(keyState: KeyState, call: Releasing): Promise<boolean> {
    await this.#leases.adopt(keyState);
    const [own, nowMs] = this.#ownerOf(keyState, call.id);
    const isReleased = own !== undefined && this.#host.local.release(own, call, nowMs);
    this.#leases.serve(keyState);
    return isReleased;
  }

  peek(keyState: KeyState, _?: number, { inForce }: Pick<SeenBy, "inForce"> = {}): Promise<Peeked> {
    const policy = policyFor(keyState.chosen, { inForce });
    const nowMs = this.#host.toNow(keyState);
    const [first] = this.#host.queue.waitersOf(keyState);
    const longestWaitMs = first === undefined ? 0 : nowMs - first.sinceMs;
    const read = ({ rules = [], report = NOTHING }: PoolAnswer): Peeked => ({
      rules,
      source: "pool",
      ...report,
      longestWaitMs,
      holders: keyState.holders.countAt(nowMs),
      ...planIn(policy),
    });
    return this.#askPool(keyState, { op: "peek", cost: 1 }, [], read, policy);
  }

  /** Resets the key here and in the pool. Units that holders may be spending stay held in the pool. */
  async reset(keyState: KeyState): Promise<void> {
    const { policy } = keyState;
    const resetPool = () => this.#askPool(keyState, { op: "reset", cost: 0 }, [], () => undefined);
    if (policy.onFailure === "local") {
      const [alone, nowMs] = this.#host.openAlone(keyState);
      this.#host.store.reset(alone, nowMs);
      this.#host.store.release(alone);
    }
    // Without leases there is no stored state here to end.
    if (policy.lease === undefined) return await resetPool();
    await this.#leases.adopt(keyState);
    this.#host.store.endClaims(keyState, this.#host.toNow(keyState));
    await resetPool();
    this.#host.queue.serve(keyState);
    this.#leases.serve(keyState);
  }

  /** Of callers that wait in this region. */
  endWaits(keyState: KeyState, nowMs: number): void {
    const { queue, store } = this.#host;
    queue.endWaits(keyState, nowMs);
    if (keyState.policy.onFailure !== "local") return;
    const [alone, atMs] = this.#host.openAlone(keyState);
    queue.endWaits(alone, atMs);
    store.release(alone);
  }

  #decide(
    keyState: KeyState,
    params: PoolParams,
    names: readonly string[],
    policy = keyState.policy,
  ): Promise<Answer> {
    const planned = { ...params, ...(params.request !== undefined && planOfKey({ policy })) };
    return this.#askPool(keyState, planned, names, (answer) => answerOf(answer, params.cost), policy);
  }

  #askPool<Result>(
    keyState: KeyState,
    { cost, ...params }: PoolParams,
    names: readonly string[],
    read: (answer: PoolAnswer) => Result,
    policy = keyState.policy,
  ): Promise<Awaited<Result>> {
    const share = this.#session.shareOf(keyState);
    share.denials.forget();
    // A reset always includes the region's message, which returns all spare units.
    const isReset = params.op === "reset";
    // A look by another plan asks for no units, since those would be spent under the plan in force.
    const isOwn = policy === keyState.policy;
    const request = isOwn && (share.isHeld || isReset) ? { isGivingBack: isReset } : undefined;
    const call = { ...params, cost: costsOf(keyState, cost), rules: pooledRules(policy) };
    return this.#session.send(keyState, call, request, read, names);
  }

  /** `undefined`: the pool has the claim. It has all holds of rates but those made while alone. */
  #ownerOf(keyState: KeyState, id: string): [owner: KeyState | undefined, nowMs: number] {
    const nowMs = this.#host.toNow(keyState);
    if (keyState.claims.has(id)) return [keyState, nowMs];
    if (keyState.policy.onFailure === "local") {
      const [alone, atMs] = this.#host.openAlone(keyState);
      if (alone.claims.has(id)) return [alone, atMs];
      this.#host.store.release(alone);
    }
    return [keyState.policy.lease === undefined ? undefined : keyState, nowMs];
  }

  /** Calls the pool; without an answer, and with `onFailure = "local"`, the region decides alone. */
  async #orAlone(
    keyState: KeyState,
    ask: () => Promise<Answer>,
    alone: (keyState: KeyState, nowMs: number) => MaybePromise<Answer>,
  ): Promise<Answer> {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof PoolFailure) || keyState.policy.onFailure !== "local") throw error;
      const [own, nowMs] = this.#host.openAlone(keyState);
      try {
        const answer = await alone(own, nowMs);
        return "rules" in answer ? { ...answer, source: "fallback" } : answer;
      } finally {
        this.#host.store.release(own);
      }
    }
  }
}

/** The prefixes separate the kinds: an idempotency key may equal a hold's id. Stored: never change them. */
function named(idempotencyKey: string | undefined): string[] {
  return idempotencyKey === undefined ? [] : [`call:${idempotencyKey}`];
}

function held(id: string): string[] {
  return [`hold:${id}`];
}

function answerOf(answer: PoolAnswer, units: Cost): Answer {
  const { rules = [], missing, conflict, full, hold, deniedIn, plan } = answer;
  if (missing === true) return MISSING;
  if (full !== undefined) return { full };
  if (conflict !== undefined) return conflictWith(conflict.request);
  const decided: Decided = { rules, source: "pool", ...(plan !== undefined && { plan }) };
  if (hold === undefined) return { ...decided, ...(deniedIn && { deniedIn }) };
  return { ...decided, hold: { id: hold.id, units, expiresAfterMs: hold.expiresAfterMs } };
}

/** The pool's decisions, with a shorter wait where leases of this region end before the pool has slots. */
function sooner(keyState: KeyState, rules: readonly RuleDecision[], cost: Cost, nowMs: number) {
  return rules.map((rule, index): RuleDecision => {
    const ruleState = keyState.ruleStates[index];
    if (rule.success || rule.retryAfterMs === null || ruleState?.rule.lease === undefined) return rule;
    const hereMs = leaseWaitMs(ruleState, costOf(ruleState.rule, cost), nowMs) ?? Infinity;
    return { ...rule, retryAfterMs: Math.min(rule.retryAfterMs, hereMs) };
  });
}

/** The answer with the pool's decisions, unless the pool and the region decided differently. */
function withRulesOfPool(answer: Answer, rules: readonly RuleDecision[]): Answer {
  if (!("rules" in answer) || isAllowed(answer.rules) !== isAllowed(rules)) return answer;
  return { ...answer, rules, source: "pool" };
}
