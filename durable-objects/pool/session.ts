import { orTimeout, type Time } from "../../core/clock.ts";
import { type PolicyRevision, publicName } from "../../core/policies/policy.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";
import type { Pool, PoolAnswer, PoolCall } from "./protocol.ts";
import { pooledRules } from "./share-algorithm.ts";
import { type PoolMessage, Share, type ShareRequest } from "./share.ts";

/** How often expiring units are searched: at least once in the end of a lifetime (`marginMs`). */
const CHECK_MS = 200;

/** The part of a policy's deadline for the pool. The rest is for an answer without it. */
const PART_OF_DEADLINE = 1 / 2;

export interface PoolSessionHost {
  readonly pool: Pool;
  readonly time: Time;
  readonly queue: WaitQueue;
  /** Debits and frees expired units of a key, and returns the time in milliseconds. */
  readonly toNow: (keyState: KeyState) => number;
}

/** The pool cannot serve this call, mostly for lack of an answer. The policy's `onFailure` applies. */
export class PoolFailure extends Error {
  override readonly name = "PoolFailure";
}

/** Sends an object's calls to its pools, with messages about the region's units: one per key at a time. */
export class PoolSession {
  readonly time: Time;
  readonly toNow: PoolSessionHost["toNow"];
  readonly #host: PoolSessionHost;
  /** By rule states: reading the key from storage makes another list, and so another share. */
  readonly #shares = new WeakMap<KeyState["ruleStates"], Share>();
  readonly #answers = new WeakMap<PoolMessage, Promise<unknown>>();
  readonly #held = new Set<KeyState>();
  #isWatching = false;

  constructor(host: PoolSessionHost) {
    this.#host = host;
    this.time = host.time;
    this.toNow = host.toNow;
  }

  shareOf(keyState: KeyState): Share {
    const known = this.#shares.get(keyState.ruleStates);
    known?.follow(keyState.policy);
    if (known !== undefined) return known;
    const share = new Share(keyState, this.time.nowMs());
    this.#shares.set(keyState.ruleStates, share);
    return share;
  }

  /**
   * Calls the pool.
   *
   * @param params with the rules of the plan that decides; absent: of the plan in force
   * @param request present: adds the region's message, unless another is under way
   * @param onAnswer runs in the same synchronous step as the grant, so no other request can take the units
   * first
   * @param names of the answers that the call may remember or repeat (`poolKeys`)
   * @throws PoolFailure
   */
  async send<Result>(
    keyState: KeyState,
    params: Omit<PoolCall, "rules" | "seen" | "holding"> & Partial<Pick<PoolCall, "rules">>,
    request: ShareRequest | undefined,
    onAnswer: (answer: PoolAnswer, nowMs: number) => Result,
    names: readonly string[] = [],
  ): Promise<Awaited<Result>> {
    const { policy } = keyState;
    const share = this.shareOf(keyState);
    const nowMs = this.toNow(keyState);
    const call = { rules: pooledRules(policy), ...params, seen: share.seenWrites };
    const isFree = request !== undefined && share.messageAt(nowMs) === undefined;
    // The pool adds a cost of slots to a holder's units. Only the holder's message can return them.
    const isForSlots =
      policy.lease !== undefined && params.op === "limit" && params.cost.some((units) => units > 0);
    if (isForSlots && !isFree) throw new PoolFailure("another message for slots is under way");
    const queueLength = this.#host.queue.waitersOf(keyState).length;
    const message = isFree ? share.ask(call, { ...request, queueLength }, nowMs) : undefined;
    const work = async () => {
      const answer = await this.#call(keyState, call, names, message);
      const atMs = this.toNow(keyState);
      // Other rules are in force since, and the region has begun anew: what was granted expires.
      if (this.shareOf(keyState) !== share) throw new PoolFailure("the policy has other rules now");
      share.noteWrites(answer.mark, call.op === "peek");
      const isTaken = message === undefined || share.answered(message, answer, atMs);
      this.watch(keyState);
      // All that it had may have been used while the message was under way.
      if (share.hasNews(atMs)) void this.report(keyState);
      // The region has continued without this answer. Its next message returns the grant.
      if (!isTaken && answer.granted?.overtakenBy === undefined)
        throw new PoolFailure("the pool's answer came late");
      return { result: onAnswer(answer, atMs) };
    };
    const answered = work();
    if (message !== undefined) this.#answers.set(message, answered);
    const { result } = await answered;
    return await result;
  }

  async #call(keyState: KeyState, call: PoolCall, names: readonly string[], message?: PoolMessage) {
    // The key stays in memory until the call has ended.
    const unpin = keyState.pin();
    try {
      const { policy, key, inForce } = keyState;
      const { name, rules, deadlineMs } = policy;
      const ruleNames = rules.map((rule) => rule.name);
      const keys = poolKeys(poolName(name, inForce), key, ruleNames, names);
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

  /** Sends the region's message without a cost. Its failure fails no call. */
  async report(keyState: KeyState, request: ShareRequest = {}): Promise<void> {
    const cost = keyState.ruleStates.map(() => 0);
    try {
      await this.send(keyState, { op: "limit", cost }, request, () => undefined);
    } catch (error) {
      if (!(error instanceof PoolFailure)) throw error;
    }
  }

  /** Waits for the end of another call's message, for at most `maxMs` milliseconds. */
  follow(message: PoolMessage, maxMs: number): Promise<void> {
    const answered = this.#answers.get(message)?.catch(() => undefined);
    return orTimeout(answered, this.time, maxMs);
  }

  /** Checks a key until its units are returned, or leases are in all its slots. */
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
      // Later the pool's hold for the region has expired, and no units are left to return.
      if (nowMs >= keyState.endsByMs) share.lose();
      else void this.report(keyState, { isGivingBack: true });
    }
    if (!share.isHeld || share.isAtRest) this.#held.delete(keyState);
  }
}

/** A candidate begins with a pool of its own. */
function poolName(name: string, inForce: PolicyRevision | undefined): string {
  const policy = publicName(name);
  return inForce?.candidate === undefined ? policy : `${policy}~${inForce.candidate}`;
}

/**
 * The Redis keys of a call, in this order: the hash, the sorted set of holds, a log per rule (only sliding
 * logs use theirs), and the answers that the call may remember or repeat. They are equal up to the first `}`,
 * the part that a Redis cluster hashes, so the keys of a pool share a slot. No `}` follows a pool's own name,
 * so pools share no key. Never change the names: a key under another name is another pool.
 *
 * @param answerNames the hold of `hold`, `settle` and `renew`; then the idempotency key, if any
 */
export function poolKeys(
  policy: string,
  key: string,
  ruleNames: readonly string[],
  answerNames: readonly string[] = [],
): string[] {
  const pool = `weir:{${policy}/${key}}`;
  const logs = ruleNames.map((name) => `${pool}:log:${name}`);
  const answers = answerNames.map((name) => `${pool}:answer:${encodeURIComponent(name)}`);
  return [pool, `${pool}:holds`, ...logs, ...answers];
}
