/** Ends holds: at once with retries, or with the stream whose cost they cover. */
import type { Cost, Limiter } from "../client/limiter.ts";
import { SYSTEM_TIME, type Time } from "../core/clock.ts";
import type { Hold } from "../core/protocol/answers.ts";
import { endedStream } from "./ended-stream.ts";
import { inBackgroundOf } from "./options.ts";

/** The waits before a settlement is sent again, in milliseconds. A worker's background lasts 30 s. */
const RETRY_AFTER_MS = [200, 1_000, 5_000];

/**
 * Settles a hold when its stream ends: when it was read, was cancelled by its reader, or failed. The stream itself does
 * not change, and does not wait for the limiter.
 * @param hold that of the decision; without one (the policy's `onFailure` admitted, or `shadow`) nothing is settled
 * @param count returns the units used so far. It is called with each chunk, and at the end once with `undefined`: that
 * answer is settled. If it throws, so does the stream, and the hold expires
 * @param context what the runtime passes with the request: its `waitUntil` lets the settlement outlive the answer
 */
export function settleOnEnd<Chunk>(
  limiter: Pick<Limiter, "settle">,
  hold: Pick<Hold, "id"> | undefined,
  stream: ReadableStream<Chunk>,
  count: (chunk: Chunk | undefined) => Cost,
  context?: object,
): ReadableStream<Chunk> {
  if (hold === undefined) return stream;
  const settle = untilCalled(context, async () => {
    const used = count(undefined);
    await endHold(() => limiter.settle({ id: hold.id, used }));
  });
  return endedStream(stream, settle, (chunk) => void count(chunk));
}

/**
 * Keeps the request alive until `work`, which the returned function begins, is done. A runtime that learns of it only at
 * the end of a stream may have ended the request by then.
 */
export function untilCalled(context: object | undefined, work: () => Promise<void>): () => void {
  let begin: (work: Promise<void>) => void = () => undefined;
  inBackgroundOf(context)(new Promise<void>((done) => (begin = done)));
  return () => begin(work());
}

/**
 * Settles or cancels a hold. An unanswered call is repeated: the second finds no hold if the first arrived. What the
 * limiter rejects, or does not answer for 6 s, is left to the hold's ttl: it then counts as used in full.
 */
export async function endHold(call: () => Promise<unknown>, time: Time = SYSTEM_TIME): Promise<void> {
  for (const waitMs of [...RETRY_AFTER_MS, undefined])
    try {
      await call();
      return;
    } catch (error) {
      const status = error instanceof Error && "status" in error ? Number(error.status) : 500;
      if (status === 404) return;
      if (waitMs === undefined || (status < 500 && status !== 429))
        return console.warn(`a hold was not settled, and counts as used when it expires: ${String(error)}`);
      await new Promise<void>((done) => void time.after(waitMs, done));
    }
}
