import { orTimeout, type Time } from "../../core/clock.ts";
import { publicName } from "../../core/policies/policy.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";
import type { Pool, PoolAnswer, PoolCall } from "./protocol.ts";
import { pooledRules } from "./share-algorithm.ts";
import { type PoolMessage, Share, type ShareRequest } from "./share.ts";

/**
 * How often the session looks for units that have to go back, in milliseconds. It looks at least once in the end of a
 * lifetime in which nothing is spent any more (at most 250 ms, see `spendableMs`).
 */
const LOOK_MS = 200;

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

/** A call without the fields that the session adds. */
export type PoolParams = Omit<PoolCall, "rules" | "holding">;

interface SendOptions {
  /** Names of the answers that the call may remember or repeat: see `poolKeys`. */
  readonly names?: readonly string[];
  /** Present: the region's message goes with the call, unless another message is under way. */
  readonly asking?: ShareRequest;
}

/**
 * The pool cannot serve this call, mostly because no answer comes in time, or none that makes sense. Whoever catches
 * the error applies the policy's `onFailure`.
 */
export class PoolFailure extends Error {
  override readonly name = "PoolFailure";
}

/**
 * Sends an object's calls to its pools, and with them messages about what the region has and wants. Only one such
 * message per key is under way at a time. Units that nobody needs any more go back in time.
 */
export class PoolSession {
  readonly time: Time;
  readonly toNow: PoolSessionHost["toNow"];
  readonly #pool: Pool;
  readonly #queue: WaitQueue;
  /**
   * By the key's rule states. When the key is read anew from storage they are another list, so the share begins anew
   * as well.
   */
  readonly #shares = new WeakMap<KeyState["ruleStates"], Share>();
  readonly #answers = new WeakMap<PoolMessage, Promise<unknown>>();
  /** Keys of which units may have to go back. */
  readonly #held = new Set<KeyState>();
  #isWatching = false;

  constructor({ pool, time, queue, toNow }: PoolSessionHost) {
    this.#pool = pool;
    this.#queue = queue;
    this.time = time;
    this.toNow = toNow;
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
   * Asks the pool. `onAnswer` runs in the same synchronous step in which granted units come in, so no other request
   * can take them first.
   *
   * @throws PoolFailure
   */
  async send<Result>(
    keyState: KeyState,
    asked: PoolParams,
    { names = [], asking }: SendOptions,
    onAnswer: (answer: PoolAnswer, nowMs: number) => Result,
  ): Promise<Awaited<Result>> {
    const { policy, key } = keyState;
    const share = this.shareOf(keyState);
    const nowMs = this.toNow(keyState);
    const call = { ...asked, rules: pooledRules(policy) };
    const isFree = asking !== undefined && share.messageAt(nowMs) === undefined;
    // The pool adds a cost of slots to a holder's units. Without the holder's message nobody would have those slots,
    // and nobody would give them back.
    const isForSlots =
      policy.lease !== undefined && asked.op === "limit" && asked.cost.some((units) => units > 0);
    if (isForSlots && !isFree) throw new PoolFailure("another message for slots is under way");
    const queueLength = this.#queue.waitersOf(keyState).length;
    const message = isFree ? share.ask(call, { ...asking, queueLength }, nowMs) : undefined;
    const ruleNames = policy.rules.map(({ name }) => name);
    const keys = poolKeys(publicName(policy.name), key, ruleNames, names);
    let result: Result | undefined;
    const work = async () => {
      const answer = await this.#ask(keyState, keys, message, call);
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

  /** Calls the pool, and turns whatever goes wrong into a `PoolFailure`. */
  async #ask(
    keyState: KeyState,
    keys: readonly string[],
    message: PoolMessage | undefined,
    call: PoolCall,
  ): Promise<PoolAnswer> {
    // Keeps the key in memory until the call has ended.
    const unpin = keyState.pin();
    try {
      const deadlineMs = Math.ceil(keyState.policy.deadlineMs * PART_OF_DEADLINE);
      return await this.#pool.call(keys, message?.call ?? call, deadlineMs);
    } catch (error) {
      if (message !== undefined) this.shareOf(keyState).failed(message, this.toNow(keyState));
      this.watch(keyState);
      throw new PoolFailure(String(error));
    } finally {
      unpin();
    }
  }

  /** Asks for more units ahead of need, or gives units back, in the background. */
  refill(keyState: KeyState, asking: ShareRequest = {}): void {
    void this.tell(keyState, asking);
  }

  /** Sends the region's message without a cost. When the pool does not answer, no call fails. */
  async tell(keyState: KeyState, asking: ShareRequest): Promise<void> {
    const cost = keyState.ruleStates.map(() => 0);
    try {
      await this.send(keyState, { op: "limit", cost }, { asking }, () => undefined);
    } catch (error) {
      if (!(error instanceof PoolFailure)) throw error;
    }
  }

  /** Waits until a message that another call sent is answered or fails, for at most `mostMs` milliseconds. */
  follow(message: PoolMessage, mostMs: number): Promise<void> {
    return orTimeout(
      this.#answers.get(message)?.catch(() => undefined),
      this.time,
      mostMs,
    );
  }

  /** From now on looks at a key until its units have gone back, or leases are in all its slots. */
  watch(keyState: KeyState): void {
    const share = this.shareOf(keyState);
    if (share.isHeld && !share.isAtRest) this.#held.add(keyState);
    this.#lookSoon();
  }

  #lookSoon(): void {
    if (this.#isWatching || this.#held.size === 0) return;
    this.#isWatching = true;
    this.time.after(LOOK_MS, () => {
      this.#isWatching = false;
      for (const held of this.#held) this.#look(held);
      this.#lookSoon();
    });
  }

  #look(keyState: KeyState): void {
    const share = this.shareOf(keyState);
    const nowMs = this.toNow(keyState);
    if (share.isOver(nowMs)) {
      // After this instant the pool's hold for the region has expired. No units are left to give back.
      if (nowMs >= keyState.endsByMs) share.lose();
      else this.refill(keyState, { isGivingBack: true });
    }
    if (!share.isHeld || share.isAtRest) this.#held.delete(keyState);
  }
}

/**
 * The names of a pool's keys in Redis. All of them begin the same up to the first `}`. A Redis cluster hashes only
 * that part, so the keys of a pool share a slot. The names are for ever: a key under another name is another pool.
 */

/**
 * The keys that one call may touch, in this order: the hash, the sorted set of holds, a log for each rule (only
 * sliding logs use theirs), and the answers that the call may remember or repeat. No two pools share a key, because
 * what follows the pool's own name never contains a `}`.
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
