import type { AcquireCall, Answer, IdleCall, Peeked } from "../../core/protocol/messages.ts";
import { TO_NOBODY } from "../operations/leases.ts";
import type { AskKey } from "../operations/operations.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";

/**
 * Calls that may wait. They come as requests and not over RPC, because only a request has a signal that is aborted when
 * the caller goes (flag enable_request_signal; tried on workerd 1.20261023.1: within 2 ms).
 */
export class WaitingCalls {
  readonly #ask: AskKey;
  readonly #queue: WaitQueue;

  constructor(ask: AskKey, queue: WaitQueue) {
    this.#ask = ask;
    this.#queue = queue;
  }

  /** Acquires a lease. If the caller has gone before the lease is granted, the lease is released again. */
  async acquire({ policy, key, ...call }: AcquireCall, signal: AbortSignal): Promise<Answer> {
    if (signal.aborted) return TO_NOBODY;
    const answer = await this.#ask(policy, key, (operations, keyState, nowMs) =>
      operations.acquire(keyState, { ...call, signal }, nowMs),
    );
    // With an idempotency key the lease may have been granted to an earlier call: then it must stay.
    if (signal.aborted && call.idempotencyKey === undefined)
      await this.#ask(policy, key, (operations, keyState, nowMs) =>
        operations.release(keyState, call.id, nowMs),
      );
    return answer;
  }

  /** Waits until the key has no leases or `waitMs` is over, and then looks at the key. */
  async untilIdle({ policy, key, waitMs }: IdleCall, signal: AbortSignal): Promise<Peeked> {
    await this.#ask(policy, key, (_, keyState, nowMs) =>
      this.#queue.untilIdle(keyState, nowMs + waitMs, signal),
    );
    return await this.#ask(policy, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
  }
}
