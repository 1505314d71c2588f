/**
 * Requests that are under way. Each has a socket, here and at the limiter, so there is a bound of them. A socket keeps a
 * process alive, so none is kept for long after its caller has stopped waiting.
 */
import { idle } from "../../core/clock.ts";
import type { RequestBounds, Signal } from "./transport.ts";

/**
 * An answer that comes so late may still be of use, in milliseconds: a lease is released, a policy becomes known, and
 * what was asked for is more likely done. The limiter itself releases the lease of a caller that has hung up.
 */
const LATE_MS = 2_000;
/** Of a request whose worker has ended nobody hears any more. No more than so many are remembered. */
const MAX_LATE = 1_000;

/** A limiter grants one caller as many calls that wait in an object. */
export const PROCESS_BOUNDS: RequestBounds = { asking: 256, waiting: 1_000 };
/** In a worker the runtime has a bound for each request, and a request may end without giving its place back. */
export const UNBOUNDED: RequestBounds = { asking: Infinity, waiting: Infinity };
/** The most calls that wait for a place. A further one fails at once, as if it had not been answered. */
export const MAX_QUEUED = 10_000;
/** What the console is told of those. */
export const QUEUE_FULL = `${MAX_QUEUED} calls wait to be sent, which is the most`;

/** For how long somebody waits for an answer. */
export interface Waiting {
  /** Aborted when nobody waits any more. Absent: that is after `withinMs`. */
  readonly ended?: Signal | undefined;
  readonly withinMs?: number | undefined;
  /** A late answer is of no use. */
  readonly isOnlyRead?: boolean;
  /** The limiter may let the call wait for its turn. */
  readonly isPatient?: boolean;
}

/** The requests of one limiter. */
export class Requests {
  /** Those that nobody waits for. */
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
      if (this.#late.size < MAX_LATE) break;
      this.#late.delete(oldest);
    }
    this.#late.add(request);
  }
}

/** Lets so many in at a time, in the order in which they came. */
class Places {
  #free: number;
  readonly #queued = new Set<() => void>();

  constructor(places: number) {
    this.#free = places;
  }

  /** @throws Error the reason of `signal`, or that too many wait; then nothing has to be left */
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
