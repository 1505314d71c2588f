/**
 * HTTP requests in flight. Each has a socket, here and at the limiter, so their number is bounded. A socket keeps a
 * process alive, so a request is aborted soon after its caller has stopped waiting.
 */
import { idle } from "../../core/clock.ts";
import type { RequestBounds, Signal } from "./transport.ts";

/**
 * How much later an answer may still be of use, in milliseconds: a lease is released, a policy becomes known, and the
 * call is more likely carried out. The limiter itself releases the lease of a caller that has hung up.
 */
const LATE_MS = 2_000;
/** The most late requests that are remembered: one whose worker has ended never settles. */
const MAX_LATE = 1_000;

/** `waiting` is the most waiting calls that an object grants one caller. */
export const PROCESS_BOUNDS: RequestBounds = { asking: 256, waiting: 1_000 };
/** In a worker the runtime bounds each request, and a request may end without giving its place back. */
export const UNBOUNDED: RequestBounds = { asking: Infinity, waiting: Infinity };
/** The most calls that wait for a place. A further one fails at once, as if it were not answered. */
export const MAX_QUEUED = 10_000;
export const QUEUE_FULL = `${MAX_QUEUED} calls wait to be sent, which is the most`;

/** How long a caller waits for an answer. */
export interface Waiting {
  /** Aborted when the caller stops waiting. Absent: it does after `withinMs`. */
  readonly ended?: Signal | undefined;
  readonly withinMs?: number | undefined;
  /** A late answer is of no use. */
  readonly isOnlyRead?: boolean;
  /** The limiter may let the call wait for its turn. */
  readonly isPatient?: boolean;
}

/** The requests of one limiter. */
export class Requests {
  /** Requests whose callers have stopped waiting. */
  readonly #late = new Set<AbortController>();
  readonly #asking: Places;
  readonly #waiting: Places;
  #isClosed = false;

  constructor({ asking, waiting } = PROCESS_BOUNDS) {
    this.#asking = new Places(asking);
    this.#waiting = new Places(waiting);
  }

  /**
   * Makes a request as soon as there is a place for it, and aborts it soon after its caller has stopped waiting. Without
   * a place by then it is not made.
   */
  async make<Answer>(
    send: (signal: AbortSignal) => Promise<Answer>,
    { ended, withinMs = LATE_MS, isOnlyRead = false, isPatient = false }: Waiting,
  ): Promise<Answer> {
    const request = new AbortController();
    const places = isPatient ? this.#waiting : this.#asking;
    const abort = () => request.abort(new Error("nobody waits for the answer"));
    let cancel = () => {};
    let isMade = false;
    const leave = () => {
      if (!isMade || isOnlyRead || this.#isClosed) return abort();
      this.#remember(request);
      cancel = idle(LATE_MS, abort);
    };
    if (ended === undefined) cancel = idle(withinMs, leave);
    else if (ended.aborted) leave();
    else ended.addEventListener("abort", leave, { once: true });
    try {
      await places.take(request.signal);
      isMade = true;
      try {
        return await send(request.signal);
      } finally {
        places.leave();
      }
    } finally {
      cancel();
      ended?.removeEventListener("abort", leave);
      this.#late.delete(request);
    }
  }

  /** Aborts the requests whose callers have stopped waiting, and from now on each request when its caller does. */
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
      if (this.#late.size < MAX_LATE) break;
      this.#late.delete(oldest);
    }
    this.#late.add(request);
  }
}

/** Bounds how many requests are in flight. Others wait in order of arrival. */
class Places {
  #free: number;
  readonly #queued = new Set<() => void>();

  constructor(places: number) {
    this.#free = places;
  }

  /** @throws Error the reason of `signal`, or that too many wait; then there is no place to leave */
  async take(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#free > 0) {
      this.#free -= 1;
      return;
    }
    if (this.#queued.size >= MAX_QUEUED) throw new Error(QUEUE_FULL);
    await new Promise<void>((begin, fail) => {
      const letIn = () => {
        signal.removeEventListener("abort", leave);
        begin();
      };
      const leave = () => {
        this.#queued.delete(letIn);
        fail(signal.reason);
      };
      this.#queued.add(letIn);
      signal.addEventListener("abort", leave, { once: true });
    });
  }

  leave(): void {
    const [letIn] = this.#queued;
    if (letIn === undefined) {
      this.#free += 1;
      return;
    }
    this.#queued.delete(letIn);
    letIn();
  }
}
