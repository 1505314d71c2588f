/** Calls whose callers stop waiting. */
import type { Decision } from "../core/protocol/decision.ts";
import type { AcquireAsked, Signal } from "./limiter.ts";
import type { FarSide } from "./transports/far-side.ts";

/** The answer, unless `signal` is aborted before: then its reason is thrown. */
export function unlessAborted<Answer>(answer: Promise<Answer>, signal: Signal | undefined): Promise<Answer> {
  if (signal === undefined) return answer;
  return new Promise((resolve, reject) => {
    const leave = () => reject(signal.reason);
    if (signal.aborted) leave();
    signal.addEventListener("abort", leave, { once: true });
    answer.then(resolve, reject).finally(() => signal.removeEventListener("abort", leave));
  });
}

/**
 * Asks for a lease. When it is granted and `ended` says that nobody waits for it any more, it is released: else it would
 * keep others waiting until it expires. With an idempotency key it stays, since the call may be made again.
 */
export async function acquireForSomebody(
  far: Pick<FarSide, "acquire" | "release">,
  asked: AcquireAsked,
  ended: Signal,
): Promise<Decision> {
  const decision = await far.acquire(asked, ended);
  const { lease } = decision;
  if (lease !== undefined && ended.aborted && asked.idempotencyKey === undefined)
    await far.release({ id: lease.id, outcome: "ignore" });
  return decision;
}
