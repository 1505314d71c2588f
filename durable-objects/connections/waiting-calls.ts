import type { AcquireCall, Answer, IdleCall, Peeked } from "../../core/protocol/messages.ts";
import { TO_NOBODY } from "../operations/leases.ts";
import type { AskKey } from "../operations/operations.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";

/**
 * Calls that wait. They come as requests and not as RPC, since only a request has a signal that says when the caller has
 * gone (flag enable_request_signal; tried on workerd 1.20261023.1: within 2 ms).
 */
export class WaitingCalls {
  readonly #ask: AskKey;
  readonly #queue: WaitQueue;

  constructor(ask: AskKey, queue: WaitQueue) {
    this.#ask = ask;
    this.#queue = queue;
  }

  /** Acquires for a caller who may have gone when the lease is granted: then it is taken back. */
  async acquire({ policy, key, ...call }: AcquireCall, signal: AbortSignal): Promise<Answer> {
    if (signal.aborted) return TO_NOBODY;
    const answer = await this.#ask(policy, key, (operations, keyState, nowMs) =>
      operations.acquire(keyState, { ...call, signal }, nowMs),
    );
    // A repeated call has its lease from before: it is not this one's to take back.
    if (signal.aborted && call.idempotencyKey === undefined)
      await this.#ask(policy, key, (operations, keyState, nowMs) =>
        operations.release(keyState, call.id, nowMs),
      );
    return answer;
  }

  /** Looks at a key when it has no leases, or when the time is over. */
  async untilIdle({ policy, key, waitMs }: IdleCall, signal: AbortSignal): Promise<Peeked> {
    await this.#ask(policy, key, (_, keyState, nowMs) =>
      this.#queue.untilIdle(keyState, nowMs + waitMs, signal),
    );
    return await this.#ask(policy, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
  }
}
