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

/**
 * This part of both bounds is kept: of the objects in memory for calls that end something, and for callers that have fewer
 * than are left of it; of the starts for such callers too, in addition. So a flood keeps nobody else out. A caller alone
 * may have all but that.
 */
const KEPT_SHARE = 1 / 8;

/** Calls that end something start objects beside all others, so that a flood of those keeps no slot taken. */
type Lane = "ask" | "end";

/** The starts of one lane. */
interface Starts {
  /** By the object's name: from when on its start does not count any more, whoever has begun it, and who has. */
  readonly underWay: Map<string, { readonly goneAtMs: number; readonly caller: Caller }>;
  fullSinceMs: number;
}

/** What one caller has of both bounds. */
export interface Caller {
  /** Objects in memory that it was the last to call. */
  objects: number;
  /** Starts that are under way. */
  starts: number;
  /** When it began the last one. */
  startedMs: number;
}

/** A caller that has started nothing. */
export const newCaller = (): Caller => ({ objects: 0, starts: 0, startedMs: -Infinity });

/** The objects that calls of this process have started. Calls to one that is there, or starts already, are let through. */
export class ObjectStarts {
  readonly #bounds: ObjectBounds;
  /** By the object's name: when it was last called, and by whom. The one called longest ago is first. */
  readonly #lately = new Map<string, { readonly atMs: number; readonly caller: Caller }>();
  readonly #lanes: Readonly<Record<Lane, Starts>> = {
    ask: { underWay: new Map(), fullSinceMs: -Infinity },
    end: { underWay: new Map(), fullSinceMs: -Infinity },
  };

  constructor(bounds: ObjectBounds) {
    this.#bounds = bounds;
  }

  /**
   * Lets a call through to an object. Returns the bound that is reached, or a function to call when it was answered.
   *
   * @param caller who calls: always the same object for one caller
   */
  enter(
    object: string,
    deadlineMs: number,
    nowMs: number,
    caller: Caller,
    lane: Lane = "ask",
  ): Full | (() => void) {
    const starts = this.#lanes[lane];
    this.#forget(starts, nowMs);
    const isThere = this.#lately.has(object);
    const reached = isThere ? undefined : this.#reached(starts, caller, nowMs, lane);
    if (reached !== undefined) return reached;
    this.#dropLately(object);
    this.#lately.set(object, { atMs: nowMs, caller });
    caller.objects += 1;
    if (isThere) return () => undefined;
    this.#dropStart(starts, object);
    starts.underWay.set(object, { goneAtMs: nowMs + deadlineMs + LATE_MS, caller });
    caller.starts += 1;
    caller.startedMs = nowMs;
    if (starts.underWay.size >= this.#bounds.startsAtOnce) starts.fullSinceMs = nowMs;
    return () => this.#dropStart(starts, object);
  }

  /** The bound that one more start of this caller would pass; `undefined`: none. */
  #reached({ underWay, fullSinceMs }: Starts, caller: Caller, nowMs: number, lane: Lane): Full | undefined {
    const { startsAtOnce, inMemory } = this.#bounds;
    const isWithin = (sinceMs: number) => nowMs >= sinceMs && nowMs - sinceMs < PAUSE_MS;
    const isPaused = isWithin(fullSinceMs) && isWithin(caller.startedMs);
    const mostStarts = startsAtOnce + Math.floor(startsAtOnce * KEPT_SHARE);
    const hasStart =
      underWay.size < startsAtOnce && !isWithin(fullSinceMs)
        ? true
        : !isPaused && caller.starts < mostStarts - underWay.size;
    if (!hasStart) return full("object-starts", startsAtOnce);
    const mostAsked = inMemory - Math.floor(inMemory * KEPT_SHARE);
    const { size } = this.#lately;
    if (size < mostAsked || (size < inMemory && (lane === "end" || caller.objects < inMemory - size)))
      return undefined;
    return full("objects-in-memory", lane === "end" ? inMemory : mostAsked);
  }

  #forget({ underWay }: Starts, nowMs: number): void {
    for (const [object, { atMs }] of this.#lately) {
      if (atMs <= nowMs && nowMs - atMs < IN_MEMORY_MS) break;
      this.#dropLately(object);
    }
    if (underWay.size < this.#bounds.startsAtOnce) return;
    for (const [object, { goneAtMs }] of underWay)
      if (goneAtMs <= nowMs) this.#dropStart({ underWay }, object);
  }

  #dropLately(object: string): void {
    const known = this.#lately.get(object);
    if (known === undefined) return;
    known.caller.objects -= 1;
    this.#lately.delete(object);
  }

  #dropStart({ underWay }: Pick<Starts, "underWay">, object: string): void {
    const known = underWay.get(object);
    if (known === undefined) return;
    known.caller.starts -= 1;
    underWay.delete(object);
  }
}
