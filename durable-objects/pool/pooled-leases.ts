import { decideTogether } from "../../core/accounts/joint-decision.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import type { RuleDecision } from "../../core/protocol/messages.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";
import { PoolFailure, type PoolSession } from "./session.ts";
import type { Asking } from "./share-demand.ts";
import { costsOf } from "./share-units.ts";

/**
 * So often a region asks for slots that its callers wait for: nothing tells it that another region has given some back. The
 * half of it is what a slot is idle on its way from one region to another.
 */
const ASK_AGAIN_MS = 200;
const LEAST_WAIT_MS = 10;

/**
 * Slots of a pool: the region holds them, and its object leases them to callers, with the queue, sockets and stored leases
 * of any object (leases.ts). No lease outlives what the pool keeps apart (`endsByMs`).
 */
export class PooledLeases {
  readonly #session: PoolSession;
  readonly #queue: WaitQueue;
  readonly #asked = new Set<KeyState>();
  readonly #pending = new Set<Pending>();

  constructor(session: PoolSession, queue: WaitQueue) {
    this.#session = session;
    this.#queue = queue;
  }

  /**
   * Does something for which the region may need more slots, or for longer. When the pool has none it is done as well: what it
   * asks for is denied, or waits.
   *
   * @throws PoolFailure
   */
  async withSlots<Result>(
    keyState: KeyState,
    cost: Cost,
    ttlMs: number,
    work: (nowMs: number, rules?: readonly RuleDecision[]) => Result,
  ): Promise<Awaited<Result>> {
    const done = (nowMs: number, rules?: readonly RuleDecision[]) => {
      const result = work(nowMs, rules);
      this.#session.shareOf(keyState).demand.noteLeases(nowMs);
      this.serve(keyState);
      return result;
    };
    const share = this.#session.shareOf(keyState);
    const pending: Pending = { keyState, units: costsOf(keyState, cost) };
    for (;;) {
      const nowMs = this.#session.toNow(keyState);
      // Who comes later waits behind those who wait for the pool already.
      const isBehind = cost !== 0 && this.#queue.waitersOf(keyState).length > 0;
      if (isBehind || isCovered(keyState, cost, ttlMs, nowMs)) return await done(nowMs);
      const message = share.messageAt(nowMs);
      if (message === undefined) {
        const call = asked(keyState, cost, nowMs);
        return await this.#session.send(keyState, call, this.#asking(keyState, ttlMs), ({ rules }, atMs) =>
          done(atMs, rules),
        );
      }
      this.#pending.add(pending);
      await this.#session.follow(message, keyState.policy.deadlineMs);
      this.#pending.delete(pending);
    }
  }

  /**
   * Says what an object that was not in memory still has, before any of it ends: slots that it does not speak of stay apart until
   * they expire, since messages of before may come late.
   */
  async adopt(keyState: KeyState): Promise<void> {
    if (!this.#session.shareOf(keyState).isUnknown) return;
    await this.#session.tell(keyState, { isGivingBack: true });
  }

  /** Slots may have come free, or somebody may have begun to wait for some. */
  serve(keyState: KeyState): void {
    const share = this.#session.shareOf(keyState);
    const isWanted = this.#queue.waitersOf(keyState).length > 0;
    if (isWanted) void this.#askForWaiters(keyState);
    else if (share.isContended && share.isHeld && !share.isAtRest)
      this.#session.refill(keyState, { isGivingBack: true });
    this.#session.watch(keyState);
  }

  async #askForWaiters(keyState: KeyState): Promise<void> {
    if (this.#asked.has(keyState)) return;
    this.#asked.add(keyState);
    const { time } = this.#session;
    try {
      for (;;) {
        const nowMs = time.nowMs();
        const [head] = this.#queue.waitersOf(keyState);
        if (head === undefined) return;
        const untilMs = Math.min(ASK_AGAIN_MS, Math.max(LEAST_WAIT_MS, head.untilMs - nowMs));
        await new Promise<void>((resolve) => time.after(untilMs, resolve));
        await this.#askFor(keyState);
      }
    } finally {
      this.#asked.delete(keyState);
    }
  }

  /** Asks for what the first in line waits for. */
  async #askFor(keyState: KeyState): Promise<void> {
    const [head] = this.#queue.waitersOf(keyState);
    const nowMs = this.#session.toNow(keyState);
    if (head === undefined || this.#session.shareOf(keyState).messageAt(nowMs) !== undefined) return;
    const call = asked(keyState, head.cost, nowMs);
    try {
      await this.#session.send(keyState, call, this.#asking(keyState, head.ttlMs), (_, atMs) => {
        this.#queue.serve(keyState);
        this.#session.shareOf(keyState).demand.noteLeases(atMs);
      });
    } catch (error) {
      // Who waits goes on waiting: the pool may be back before the time is over.
      if (!(error instanceof PoolFailure)) throw error;
    }
  }

  /** What all who wait for slots of a key want, so that one message brings slots for many. */
  #asking(keyState: KeyState, leaseTtlMs: number): { readonly asking: Asking } {
    const waiters = this.#queue.waitersOf(keyState);
    const wanted = [
      ...[...this.#pending].filter((each) => each.keyState === keyState).map(({ units }) => units),
      ...waiters.map(({ cost }) => costsOf(keyState, cost)),
    ];
    const slots = keyState.ruleStates.map((_, index) =>
      wanted.reduce((sum, units) => sum + (units[index] ?? 0), 0),
    );
    return { asking: { leaseTtlMs, slots } };
  }
}

/** A caller who waits for a message. */
interface Pending {
  readonly keyState: KeyState;
  readonly units: readonly number[];
}

/** What is missing of a cost; nothing, when only the time is too short. */
function asked(
  keyState: KeyState,
  cost: Cost,
  nowMs: number,
): { readonly op: "limit"; readonly cost: number[] } {
  const { admitted } = decideTogether(keyState.ruleStates, nowMs, cost);
  return { op: "limit", cost: costsOf(keyState, admitted ? 0 : cost) };
}

/** Whether there are slots for a lease of so long. */
function isCovered(keyState: KeyState, cost: Cost, ttlMs: number, nowMs: number): boolean {
  return nowMs + ttlMs <= keyState.endsByMs && decideTogether(keyState.ruleStates, nowMs, cost).admitted;
}
