import type { Time } from "../../core/clock.ts";
import type { Counter } from "../../core/stats/tally.ts";

/** Takes the counts of messages. */
type MessageCounter = Pick<Counter, "add" | "lasted">;

/** Who is told of messages. */
export interface MessageReports {
  /** Absent: nobody counts them. */
  readonly counter?: MessageCounter | undefined;
  /** Is told why a message to an object of a policy has no answer. Absent: it is logged. */
  readonly unanswered?: (policy: string, error: unknown) => void;
}

/** Messages as they are counted: with several calls, with one, or with one that may wait for its turn. */
export type MessageKind = "batch" | "single" | "wait";

/** Sends a message, and counts it. A second attempt belongs to the same message. */
export async function counted<Answer>(
  counter: MessageCounter | undefined,
  time: Time,
  kind: MessageKind,
  send: () => Promise<Answer>,
): Promise<Answer> {
  if (counter === undefined) return await send();
  const sinceMs = time.nowMs();
  counter.add("object_messages", [kind]);
  try {
    const answer = await send();
    if (kind !== "wait") counter.lasted("object_latency_seconds", [kind], time.nowMs() - sinceMs);
    return answer;
  } catch (error) {
    counter.add("object_unanswered", [kind]);
    throw error;
  }
}
