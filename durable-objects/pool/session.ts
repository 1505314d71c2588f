import { orTimeout, type Time } from "../../core/clock.ts";
import { publicName } from "../../core/policies/policy-names.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";
import { poolKeys } from "./keys.ts";
import type { Pool, PoolAnswer, PoolCall } from "./protocol.ts";
import { pooledRules } from "./share-algorithm.ts";
import type { Asking } from "./share-demand.ts";
import { Share, type PoolMessage } from "./share.ts";

/** So often it looks what has to go back: sooner than the part of a lifetime is over in which nothing is spent (sizing.ts). */
const LOOK_MS = 200;

/** Of the deadline of who asks this object: there has to be time left for an answer without the pool's. */
const PART_OF_DEADLINE = 1 / 2;

/** What it needs of its object. */
export interface PoolSessionHost {
  readonly pool: Pool;
  readonly time: Time;
  readonly queue: WaitQueue;
  /** Debits and frees what has expired of a key and returns the time, in milliseconds. */
  readonly toNow: (keyState: KeyState) => number;
}

/** A call without what is the same for all of a key. */
export type Asked = Omit<PoolCall, "rules" | "holding">;

export interface SendOptions {
  /** Names of answers that the call remembers, or may have been given before. */
  readonly names?: readonly string[];
  /** Present: the region's own message goes with the call, unless another one is under way. */
  readonly asking?: Asking;
}

/** The level beneath did not answer, or nothing that makes sense. What the policy's `onFailure` says is up to who catches it. */
export class PoolFailure extends Error {
  override readonly name = "PoolFailure";
}

/**
 * What an object says to pools: calls, and with them what its region has and wants. One message a key at a time; and what
 * nobody needs goes back in time.
 */
export class PoolSession {
  readonly time: Time;
  readonly toNow: PoolSessionHost["toNow"];
  readonly #pool: Pool;
  readonly #queue: WaitQueue;
  /** By the books of the key: when those are read anew from storage, the share begins anew as well. */
  readonly #shares = new WeakMap<KeyState["ruleStates"], Share>();
  readonly #answers = new WeakMap<PoolMessage, Promise<unknown>>();
  /** Entries of which units may have to go back. */
  readonly #held = new Set<KeyState>();
  #isWatching = false;

  constructor({ pool, time, queue, toNow }: PoolSessionHost) {
    this.#pool = pool;
    this.#queue = queue;
    this.time = time;
    this.toNow = toNow;
  }

  shareOf(keyState: KeyState): Share {
    const known = this.#shares.get(keyState.ruleStates);
    if (known !== undefined) return known;
    const share = new Share(keyState, this.time.nowMs());
    this.#shares.set(keyState.ruleStates, share);
    return share;
  }

  /**
   * Asks the pool, and does something with the answer in the same instant in which what was granted comes in: nobody else
   * can have taken it.
   *
   * @throws PoolFailure
   */
  async send<Result>(
    keyState: KeyState,
    asked: Asked,
    { names = [], asking }: SendOptions,
    onAnswer: (answer: PoolAnswer, nowMs: number) => Result,
  ): Promise<Awaited<Result>> {
    const { policy, key } = keyState;
    const share = this.shareOf(keyState);
    const nowMs = this.toNow(keyState);
    const call = { ...asked, rules: pooledRules(policy) };
    const isFree = asking !== undefined && share.messageAt(nowMs) === undefined;
    // Slots that no holder has would never be given back.
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
      // Given to a region that has gone on without it: it comes back with the next message.
      if (!isTaken && answer.granted?.overtakenBy === undefined)
        throw new PoolFailure("the pool's answer came late");
      result = onAnswer(answer, atMs);
    };
    const answered = work();
    if (message !== undefined) this.#answers.set(message, answered);
    await answered;
    return await (result as Result);
  }

  /** The one place where a pool that does not answer becomes a failure. */
  async #ask(
    keyState: KeyState,
    keys: readonly string[],
    message: PoolMessage | undefined,
    call: PoolCall,
  ): Promise<PoolAnswer> {
    // The key stays in memory meanwhile.
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

  /** Asks for more ahead of need, or gives back, in the background. */
  refill(keyState: KeyState, asking: Asking = {}): void {
    void this.tell(keyState, asking);
  }

  /** Tells the pool what is here; that it does not answer is no failure of anybody's call. */
  async tell(keyState: KeyState, asking: Asking): Promise<void> {
    const cost = keyState.ruleStates.map(() => 0);
    try {
      await this.send(keyState, { op: "limit", cost }, { asking }, () => undefined);
    } catch (error) {
      if (!(error instanceof PoolFailure)) throw error;
    }
  }

  /** Waits for a message that another call sent, but not for ever. */
  follow(message: PoolMessage, mostMs: number): Promise<void> {
    return orTimeout(
      this.#answers.get(message)?.catch(() => undefined),
      this.time,
      mostMs,
    );
  }

  /** Sees to it that what is here goes back when nobody needs it any more. */
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
      // What the pool has counted as used is nobody's any more, and there is nothing to say.
      if (nowMs >= keyState.endsByMs) share.lose();
      else this.refill(keyState, { isGivingBack: true });
    }
    if (!share.isHeld || share.isAtRest) this.#held.delete(keyState);
  }
}
