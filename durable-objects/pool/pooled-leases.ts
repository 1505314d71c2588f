import { admitsTogether } from "../../core/accounts/account.ts";
import type { Cost, NamingPlan } from "../../core/policies/policy.ts";
import type { RuleDecision } from "../../core/protocol/answers.ts";
import type { KeyState } from "../keys/key-state.ts";
import { policyFor } from "../keys/versions.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";
import { PoolFailure, type PoolSession } from "./session.ts";
import { costsOf, pooledRules } from "./share-algorithm.ts";
import type { ShareRequest } from "./share.ts";

/** How often a region requests slots for callers: none notifies it. A moving slot idles for half of this. */
const ASK_AGAIN_MS = 200;
const MIN_WAIT_MS = 10;

/** What needs slots, for how long, and by which plan: others may name another one for the key while it waits. */
interface ForSlots extends NamingPlan {
  readonly cost: Cost;
  readonly ttlMs: number;
}

/** A caller that waits for the answer to the message under way. */
interface Pending {
  readonly keyState: KeyState;
  readonly plan: string | undefined;
  readonly units: readonly number[];
}

/** The object leases a pool's slots as any object does, until the pool's hold for them ends (`endsByMs`). */
export class PooledLeases {
  readonly #session: PoolSession;
  readonly #queue: WaitQueue;
  readonly #asking = new Set<KeyState>();
  readonly #pending = new Set<Pending>();

  constructor(session: PoolSession, queue: WaitQueue) {
    this.#session = session;
    this.#queue = queue;
  }

  /**
   * `work` may need more slots, or slots for longer; without them it is denied or waits. It receives the time
   * and, if the pool was called, the decisions of its rules. `cost` 0: only the time of its slots matters.
   *
   * @throws PoolFailure
   */
  async withSlots<Result>(
    keyState: KeyState,
    call: ForSlots,
    work: (nowMs: number, rules?: readonly RuleDecision[]) => Result,
  ): Promise<Awaited<Result>> {
    const done = (nowMs: number, rules?: readonly RuleDecision[]) => {
      const result = work(nowMs, rules);
      this.#session.shareOf(keyState).noteLeases(nowMs);
      this.serve(keyState);
      return result;
    };
    const { cost, ttlMs } = call;
    const share = this.#session.shareOf(keyState);
    const pending: Pending = { keyState, plan: call.inForce?.plan, units: costsOf(keyState, cost) };
    for (;;) {
      const nowMs = this.#session.toNow(keyState);
      // Callers wait already. This one joins the queue behind them, and does not call the pool.
      const isBehind = cost !== 0 && this.#queue.waitersOf(keyState).length > 0;
      const isCovered =
        nowMs + ttlMs <= keyState.endsByMs && admitsTogether(keyState.ruleStates, nowMs, cost);
      if (isBehind || isCovered) return await done(nowMs);
      const message = share.messageAt(nowMs);
      if (message === undefined) return await this.#ask(keyState, call, nowMs, done);
      this.#pending.add(pending);
      await this.#session.follow(message, keyState.policy.deadlineMs);
      this.#pending.delete(pending);
    }
  }

  /** Reports a restarted object's slots to the pool before any of its leases ends. Others stay held. */
  async adopt(keyState: KeyState): Promise<void> {
    if (this.#session.shareOf(keyState).isUnknown)
      await this.#session.report(keyState, { isGivingBack: true });
  }

  /** Called when slots may be free or a caller begins to wait. Requests slots, or returns idle ones. */
  serve(keyState: KeyState): void {
    const share = this.#session.shareOf(keyState);
    if (this.#queue.waitersOf(keyState).length > 0) void this.#askForWaiters(keyState);
    else if (share.isContended && share.isHeld && !share.isAtRest)
      void this.#session.report(keyState, { isGivingBack: true });
    this.#session.watch(keyState);
  }

  async #askForWaiters(keyState: KeyState): Promise<void> {
    if (this.#asking.has(keyState)) return;
    this.#asking.add(keyState);
    const { time } = this.#session;
    try {
      for (;;) {
        const nowMs = time.nowMs();
        const [head] = this.#queue.waitersOf(keyState);
        if (head === undefined) return;
        const untilMs = Math.min(ASK_AGAIN_MS, Math.max(MIN_WAIT_MS, head.untilMs - nowMs));
        await new Promise<void>((resolve) => time.after(untilMs, resolve));
        await this.#askForFirst(keyState);
      }
    } finally {
      this.#asking.delete(keyState);
    }
  }

  async #askForFirst(keyState: KeyState): Promise<void> {
    const [head] = this.#queue.waitersOf(keyState);
    const nowMs = this.#session.toNow(keyState);
    const share = this.#session.shareOf(keyState);
    if (head === undefined || share.messageAt(nowMs) !== undefined) return;
    try {
      await this.#ask(keyState, head, nowMs, (atMs) => {
        this.#queue.serve(keyState);
        this.#session.shareOf(keyState).noteLeases(atMs);
      });
    } catch (error) {
      // Callers continue to wait: the pool may be back before their time is over.
      if (!(error instanceof PoolFailure)) throw error;
    }
  }

  /** Requests a cost and the slots for the waiting callers of a key in one message: of those that name the same plan. */
  #ask<Result>(
    keyState: KeyState,
    { cost, ttlMs, inForce }: ForSlots,
    nowMs: number,
    onAnswer: (atMs: number, rules: readonly RuleDecision[] | undefined) => Result,
  ): Promise<Awaited<Result>> {
    const pending = [...this.#pending].filter((each) => each.keyState === keyState);
    const waiters = this.#queue.waitersOf(keyState);
    const wanted = [
      ...pending.filter(({ plan }) => plan === inForce?.plan).map(({ units }) => units),
      ...waiters
        .filter((waiter) => waiter.inForce?.plan === inForce?.plan)
        .map((waiter) => costsOf(keyState, waiter.cost)),
    ];
    const slots = keyState.ruleStates.map((_, index) =>
      wanted.reduce((sum, units) => sum + (units[index] ?? 0), 0),
    );
    // There may be enough slots whose time is too short.
    const isThere = admitsTogether(keyState.ruleStates, nowMs, cost);
    const rules = pooledRules(policyFor(keyState.chosen, { inForce }));
    const call = { op: "limit", cost: costsOf(keyState, isThere ? 0 : cost), rules } as const;
    const request: ShareRequest = { leaseTtlMs: ttlMs, slots };
    return this.#session.send(keyState, call, request, (said, atMs) => onAnswer(atMs, said.rules));
  }
}
