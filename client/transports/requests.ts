/**
 * Requests that are under way. The socket of one keeps a process alive, so none is kept for long after its caller has
 * stopped waiting.
 */
import { idle } from "../../core/clock.ts";
import type { Signal } from "./asked.ts";

/**
 * An answer that comes so late may still be of use, in milliseconds: a lease is released, a policy becomes known, and
 * what was asked for is more likely done. The limiter itself releases the lease of a caller that has hung up.
 */
const LATE_MS = 2_000;
/** Of a request whose worker has ended nobody hears any more. No more than so many are remembered. */
const MOST_LATE = 1_000;

/** For how long somebody waits for an answer. */
export interface Waiting {
  /** Aborted when nobody waits any more. Absent: that is after `withinMs`. */
  readonly ended?: Signal | undefined;
  readonly withinMs?: number | undefined;
  /** A late answer is of no use. */
  readonly isOnlyRead?: boolean;
}

/** The requests of one limiter. */
export class Requests {
  /** Those that nobody waits for. */
  readonly #late = new Set<AbortController>();
  #isClosed = false;

  /** Makes a request, and aborts it soon after its caller has stopped waiting. */
  async make<Answer>(
    send: (signal: AbortSignal) => Promise<Answer>,
    { ended, withinMs = LATE_MS, isOnlyRead = false }: Waiting,
  ): Promise<Answer> {
    const request = new AbortController();
    const abort = () => request.abort(new Error("nobody waits for the answer"));
    let cancel = () => {};
    const leave = () => {
      if (isOnlyRead || this.#isClosed) return abort();
      this.#remember(request);
      cancel = idle(LATE_MS, abort);
    };
    if (ended === undefined) cancel = idle(withinMs, leave);
    else if (ended.aborted) leave();
    else ended.addEventListener("abort", leave, { once: true });
    try {
      return await send(request.signal);
    } finally {
      cancel();
      ended?.removeEventListener("abort", leave);
      this.#late.delete(request);
    }
  }

  /** Aborts those that nobody waits for, and from now on each that nobody waits for any more. */
  close(): void {
    this.#isClosed = true;
    for (const request of this.#late) {
      try {
        request.abort(new Error("the limiter is closed"));
      } catch {
        // In a worker, another one's request cannot be aborted. It ends by itself.
      }
    }
  }

  #remember(request: AbortController): void {
    for (const oldest of this.#late) {
      if (this.#late.size < MOST_LATE) break;
      this.#late.delete(oldest);
    }
    this.#late.add(request);
  }
}
