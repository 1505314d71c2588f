import { orTimeout, type Time } from "../../core/clock.ts";
import { publicName } from "../../core/policies/policy.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";
import type { Pool, PoolAnswer, PoolCall } from "./protocol.ts";
import { pooledRules } from "./share-algorithm.ts";
import { type PoolMessage, Share, type ShareRequest } from "./share.ts";

/** How often units that have to go back are looked for: at least once in the end of a lifetime (see `marginMs`). */
const CHECK_MS = 200;

/** The part of a policy's deadline in which the pool has to answer. The rest is for an answer without the pool. */
const PART_OF_DEADLINE = 1 / 2;

/** What a session needs of its object. */
export interface PoolSessionHost {
  readonly pool: Pool;
  readonly time: Time;
  readonly queue: WaitQueue;
  /** Debits and frees what has expired of a key and returns the time, in milliseconds. */
  readonly toNow: (keyState: KeyState) => number;
}

/** The pool cannot serve this call, mostly because no answer comes in time. Then the policy's `onFailure` applies. */
export class PoolFailure extends Error {
  override readonly name = "PoolFailure";
}

/**
 * Sends an object's calls to its pools, and with them messages about what the region has and wants. Only one such
 * message per key is under way at a time. Units that are not needed any more go back in time.
 */
export class PoolSession {
  readonly time: Time;
  readonly toNow: PoolSessionHost["toNow"];
  readonly #host: PoolSessionHost;
  /** By the key's rule states: when the key is read from storage they are another list, and the share begins anew. */
  readonly #shares = new WeakMap<KeyState["ruleStates"], Share>();
  readonly #answers = new WeakMap<PoolMessage, Promise<unknown>>();
  /** Keys of which units may have to go back. */
  readonly #held = new Set<KeyState>();
  #isWatching = false;

  constructor(host: PoolSessionHost) {
    this.#host = host;
    this.time = host.time;
    this.toNow = host.toNow;
  }

  /** The share of a key, made when first asked for. */
  shareOf(keyState: KeyState): Share {
    const known = this.#shares.get(keyState.ruleStates);
    if (known !== undefined) return known;
    const share = new Share(keyState, this.time.nowMs());
    this.#shares.set(keyState.ruleStates, share);
    return share;
  }

  /**
   * Calls the pool.
   *
   * @param request present: the region's message goes with the call, unless another message is under way
   * @param onAnswer runs in the same synchronous step in which granted units come in, so no other request can take
   *   them first
   * @param names names of the answers that the call may remember or repeat: see `poolKeys`
   * @throws PoolFailure
   */
  async send<Result>(
    keyState: KeyState,
    params: Omit<PoolCall, "rules" | "holding">,
    request: ShareRequest | undefined,
    onAnswer: (answer: PoolAnswer, nowMs: number) => Result,
    names: readonly string[] = [],
  ): Promise<Awaited<Result>> {
    const { policy } = keyState;
    const share = this.shareOf(keyState);
    const nowMs = this.toNow(keyState);
    const call = { ...params, rules: pooledRules(policy) };
    const isFree = request !== undefined && share.messageAt(nowMs) === undefined;
    // The pool adds a cost of slots to a holder's units. Without the holder's message nothing would give them back.
    const isForSlots =
      policy.lease !== undefined && params.op === "limit" && params.cost.some((units) => units > 0);
    if (isForSlots && !isFree) throw new PoolFailure("another message for slots is under way");
    const queueLength = this.#host.queue.waitersOf(keyState).length;
    const message = isFree ? share.ask(call, { ...request, queueLength }, nowMs) : undefined;
    let result: Result | undefined;
    const work = async () => {
      const answer = await this.#call(keyState, message, call, names);
      const atMs = this.toNow(keyState);
      const isTaken = message === undefined || share.answered(message, answer, atMs);
      this.watch(keyState);
      // The region has gone on without this answer. What it granted comes back with the region's next message.
      if (!isTaken && answer.granted?.overtakenBy === undefined)
        throw new PoolFailure("the pool's answer came late");
      result = onAnswer(answer, atMs);
    };
    const answered = work();
    if (message !== undefined) this.#answers.set(message, answered);
    await answered;
    return await (result as Result);
  }

  /** Turns whatever goes wrong at the pool into a `PoolFailure`. */
  async #call(
    keyState: KeyState,
    message: PoolMessage | undefined,
    call: PoolCall,
    names: readonly string[],
  ): Promise<PoolAnswer> {
    // Keeps the key in memory until the call has ended.
    const unpin = keyState.pin();
    try {
      const { name, rules, deadlineMs } = keyState.policy;
      const ruleNames = rules.map((rule) => rule.name);
      const keys = poolKeys(publicName(name), keyState.key, ruleNames, names);
      const maxMs = Math.ceil(deadlineMs * PART_OF_DEADLINE);
      return await this.#host.pool.call(keys, message?.call ?? call, maxMs);
    } catch (error) {
      if (message !== undefined) this.shareOf(keyState).failed(message, this.toNow(keyState));
      this.watch(keyState);
      throw new PoolFailure(String(error));
    } finally {
      unpin();
    }
  }

  /** Sends the region's message without a cost. When the pool does not answer, no call fails. */
  async report(keyState: KeyState, request: ShareRequest = {}): Promise<void> {
    const cost = keyState.ruleStates.map(() => 0);
    try {
      await this.send(keyState, { op: "limit", cost }, request, () => undefined);
    } catch (error) {
      if (!(error instanceof PoolFailure)) throw error;
    }
  }

  /** Waits until a message that another call sent is answered or fails, for at most `maxMs` milliseconds. */
  follow(message: PoolMessage, maxMs: number): Promise<void> {
    const answered = this.#answers.get(message)?.catch(() => undefined);
    return orTimeout(answered, this.time, maxMs);
  }

  /** From now on checks a key until its units have gone back, or leases are in all its slots. */
  watch(keyState: KeyState): void {
    const share = this.shareOf(keyState);
    if (share.isHeld && !share.isAtRest) this.#held.add(keyState);
    this.#checkLater();
  }

  #checkLater(): void {
    if (this.#isWatching || this.#held.size === 0) return;
    this.#isWatching = true;
    this.time.after(CHECK_MS, () => {
      this.#isWatching = false;
      for (const held of this.#held) this.#check(held);
      this.#checkLater();
    });
  }

  #check(keyState: KeyState): void {
    const share = this.shareOf(keyState);
    const nowMs = this.toNow(keyState);
    if (share.isOver(nowMs)) {
      // Later the pool's hold for the region has expired, and no units are left to give back.
      if (nowMs >= keyState.endsByMs) share.lose();
      else void this.report(keyState, { isGivingBack: true });
    }
    if (!share.isHeld || share.isAtRest) this.#held.delete(keyState);
  }
}

/**
 * The Redis keys that one call may touch, in this order: the hash, the sorted set of holds, a log for each rule (only
 * sliding logs use theirs), and the answers that the call may remember or repeat. All begin the same up to the first
 * `}`: a Redis cluster hashes only that part, so the keys of a pool share a slot. No two pools share a key, because what
 * follows the pool's own name never contains a `}`. The names are for ever: a key under another name is another pool.
 *
 * @param answerNames for `hold`, `settle` and `renew` the name of the hold; then the name of the idempotency key, if
 *   there is one
 */
export function poolKeys(
  policy: string,
  key: string,
  ruleNames: readonly string[],
  answerNames: readonly string[] = [],
): string[] {
  const pool = `weir:{${policy}/${key}}`;
  return [
    pool,
    `${pool}:holds`,
    ...ruleNames.map((name) => `${pool}:log:${name}`),
    ...answerNames.map((name) => `${pool}:answer:${encodeURIComponent(name)}`),
  ];
}
