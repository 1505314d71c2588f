/**
 * The object of a region, for policies with a pool. Loaded when the first is asked for.
 *
 * Costs of rates are decided from the region's share (regional-limits.ts), leases are given in its slots
 * (regional-leases.ts), and what has to be known everywhere (holds, refunds, idempotency keys) is the pool's (regional-claims.ts).
 * When the pool does not answer, a policy with `onFailure = "local"` goes on with a part of its limit that is this region's
 * own; else the call fails, and the worker answers as the policy says.
 */
import type { Clerks } from "../call-router.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Acquiring } from "../operations/leases.ts";
import { MISSING } from "../operations/claims.ts";
import { costOf } from "../../core/accounts/joint-decision.ts";
import type {
  AnswerText,
  Cost,
  Decided,
  HoldCall,
  Maybe,
  Peeked,
  ReserveCall,
  RuleDecision,
} from "../../core/protocol/messages.ts";
import { PoolSession, PoolFailure, type PoolSessionHost } from "./session.ts";
import { PooledClaims } from "./pooled-claims.ts";
import { PooledLeases } from "./pooled-leases.ts";
import { PooledLimits } from "./pooled-limits.ts";
import { costsOf, freeUnits, leaseWaitMs } from "./share-units.ts";

/** What it needs of its object. */
export interface PooledHost extends Clerks, PoolSessionHost {
  /** The same key as the region has it alone. */
  openAlone(keyState: KeyState): [keyState: KeyState, nowMs: number];
}

export class PooledOperations {
  readonly #host: PooledHost;
  readonly #session: PoolSession;
  readonly #limits: PooledLimits;
  readonly #leases: PooledLeases;
  readonly #claims: PooledClaims;

  constructor(host: PooledHost) {
    this.#host = host;
    this.#session = new PoolSession(host);
    this.#limits = new PooledLimits(this.#session, host.store, host.reservations);
    this.#leases = new PooledLeases(this.#session, host.queue);
    this.#claims = new PooledClaims(this.#session);
  }

  limit(keyState: KeyState, cost: Cost, idempotencyKey: string | undefined): Promise<AnswerText> {
    const isPlain = idempotencyKey === undefined && costsOf(keyState, cost).some((units) => units > 0);
    const ask = async () =>
      JSON.stringify(
        await (isPlain
          ? this.#limits.limit(keyState, cost)
          : this.#claims.limit(keyState, cost, idempotencyKey)),
      );
    return this.#orAlone(keyState, ask, (alone, nowMs) =>
      this.#host.limits.limit(alone, cost, idempotencyKey, nowMs),
    );
  }

  reserve(keyState: KeyState, call: Omit<ReserveCall, "policy" | "key">): Promise<AnswerText> {
    const ask = () => this.#limits.reserve(keyState, call);
    // Alone nothing is reserved: every answer is to say that it is one.
    return this.#orAlone(keyState, ask, (alone, nowMs) =>
      this.#host.limits.limit(alone, call.cost, undefined, nowMs),
    );
  }

  /** Units have come home from an isolate. */
  gaveBack(keyState: KeyState): void {
    this.#limits.gaveBack(keyState);
  }

  refund(keyState: KeyState, units: Cost, idempotencyKey: string): Promise<AnswerText> {
    const ask = async () => JSON.stringify(await this.#claims.refund(keyState, units, idempotencyKey));
    return this.#orAlone(keyState, ask, (alone, nowMs) =>
      this.#host.limits.refund(alone, units, idempotencyKey, nowMs),
    );
  }

  hold(keyState: KeyState, call: Omit<HoldCall, "policy" | "key">): Promise<AnswerText> {
    const { lease } = keyState.policy;
    const alone = (own: KeyState, nowMs: number) => this.#host.holds.hold(own, call, nowMs);
    // Slots are held for as long as the lease; units of rates beside them for as long as the hold.
    const hasRates = keyState.policy.rules.some((rule) => rule.lease === undefined);
    const ttlMs = Math.max(hasRates ? call.ttlMs : 0, lease?.ttlMs ?? 0);
    const ask = async () =>
      lease === undefined
        ? JSON.stringify(await this.#claims.hold(keyState, call))
        : await this.#leases.withSlots(keyState, call.cost, ttlMs, (nowMs) => alone(keyState, nowMs));
    return this.#orAlone(keyState, ask, alone);
  }

  async settle(keyState: KeyState, id: string, used: Cost): Promise<AnswerText> {
    const [own, nowMs] = this.#ownerOf(keyState, id);
    if (own !== undefined) return this.#host.holds.settle(own, id, used, nowMs);
    return JSON.stringify(await this.#claims.settle(keyState, id, used));
  }

  async cancel(keyState: KeyState, id: string): Promise<AnswerText> {
    const [own, nowMs] = this.#ownerOf(keyState, id);
    if (own === undefined) return JSON.stringify(await this.#claims.cancel(keyState, id));
    await this.#leases.adopt(keyState);
    const answer = this.#host.holds.cancel(own, id, nowMs);
    this.#leases.serve(keyState);
    return answer;
  }

  acquire(keyState: KeyState, call: Acquiring): Promise<AnswerText> {
    const acquire = (own: KeyState, nowMs: number) => this.#host.leases.acquire(own, call, nowMs);
    const ask = () =>
      this.#leases.withSlots(keyState, call.cost, call.ttlMs, (nowMs, rules) => {
        const answer = acquire(keyState, nowMs);
        if (typeof answer !== "string" || rules === undefined) return answer;
        return withPoolsFigures(answer, sooner(keyState, rules, call.cost, nowMs));
      });
    return this.#orAlone(keyState, ask, acquire);
  }

  async renew(keyState: KeyState, id: string, ttlMs: number | undefined): Promise<AnswerText> {
    const [own, nowMs] = this.#ownerOf(keyState, id);
    if (own?.claims.has(id) !== true) return MISSING;
    if (own !== keyState) return this.#host.leases.renew(own, id, ttlMs, nowMs);
    const askedMs = ttlMs ?? keyState.claims.get(id)?.ttlMs ?? 0;
    return await this.#leases.withSlots(keyState, 0, askedMs, (atMs) => {
      if (
        atMs + askedMs > keyState.endsByMs ||
        keyState.ruleStates.some((ruleState) => freeUnits(ruleState) < 0)
      )
        throw new PoolFailure("the pool does not keep the slot for so long");
      return this.#host.leases.renew(keyState, id, ttlMs, atMs);
    });
  }

  async release(keyState: KeyState, id: string): Promise<boolean> {
    await this.#leases.adopt(keyState);
    const [own, nowMs] = this.#ownerOf(keyState, id);
    const isReleased = own !== undefined && this.#host.leases.release(own, id, nowMs);
    this.#leases.serve(keyState);
    return isReleased;
  }

  peek(keyState: KeyState): Promise<Peeked> {
    const nowMs = this.#host.toNow(keyState);
    const [first] = this.#host.queue.waitersOf(keyState);
    return this.#claims.peek(keyState, first === undefined ? 0 : nowMs - first.sinceMs);
  }

  /** Makes the key as new, here and in the pool; units that somebody may still be spending stay apart there. */
  async reset(keyState: KeyState): Promise<void> {
    if (keyState.policy.onFailure === "local") this.#host.store.reset(...this.#host.openAlone(keyState));
    // Of a rate nothing is stored, and what isolates have of the share is known.
    if (keyState.policy.lease === undefined) return await this.#claims.reset(keyState);
    await this.#leases.adopt(keyState);
    this.#host.store.endClaims(keyState, this.#host.toNow(keyState));
    await this.#claims.reset(keyState);
    this.#host.queue.serve(keyState);
    this.#leases.serve(keyState);
  }

  /** Whose hold or lease it is that is not the pool's; rates' holds are the pool's, unless the region was alone. */
  #ownerOf(keyState: KeyState, id: string): [owner: KeyState | undefined, nowMs: number] {
    const nowMs = this.#host.toNow(keyState);
    if (keyState.claims.has(id)) return [keyState, nowMs];
    if (keyState.policy.onFailure === "local") {
      const [alone, atMs] = this.#host.openAlone(keyState);
      if (alone.claims.has(id)) return [alone, atMs];
    }
    return [keyState.policy.lease === undefined ? undefined : keyState, nowMs];
  }

  async #orAlone(
    keyState: KeyState,
    ask: () => Promise<AnswerText>,
    alone: (keyState: KeyState, nowMs: number) => Maybe<AnswerText>,
  ): Promise<AnswerText> {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof PoolFailure) || keyState.policy.onFailure !== "local") throw error;
      const answer = await alone(...this.#host.openAlone(keyState));
      return JSON.stringify({ ...(JSON.parse(answer) as Decided), source: "fallback" } satisfies Decided);
    }
  }
}

/** What the pool said, with the wait for slots that come free here before they are the pool's again. */
function sooner(
  keyState: KeyState,
  rules: readonly RuleDecision[],
  cost: Cost,
  nowMs: number,
): readonly RuleDecision[] {
  return rules.map((rule, index): RuleDecision => {
    const ruleState = keyState.ruleStates[index];
    if (rule.success || rule.retryAfterMs === null || ruleState?.rule.lease === undefined) return rule;
    const hereMs = leaseWaitMs(ruleState, costOf(ruleState.rule, cost), nowMs) ?? Infinity;
    return { ...rule, retryAfterMs: Math.min(rule.retryAfterMs, hereMs) };
  });
}

/** The same answer in the pool's figures, which knows what is left and how long to wait. */
function withPoolsFigures(answer: AnswerText, rules: readonly RuleDecision[]): AnswerText {
  const decided = JSON.parse(answer) as Partial<Decided>;
  const isAdmission = (each: readonly RuleDecision[]) => each.every(({ success }) => success);
  if (decided.rules === undefined || isAdmission(decided.rules) !== isAdmission(rules)) return answer;
  return JSON.stringify({ ...decided, rules, source: "pool" });
}
