import { full, type Full } from "../core/protocol/bounds.ts";

/** How many objects one process can have, where all of them are in it: as on plain workerd, and not on Cloudflare. */
export interface ObjectBounds {
  /** The most that start at once. Each start waits for the disk, and so does whoever is served by the same thread. */
  readonly startsAtOnce: number;
  /** The most that are in memory, each with three open files. workerd ends when there are no more files to open. */
  readonly inMemory: number;
}

/** workerd (1.20261023.1) drops an object 10 s after its last call. It takes a moment to see that. In milliseconds. */
const IN_MEMORY_MS = 12_000;
/** A start counts for so long after its deadline, when the request that began it has gone. In milliseconds. */
const LATE_MS = 1_000;

/**
 * When so many start at once as may, no further one starts for so long, in milliseconds. workerd sends answers only when
 * it has made all calls that came before. Without the pause, 1,600 of 3,000 calls that came at once started an object one
 * after the other, and nobody was answered for 11 s (tried on a disk).
 */
const PAUSE_MS = 500;

/** The objects that calls of this process have started. Calls to one that is there, or starts already, are let through. */
export class ObjectStarts {
  readonly #bounds: ObjectBounds;
  /** By the object's name: when it was last called. The one called longest ago is first. */
  readonly #lately = new Map<string, number>();
  /** By the object's name: from when on its start does not count any more, whoever has begun it. */
  readonly #starting = new Map<string, number>();
  #fullSinceMs = -Infinity;

  constructor(bounds: ObjectBounds) {
    this.#bounds = bounds;
  }

  /** Lets a call through to an object. Returns the bound that is reached, or a function to call when it was answered. */
  enter(object: string, deadlineMs: number, nowMs: number): Full | (() => void) {
    this.#forget(nowMs);
    const { startsAtOnce, inMemory } = this.#bounds;
    const isThere = this.#lately.delete(object);
    if (!isThere && this.#isFull(nowMs)) return full("object-starts", startsAtOnce);
    if (!isThere && this.#lately.size >= inMemory) return full("objects-in-memory", inMemory);
    this.#lately.set(object, nowMs);
    if (isThere) return () => undefined;
    this.#starting.set(object, nowMs + deadlineMs + LATE_MS);
    if (this.#starting.size >= startsAtOnce) this.#fullSinceMs = nowMs;
    return () => this.#starting.delete(object);
  }

  #isFull(nowMs: number): boolean {
    // The clock may have been set back meanwhile.
    const isPaused = nowMs >= this.#fullSinceMs && nowMs - this.#fullSinceMs < PAUSE_MS;
    return isPaused || this.#starting.size >= this.#bounds.startsAtOnce;
  }

  #forget(nowMs: number): void {
    for (const [object, atMs] of this.#lately) {
      if (atMs <= nowMs && nowMs - atMs < IN_MEMORY_MS) break;
      this.#lately.delete(object);
    }
    if (this.#starting.size < this.#bounds.startsAtOnce) return;
    for (const [object, goneAtMs] of this.#starting) if (goneAtMs <= nowMs) this.#starting.delete(object);
  }
}
