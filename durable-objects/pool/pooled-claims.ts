import { admitsTogether } from "../../core/accounts/account.ts";
import { randomId } from "../../core/clock.ts";
import { type Cost, costOf, costText } from "../../core/policies/policy.ts";
import type { Answer, Peeked, RuleDecision } from "../../core/protocol/answers.ts";
import type { HoldParams } from "../../core/protocol/messages.ts";
import type { KeyState } from "../keys/key-state.ts";
import { refundText } from "../operations/limits.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";
import type { PoolAnswer } from "./protocol.ts";
import { type PoolParams, PoolFailure, type PoolSession } from "./session.ts";
import { costsOf } from "./share-algorithm.ts";
import type { ShareRequest } from "./share.ts";

/**
 * Calls that the pool itself decides and remembers, so that they can be repeated or ended in any region. With the
 * call the region gives back what it can spare, so the pool decides on everything there is.
 */
export class PooledClaims {
  readonly #session: PoolSession;

  constructor(session: PoolSession) {
    this.#session = session;
  }

  /** Takes a cost once for an idempotency key. A cost of 0 looks and takes nothing. */
  limit(keyState: KeyState, cost: Cost, idempotencyKey: string | undefined): Promise<Answer> {
    const request = idempotencyKey === undefined ? {} : { request: `limit of ${costText(cost)}` };
    return this.#ask(
      keyState,
      { op: "limit", cost: costsOf(keyState, cost), ...request },
      named(idempotencyKey),
    );
  }

  refund(
    keyState: KeyState,
    units: Cost,
    idempotencyKey: string,
    charge: string | undefined,
  ): Promise<Answer> {
    const isNamed = charge !== undefined;
    return this.#ask(
      keyState,
      {
        op: "refund",
        cost: costsOf(keyState, units),
        request: refundText(units, charge),
        ...(isNamed && { isNamed }),
      },
      [...named(charge), ...named(idempotencyKey)],
    );
  }

  async hold(keyState: KeyState, call: HoldParams): Promise<Answer> {
    const { id = randomId(), cost, ttlMs, idempotencyKey, provisional } = call;
    const request = provisional?.request ?? `hold of ${costText(cost)}`;
    const asked = { op: "hold", cost: costsOf(keyState, cost), id, ttlMs } as const;
    const isRepeatable = idempotencyKey !== undefined;
    const names = [...held(id), ...named(idempotencyKey)];
    return await this.#send(
      keyState,
      isRepeatable ? { ...asked, request } : asked,
      names,
      (answer): Answer => {
        const { hold, full } = answer;
        if (full !== undefined) return { full };
        const set = hold && { id: hold.id, units: cost, expiresAfterMs: hold.expiresAfterMs };
        return { ...decidedOf(answer), ...(set && { hold: set }) };
      },
    );
  }

  settle(keyState: KeyState, id: string, used: Cost): Promise<Answer> {
    const units = keyState.ruleStates.map(({ rule }) => {
      const isLeftOut = typeof used === "object" && !Object.hasOwn(used, rule.unit);
      return isLeftOut ? AS_HELD : costOf(rule, used);
    });
    return this.#ask(keyState, { op: "settle", cost: costsOf(keyState, 0), id, used: units }, held(id));
  }

  cancel(keyState: KeyState, id: string): Promise<Answer> {
    return this.#ask(keyState, { op: "settle", cost: costsOf(keyState, 0), id }, held(id));
  }

  /** @param longestWaitMs how long the first caller in this region's queue has waited, in milliseconds */
  peek(keyState: KeyState, longestWaitMs: number): Promise<Peeked> {
    return this.#send(keyState, { op: "peek", cost: costsOf(keyState, 1) }, [], ({ rules = [], report }) => ({
      rules,
      source: "pool",
      ...(report ?? NOTHING),
      longestWaitMs,
    }));
  }

  async reset(keyState: KeyState): Promise<void> {
    await this.#send(keyState, { op: "reset", cost: costsOf(keyState, 0) }, [], () => undefined);
  }

  #ask(keyState: KeyState, asked: PoolParams, names: readonly string[]): Promise<Answer> {
    return this.#send(keyState, asked, names, answerOf);
  }

  #send<Result>(
    keyState: KeyState,
    asked: PoolParams,
    names: readonly string[],
    read: (answer: PoolAnswer) => Result,
  ): Promise<Awaited<Result>> {
    const share = this.#session.shareOf(keyState);
    share.denials.forget();
    // A reset always takes the region's message along, which gives back everything that the region can spare.
    const isKnown = share.isHeld || asked.op === "reset";
    const asking = isKnown ? { asking: { isGivingBack: asked.op === "reset" } } : {};
    return this.#session.send(keyState, asked, { names, ...asking }, read);
  }
}

/** In `used` of a `settle` call: as many units as were held. */
const AS_HELD = -1;
const NOTHING = { outstanding: 0, holds: 0, leases: 0, reclaimed: 0, queueLength: 0 };

/**
 * Names of answers. The prefixes keep the two kinds apart, since a caller may choose another hold's id as its
 * idempotency key. They are stored: for ever.
 */
function named(idempotencyKey: string | undefined): string[] {
  return idempotencyKey === undefined ? [] : [`call:${idempotencyKey}`];
}

function held(id: string): string[] {
  return [`hold:${id}`];
}

function answerOf(answer: PoolAnswer): Answer {
  if (answer.missing === true) return { missing: true };
  if (answer.conflict !== undefined) return { conflict: answer.conflict };
  return decidedOf(answer);
}

function decidedOf({ rules = [], conflict }: PoolAnswer): Answer {
  return conflict === undefined ? { rules, source: "pool" } : { conflict };
}

/**
 * How often a region asks for slots that its callers wait for, in milliseconds. Nothing tells the region that another
 * one has given slots back. On its way from one region to another, a slot is idle for half of this time on average.
 */
const ASK_AGAIN_MS = 200;
const MIN_WAIT_MS = 10;

/**
 * Leases in slots of a pool. The region holds the slots, and its object leases them to callers as any object does,
 * with its own queue, sockets and stored leases (operations/claims.ts). No lease outlives the time for which the pool
 * keeps its slot apart (`endsByMs`).
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
   * Does `work`, for which the region may need more slots, or slots for a longer time. When the pool has none, `work`
   * is done all the same, and is denied or waits.
   *
   * @param cost the cost of `work`; 0: the slots are there, and only their time matters
   * @param ttlMs how long the lease is to last
   * @param work receives the time and, if the pool was asked, what the pool's rules said
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
      // Callers wait already. This one joins the queue behind them, and does not ask the pool.
      const isBehind = cost !== 0 && this.#queue.waitersOf(keyState).length > 0;
      if (isBehind || isCovered(keyState, cost, ttlMs, nowMs)) return await done(nowMs);
      const message = share.messageAt(nowMs);
      if (message === undefined) {
        const call = limitCall(keyState, cost, nowMs);
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
   * Tells the pool which slots an object still has after it was out of memory, before any of its leases ends. All
   * other slots stay apart until they expire, since messages from before may come late.
   */
  async adopt(keyState: KeyState): Promise<void> {
    if (!this.#session.shareOf(keyState).isUnknown) return;
    await this.#session.tell(keyState, { isGivingBack: true });
  }

  /**
   * Called when slots may have come free, or a caller has begun to wait. Asks for slots while callers wait, else
   * gives idle slots back when other regions want some.
   */
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
        const untilMs = Math.min(ASK_AGAIN_MS, Math.max(MIN_WAIT_MS, head.untilMs - nowMs));
        await new Promise<void>((resolve) => time.after(untilMs, resolve));
        await this.#askFor(keyState);
      }
    } finally {
      this.#asked.delete(keyState);
    }
  }

  /** Asks for the slots that the first caller in the queue waits for. */
  async #askFor(keyState: KeyState): Promise<void> {
    const [head] = this.#queue.waitersOf(keyState);
    const nowMs = this.#session.toNow(keyState);
    if (head === undefined || this.#session.shareOf(keyState).messageAt(nowMs) !== undefined) return;
    const call = limitCall(keyState, head.cost, nowMs);
    try {
      await this.#session.send(keyState, call, this.#asking(keyState, head.ttlMs), (_, atMs) => {
        this.#queue.serve(keyState);
        this.#session.shareOf(keyState).demand.noteLeases(atMs);
      });
    } catch (error) {
      // Callers go on waiting: the pool may be back before their time is over.
      if (!(error instanceof PoolFailure)) throw error;
    }
  }

  /** The slots that all waiting callers of a key want, so that one message brings slots for many. */
  #asking(keyState: KeyState, leaseTtlMs: number): { readonly asking: ShareRequest } {
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

/** A caller who waits until the message under way is answered. */
interface Pending {
  readonly keyState: KeyState;
  readonly units: readonly number[];
}

/** The call that asks for a cost. The cost is 0 when there are enough slots and only their time is too short. */
function limitCall(
  keyState: KeyState,
  cost: Cost,
  nowMs: number,
): { readonly op: "limit"; readonly cost: number[] } {
  const admitted = admitsTogether(keyState.ruleStates, nowMs, cost);
  return { op: "limit", cost: costsOf(keyState, admitted ? 0 : cost) };
}

/** Whether the region has enough slots, for long enough, to grant a lease of `ttlMs`. */
function isCovered(keyState: KeyState, cost: Cost, ttlMs: number, nowMs: number): boolean {
  return nowMs + ttlMs <= keyState.endsByMs && admitsTogether(keyState.ruleStates, nowMs, cost);
}
