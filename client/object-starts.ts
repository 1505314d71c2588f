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

/** Of the objects in memory, this part is kept for calls that end something. */
const KEPT_SHARE = 1 / 8;

/** Calls that end something start objects beside all others, so that a flood of those keeps no slot taken. */
type Lane = "ask" | "end";

/** The starts of one lane. */
interface Starts {
  /** By the object's name: from when on its start does not count any more, whoever has begun it. */
  readonly underWay: Map<string, number>;
  fullSinceMs: number;
}

/** The objects that calls of this process have started. Calls to one that is there, or starts already, are let through. */
export class ObjectStarts {
  readonly #bounds: ObjectBounds;
  /** By the object's name: when it was last called. The one called longest ago is first. */
  readonly #lately = new Map<string, number>();
  readonly #lanes: Readonly<Record<Lane, Starts>> = {
    ask: { underWay: new Map(), fullSinceMs: -Infinity },
    end: { underWay: new Map(), fullSinceMs: -Infinity },
  };

  constructor(bounds: ObjectBounds) {
    this.#bounds = bounds;
  }

  /** Lets a call through to an object. Returns the bound that is reached, or a function to call when it was answered. */
  enter(object: string, deadlineMs: number, nowMs: number, lane: Lane = "ask"): Full | (() => void) {
    const starts = this.#lanes[lane];
    this.#forget(starts, nowMs);
    const { startsAtOnce, inMemory } = this.#bounds;
    const most = lane === "end" ? inMemory : inMemory - Math.floor(inMemory * KEPT_SHARE);
    const isThere = this.#lately.delete(object);
    if (!isThere && this.#isFull(starts, nowMs)) return full("object-starts", startsAtOnce);
    if (!isThere && this.#lately.size >= most) return full("objects-in-memory", most);
    this.#lately.set(object, nowMs);
    if (isThere) return () => undefined;
    starts.underWay.set(object, nowMs + deadlineMs + LATE_MS);
    if (starts.underWay.size >= startsAtOnce) starts.fullSinceMs = nowMs;
    return () => starts.underWay.delete(object);
  }

  #isFull({ underWay, fullSinceMs }: Starts, nowMs: number): boolean {
    // The clock may have been set back meanwhile.
    const isPaused = nowMs >= fullSinceMs && nowMs - fullSinceMs < PAUSE_MS;
    return isPaused || underWay.size >= this.#bounds.startsAtOnce;
  }

  #forget({ underWay }: Starts, nowMs: number): void {
    for (const [object, atMs] of this.#lately) {
      if (atMs <= nowMs && nowMs - atMs < IN_MEMORY_MS) break;
      this.#lately.delete(object);
    }
    if (underWay.size < this.#bounds.startsAtOnce) return;
    for (const [object, goneAtMs] of underWay) if (goneAtMs <= nowMs) underWay.delete(object);
  }
}
