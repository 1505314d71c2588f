import { decideTogether } from "../../core/accounts/account.ts";
import { andThen } from "../../core/clock.ts";
import type { Cost } from "../../core/policies/policy.ts";
import type { Answer, Decided, RuleDecision } from "../../core/protocol/answers.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { maxUnits } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { wishOf } from "../operations/client-bounds.ts";
import type { Params } from "../operations/operations.ts";
import type { Reservations } from "../operations/reservations.ts";
import type { PoolSession } from "./session.ts";
import { costsOf, freeUnits, stateOf } from "./share-algorithm.ts";
import type { ShareRequest } from "./share.ts";

/** Decides costs of rates: from the region's share, or in the pool if the share is too small. */
export class PooledLimits {
  readonly #session: PoolSession;
  readonly #store: KeyStore;
  readonly #reservations: Reservations;

  constructor(session: PoolSession, store: KeyStore, reservations: Reservations) {
    this.#session = session;
    this.#store = store;
    this.#reservations = reservations;
  }

  /** @throws PoolFailure */
  async limit(keyState: KeyState, cost: Cost): Promise<Decided> {
    const share = this.#session.shareOf(keyState);
    share.note(cost, this.#session.toNow(keyState));
    const here = await this.#untilHere(keyState, cost, (nowMs) => this.#decideHere(keyState, cost, nowMs));
    if (here !== undefined) return here;
    const isHolding = keyState.policy.localDecisions.admits && (share.isHot || share.isHeld);
    return await this.#ask(keyState, cost, isHolding ? {} : undefined);
  }

  async reserve(keyState: KeyState, call: Params<"reserve">): Promise<Answer> {
    const { cost, holder, rules } = call;
    const share = this.#session.shareOf(keyState);
    share.note(0, this.#session.toNow(keyState));
    const units = keyState.policy.rules.map((rule) => {
      const reserving = rules[rule.name];
      return reserving === undefined ? 0 : wishOf(holder, reserving, maxUnits(rule));
    });
    const lending = { holder, units };
    const here = await this.#untilHere(keyState, cost, (nowMs) => {
      const isHere =
        decideTogether(keyState.ruleStates, nowMs, cost).admitted && !isPoor(keyState, call, nowMs);
      if (!isHere) return this.#denyAgain(keyState, call, nowMs);
      const reserved = this.#reservations.reserve(keyState, call, nowMs);
      if (share.needsRefill(nowMs)) void this.#session.report(keyState, { lending });
      return reserved;
    });
    if (here !== undefined) return asOfPool(keyState, here);
    const home = this.#reservations.settleMessage(keyState, call, this.#session.toNow(keyState));
    if (home === undefined) return await this.limit(keyState, cost);
    return await this.#ask(keyState, cost, { lending }, (nowMs) => {
      // The pool has charged the cost, so only the isolate's wanted units remain to be granted.
      const reserved = this.#reservations.grantNoted(keyState, call, nowMs);
      return reserved && { ...reserved, isNew: home.isNew || reserved.isNew };
    });
  }

  /** Requests a cost from the pool. `reserve` reserves units for the isolate once the grant is here. */
  #ask(
    keyState: KeyState,
    cost: Cost,
    request: ShareRequest | undefined,
    reserve?: (nowMs: number) => Decided["reserved"],
  ): Promise<Decided> {
    const share = this.#session.shareOf(keyState);
    const call = { op: "limit", cost: costsOf(keyState, cost) } as const;
    return this.#session.send(keyState, call, request, ({ rules = [], next }, nowMs): Decided => {
      if (!isAllowed(rules)) share.denials.learn(keyState.policy, cost, rules, nowMs);
      const reserved = reserve?.(nowMs);
      return { rules, source: "pool", ...(reserved && { reserved }), ...(next && { next }) };
    });
  }

  /** Called when an isolate has returned units. If other regions want units, they go to the pool at once. */
  gaveBack(keyState: KeyState): void {
    const share = this.#session.shareOf(keyState);
    if (share.isContended && share.messageAt(this.#session.toNow(keyState)) === undefined)
      void this.#session.report(keyState);
  }

  /** Tries the share, and again after each message, for a quarter of the deadline. Else the pool decides. */
  async #untilHere<Result>(
    keyState: KeyState,
    cost: Cost,
    decide: (nowMs: number) => Result | undefined,
  ): Promise<Result | undefined> {
    const { policy } = keyState;
    const share = this.#session.shareOf(keyState);
    const maxMs = policy.deadlineMs / 4;
    const sinceMs = this.#session.toNow(keyState);
    let nowMs = sinceMs;
    for (;;) {
      const decided = decide(nowMs);
      if (decided !== undefined) return decided;
      const message = share.messageAt(nowMs);
      const leftMs = sinceMs + maxMs - nowMs;
      if (leftMs <= 0 || message === undefined) return undefined;
      // The call also waits for a message that requested too few units: its answer may deny this call too.
      if (message.promise(policy, cost)) share.miss();
      await this.#session.follow(message, Math.min(maxMs, leftMs));
      nowMs = this.#session.toNow(keyState);
    }
  }

  /** Admits a cost from the share, or repeats a denial of the pool; `undefined`: only the pool can decide. */
  #decideHere(keyState: KeyState, cost: Cost, nowMs: number): Decided | undefined {
    const { admitted, accounts, rules } = decideTogether(keyState.ruleStates, nowMs, cost);
    if (!admitted || accounts === undefined) return this.#deny(keyState, cost, nowMs);
    this.#store.commit(keyState, { accounts }, nowMs);
    if (this.#session.shareOf(keyState).needsRefill(nowMs)) void this.#session.report(keyState);
    return { rules: withLeft(keyState, rules) };
  }

  #deny(keyState: KeyState, cost: Cost, nowMs: number): Decided | undefined {
    const { policy, ruleStates } = keyState;
    const { denials } = this.#session.shareOf(keyState);
    return denials.find(policy, cost, ruleStates.map(freeUnits), nowMs, (_, index) => {
      const ruleState = ruleStates[index];
      if (ruleState === undefined) return { remaining: 0, resetAfterMs: 0 };
      const { left, wholeAtMs } = stateOf(ruleState);
      return { remaining: left + freeUnits(ruleState), resetAfterMs: Math.max(0, wholeAtMs - nowMs) };
    });
  }

  /** Repeats a denial for an isolate, and applies its message: returned units may serve the next call. */
  #denyAgain(keyState: KeyState, call: Params<"reserve">, nowMs: number): MaybePromise<Answer> | undefined {
    const denied = call.cost === 0 ? undefined : this.#deny(keyState, call.cost, nowMs);
    if (denied === undefined) return undefined;
    const { rules } = denied;
    const reserved = this.#reservations.reserve(keyState, { ...call, cost: 0 }, nowMs);
    return andThen(reserved, (answer): Answer => ({ ...answer, rules }));
  }
}

/** A decision of the share with the pool's last known remaining units (`QuotaEstimate`). */
function withLeft({ ruleStates }: KeyState, rules: readonly RuleDecision[]): RuleDecision[] {
  return rules.map((rule, index) => {
    const ruleState = ruleStates[index];
    if (ruleState === undefined) return rule;
    const remaining = Math.min(ruleState.rule.capacity, rule.remaining + stateOf(ruleState).left);
    return { ...rule, remaining };
  });
}

/** Whether the share has less than half of the units an isolate lacks. False during the pool's last wait. */
function isPoor(keyState: KeyState, { rules }: Params<"reserve">, nowMs: number): boolean {
  return keyState.ruleStates.some((ruleState) => {
    const { wanted = 0, kept = 0 } = rules[ruleState.rule.name] ?? {};
    const missing = Math.min(wanted, maxUnits(ruleState.rule)) - kept;
    return 2 * freeUnits(ruleState) < missing && stateOf(ruleState).retryAtMs <= nowMs;
  });
}

export function isAllowed(rules: readonly RuleDecision[]): boolean {
  return rules.every(({ success }) => success);
}

/** The share's answer with the pool's remaining units, and no `next`: the pool may have more. */
function asOfPool(keyState: KeyState, answer: Answer): Answer {
  if (!("rules" in answer)) return answer;
  const { next: _, ...decided } = answer;
  return isAllowed(answer.rules) ? { ...decided, rules: withLeft(keyState, answer.rules) } : decided;
}
