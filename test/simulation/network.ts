import type { LimiterNamespace, LimiterStub } from "../../client/transports/objects.ts";
import type { AnswerText } from "../../core/protocol/answers.ts";
import type { OperationCall } from "../../core/protocol/calls.ts";
import type { Batch } from "../../core/protocol/messages.ts";
import { answerBatch } from "../../durable-objects/wire-methods.ts";
import type { VirtualTime } from "./virtual-time.ts";

/** The fate of a message: its delays in milliseconds. Without a delay the message is lost on that way. */
export interface Fate {
  readonly thereMs?: number;
  readonly backMs?: number;
  /** The message arrives a second time, this much later. */
  readonly againMs?: number;
}

/** Answers a batch call by call. @param onFailure gets errors: a broken law must not pass for a failure */
export function answeredTogether(
  message: unknown,
  answer: (method: Method, args: readonly unknown[]) => unknown,
  onFailure: (error: unknown) => void,
): unknown {
  if (typeof message !== "object" || message === null || !("calls" in message)) return undefined;
  const handle = (method: Method | "operate", args: readonly unknown[]) => {
    try {
      return answer(...asAlone(method, args)) as AnswerText;
    } catch (error) {
      onFailure(error);
      throw error;
    }
  };
  return answerBatch(message as Batch, handle);
}

/** A call of a batch as it comes alone. */
export function asAlone(
  method: Method | "operate",
  args: readonly unknown[],
): [method: Method, args: readonly unknown[]] {
  if (method !== "operate") return [method, args];
  const [operation] = args as [OperationCall];
  if (operation.op !== "refund") throw new Error(`no simulated caller makes a ${operation.op}`);
  const { policy, key, units, idempotencyKey } = operation;
  return ["refund", [policy, key, units, idempotencyKey]];
}

export type Method = "limit" | "limitCall" | "reserve" | "giveBack" | "refund" | "reset" | "shedding";

/** A namespace of one object, over a network that delays, loses and doubles messages. */
export function simulatedNamespace(
  time: VirtualTime,
  handle: (method: Method, args: readonly unknown[]) => unknown,
  fateOf: () => Fate,
  isGone: () => boolean,
): LimiterNamespace {
  const send = (method: Method, args: readonly unknown[]): Promise<unknown> => {
    const { thereMs, backMs, againMs } = fateOf();
    return new Promise((resolve) => {
      if (isGone() || thereMs === undefined) return;
      time.at(time.nowMs + thereMs, () => {
        const answer = handle(method, args);
        if (againMs !== undefined) time.at(time.nowMs + againMs, () => void handle(method, args));
        if (backMs === undefined) return;
        time.at(time.nowMs + backMs, () => {
          if (!isGone()) resolve(answer);
        });
      });
    });
  };
  const stub = {
    limit: (...args: unknown[]) => send("limit", args),
    limitCall: (...args: unknown[]) => send("limitCall", args),
    reserve: (...args: unknown[]) => send("reserve", args),
    shedding: (...args: unknown[]) => send("shedding", args),
    giveBack: (...args: unknown[]) => send("giveBack", args),
    refund: (...args: unknown[]) => send("refund", args),
    reset: (...args: unknown[]) => send("reset", args),
  } as unknown as LimiterStub;
  return { getByName: () => stub };
}
