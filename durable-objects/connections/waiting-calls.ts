import type { Answer, Peeked, UnsupportedProtocol } from "../../core/protocol/answers.ts";
import {
  KNOWN_PROTOCOL,
  type AcquireCall,
  type IdleCall,
  type LimitCall,
} from "../../core/protocol/messages.ts";
import type { Full } from "../../core/protocol/problems.ts";
import type { AskKey } from "../operations/operations.ts";
import { TO_NOBODY } from "../operations/turns.ts";
import type { WaitQueue } from "../operations/wait-queue.ts";

/**
 * Calls that may wait are requests, not RPC: only these have a signal that is aborted when the caller goes
 * (flag enable_request_signal; workerd 1.20261023.1: within 2 ms).
 */
export class WaitingCalls {
  readonly #ask: AskKey;
  readonly #queue: WaitQueue;

  constructor(ask: AskKey, queue: WaitQueue) {
    this.#ask = ask;
    this.#queue = queue;
  }

  /** Answers a request by its path. An unknown path comes from a newer version. */
  answer(path: string, call: AcquireCall | IdleCall | LimitCall, signal: AbortSignal): Promise<object> {
    if (path === "/acquire") return this.#acquire(call as AcquireCall, signal);
    if (path === "/limit") return this.#limit(call as LimitCall, signal);
    if (path === "/idle") return this.#untilIdle(call as IdleCall, signal);
    return Promise.resolve({ unsupported: { protocol: KNOWN_PROTOCOL } } satisfies UnsupportedProtocol);
  }

  /** Takes units in the caller's turn. A caller that left before is not charged. */
  async #limit({ policy, key, ...call }: LimitCall, signal: AbortSignal): Promise<Answer> {
    if (signal.aborted) return TO_NOBODY;
    return await this.#ask(policy, key, (operations, keyState, nowMs) =>
      operations.limit(keyState, { ...call, signal }, nowMs),
    );
  }

  async #acquire({ policy, key, ...call }: AcquireCall, signal: AbortSignal): Promise<Answer> {
    if (signal.aborted) return TO_NOBODY;
    const answer = await this.#ask(policy, key, (operations, keyState, nowMs) =>
      operations.acquire(keyState, { ...call, signal }, nowMs),
    );
    // With an idempotency key the lease may belong to an earlier call: then it stays.
    if (signal.aborted && call.idempotencyKey === undefined)
      await this.#ask(policy, key, (operations, keyState, nowMs) =>
        operations.release(keyState, call.id, nowMs, { outcome: "ignore" }),
      );
    return answer;
  }

  async #untilIdle({ policy, key, waitMs, caller }: IdleCall, signal: AbortSignal): Promise<Peeked | Full> {
    const over = await this.#ask<Full | undefined>(policy, key, (_, keyState, nowMs) => {
      const watcher = { untilMs: nowMs + waitMs, signal, caller };
      return this.#queue.watchersFull(keyState, caller) ?? this.#queue.untilIdle(keyState, watcher);
    });
    if (over !== undefined) return over;
    return await this.#ask(policy, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
  }
}
