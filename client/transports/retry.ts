/**
 * Which calls are made a second time when the first attempt failed. The runtime says of an error that it is `retryable`
 * when the way to the object was cut, or the object went: a deployment, a move to another machine. Plain workerd
 * (1.20261023.1) says `durableObjectReset` of an object that went, and nothing else. The call may have been carried out
 * all the same, so only those are repeated that take effect once. What is `overloaded` is never asked again: that would
 * add to its load.
 */
import type { Time } from "../../core/clock.ts";
import type { BatchedCall } from "../../core/protocol/messages.ts";
import type { QueuedCall } from "./queued-call.ts";
import { type Answers, type LimiterStub, sendTogether } from "./send-batch.ts";

/** Whether another attempt, on a new stub, may pass. */
function mayPass(error: unknown): boolean {
  if (typeof error !== "object" || error === null) return false;
  const { retryable, overloaded, durableObjectReset } = error as Partial<Record<string, unknown>>;
  return (retryable === true || durableObjectReset === true) && overloaded !== true;
}

/** Whether a call that is carried out twice has taken effect once: it gives back, looks, or has an idempotency key. */
export function isRepeatable({ limit, reserve }: BatchedCall): boolean {
  // Of a message that asks for units the object knows whether it has come before.
  if (reserve !== undefined && reserve.cost !== 0) return false;
  return limit === undefined || limit.cost === 0 || limit.idempotencyKey !== undefined;
}

/** How a call is attempted. */
export interface Attempts {
  /** If the first attempt fails, there may be a second one. */
  readonly isRepeatable?: boolean | undefined;
  readonly onDeadline?: (() => void) | undefined;
}

/**
 * Waits for an answer until the deadline, which is one for both attempts. After that the object may still carry the call
 * out; the answer is dropped.
 */
export function inTime<Answer>(
  time: Time,
  deadlineMs: number,
  attempt: () => Promise<Answer>,
  { isRepeatable: isTwice = false, onDeadline }: Attempts = {},
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    let isOver = false;
    const cancel = time.after(deadlineMs, () => {
      isOver = true;
      onDeadline?.();
      reject(overdue(deadlineMs));
    });
    const again = (error: unknown): Promise<Answer> => {
      if (isOver || !isTwice || !mayPass(error)) throw error;
      return attempt();
    };
    attempt()
      .catch(again)
      .then(
        (answer) => {
          cancel();
          resolve(answer);
        },
        (error: unknown) => {
          cancel();
          reject(error);
        },
      );
  });
}

/** What is logged when nobody answered in time. */
export function overdue(deadlineMs: number): Error {
  return new Error(`deadline of ${deadlineMs} ms passed`);
}

/**
 * Sends calls in one message. If it fails, those of them that are repeatable, and that somebody still waits for, go once
 * more in another. It is async so that a stub which cannot be made is a failure as any other.
 */
export async function sendTwice(
  objectOf: () => LimiterStub,
  calls: readonly QueuedCall[],
  time: Time,
  terms?: string,
): Promise<Answers> {
  try {
    return await sendTogether(objectOf(), calls, terms);
  } catch (error) {
    const nowMs = time.nowMs();
    const again = calls.filter(({ call, untilMs }) => isRepeatable(call) && nowMs < untilMs);
    if (!mayPass(error) || again.length === 0) throw error;
    const answers = await sendTogether(objectOf(), again, terms);
    const failed = { failed: String(error) };
    return calls.map((each) => {
      const index = again.indexOf(each);
      if (index < 0) return failed;
      const answer = "length" in answers ? answers[index] : answers;
      return answer === undefined ? failed : answer;
    });
  }
}
