import type { Answer, Peeked } from "../../core/protocol/answers.ts";
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

interface Host {
  readonly ask: AskKey;
  readonly queue: WaitQueue;
}

/**
 * Answers a call that may wait, by its path; an unknown one comes from a newer version. These calls are
 * requests, not RPC: only a request has a signal that is aborted when the caller goes (flag
 * enable_request_signal; workerd 1.20261023.1: within 2 ms).
 */
export async function answerRequest(
  host: Host,
  path: string,
  call: AcquireCall | IdleCall | LimitCall,
  signal: AbortSignal,
): Promise<object> {
  if (path === "/idle") return await untilIdle(host, call as IdleCall, signal);
  if (path !== "/acquire" && path !== "/limit") return { unsupported: { protocol: KNOWN_PROTOCOL } };
  // A caller that left before is not charged.
  if (signal.aborted) return TO_NOBODY;
  return path === "/limit"
    ? await limit(host, call as LimitCall, signal)
    : await acquire(host, call as AcquireCall, signal);
}

async function limit({ ask }: Host, call: LimitCall, signal: AbortSignal): Promise<Answer> {
  const { policy, key, ...params } = call;
  return await ask(policy, key, (operations, keyState, nowMs) =>
    operations.limit(keyState, { ...params, signal }, nowMs),
  );
}

async function acquire({ ask }: Host, call: AcquireCall, signal: AbortSignal): Promise<Answer> {
  const { policy, key, ...params } = call;
  const answer = await ask(policy, key, (operations, keyState, nowMs) =>
    operations.acquire(keyState, { ...params, signal }, nowMs),
  );
  // With an idempotency key the lease may belong to an earlier call: then it stays.
  if (signal.aborted && call.idempotencyKey === undefined)
    await ask(policy, key, (operations, keyState, nowMs) =>
      operations.release(keyState, call.id, nowMs, { outcome: "ignore" }),
    );
  return answer;
}

async function untilIdle(
  { ask, queue }: Host,
  { policy, key, waitMs, caller }: IdleCall,
  signal: AbortSignal,
): Promise<Peeked | Full> {
  const over = await ask<Full | undefined>(policy, key, (_, keyState, nowMs) => {
    const watcher = { untilMs: nowMs + waitMs, signal, caller };
    return queue.watchersFull(keyState, caller) ?? queue.untilIdle(keyState, watcher);
  });
  return over ?? (await ask(policy, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs)));
}
