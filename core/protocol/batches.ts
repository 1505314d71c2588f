/**
 * Several calls of an object in one message. It is plain JSON, so it can go over HTTP as well. Nobody in it waits for
 * another: the object decides all calls in one turn, and a call that fails fails alone.
 */
import { versionOf } from "../policies/in-force.ts";
import type { Answer, AnswerText, UnsupportedProtocol } from "./answers.ts";
import type { LimitCall, ReserveCall, Returned, Versioned } from "./messages.ts";

/** So many calls go in one message at most. A decision takes some 20 µs, so an object is done within 10 ms. */
export const MAX_BATCHED = 256;
/** The most UTF-16 units of a message. It has room for that many calls with keys of usual length. */
export const MAX_BATCH_LENGTH = 2 ** 17;

/** One call of a batch, with its messages by the names of the methods that take them alone, in this order. */
export interface BatchedCall {
  readonly giveBack?: { readonly policy: string; readonly returned: readonly Returned[] };
  readonly limit?: LimitCall;
  readonly reserve?: ReserveCall;
}

/** The message, all of one policy. Its calls are JSON text: to send them as nested objects would cost more than to decide them. */
export interface Batch extends Versioned {
  /** A list of `BatchedCall`. */
  readonly calls: string;
}

/** The call threw. Whether it was charged is not known. */
export interface Failed {
  readonly failed: string;
}

/** The answer to a call. `null`: it only gave units back. */
export type MadeAnswer = Answer | null;

/** The answer to one call of a batch. */
export type BatchedAnswer = MadeAnswer | UnsupportedProtocol | Failed;

/** What a list of answers to a batch is in JSON text: one for each call, in their order. */
export function batchText(answers: readonly AnswerText[]): AnswerText {
  return `[${answers.join(",")}]`;
}

/**
 * Whether the object has refused a call, or a whole batch, and has changed nothing: it is older, or the call would have
 * to wait, or the batch is too large for it. Then the call can be made alone.
 */
export function isForAlone(answer: object): boolean {
  if ("unsupported" in answer) return true;
  return "full" in answer && BATCH_BOUNDS.has((answer as { full: { bound: string } }).full.bound);
}

const BATCH_BOUNDS: ReadonlySet<string> = new Set(["batch-calls", "batch-length", "batch-waits"]);

/** The call, which says what is in force: whoever sent it need not know. */
export function withVersion(
  policy: Parameters<typeof versionOf>[0],
  { limit, reserve, ...call }: BatchedCall,
): BatchedCall {
  const version = versionOf(policy);
  return {
    ...call,
    ...(limit && { limit: { ...limit, ...version } }),
    ...(reserve && { reserve: { ...reserve, ...version } }),
  };
}
