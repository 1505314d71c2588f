import {
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
} from "../core/algorithms/token-bucket.ts";
import type { Time } from "../core/clock.ts";
import type { CallerBounds, Policy, PolicyView } from "../core/policies/policy.ts";
import type { BatchedCall, MadeAnswer } from "../core/protocol/messages.ts";
import { hash, objectName } from "../core/protocol/names.ts";
import { full, type Full, type Problem } from "../core/protocol/problems.ts";
import type { Objects } from "./transports/objects.ts";

/** The burst of new keys, in seconds of their rate: an isolate that starts knows none. */
const BURST_SECONDS = 10;
/** Recent keys are remembered by their hashes: 64 KiB. Two keys in one slot count as new again. */
const RECENT_KEYS = 2 ** 14;

/**
 * What a call does to an object. `ask`: it is answered at once. `end`: it ends a claim and proves it, as a release does;
 * twice as many of these may be under way, because they make room, and a flood of other calls keeps none of them from
 * starting its object. `return`: it gives units back, and has that room too, but an object that has to be started for it
 * has none of them. `wait`: it may wait for units, and the object has its own bounds for that.
 */
export type CallKind = "ask" | "end" | "return" | "wait";

/**
 * A call under way. Its request may end first (its client leaves), and then none of its code runs any more: from
 * `goneAtMs` on, after its deadline, it does not count.
 */
interface EnteredCall {
  readonly goneAtMs: number;
}
/** How much longer than its deadline a call that waits for others on several keys may take, in milliseconds. */
const LATE_MS = 1_000;

/** Lets the calls of one caller through to the objects, as many as its bounds allow. */
export class CallGate {
  readonly #bounds: CallerBounds;
  readonly #newKeyRate: TokenBucketConfig;
  /** By the object's name: the calls under way, in order of arrival. */
  readonly #waiting = new Map<string, Set<EnteredCall>>();
  readonly #recentKeys = new Int32Array(RECENT_KEYS);
  readonly #starts: ObjectStarts | undefined;
  readonly #caller = newCaller();
  #newKeys: TokenBucketState | undefined;

  /** @param starts present where all objects are in one process; it counts the calls of all callers */
  constructor(bounds: CallerBounds, starts?: ObjectStarts) {
    this.#bounds = bounds;
    this.#starts = starts;
    const limit = bounds.maxNewKeysPerSecond;
    this.#newKeyRate = { limit, windowMs: 1_000, burst: limit * BURST_SECONDS };
  }

  /** Lets one call through. Returns the bound that is reached, or a function to call after the answer. */
  enter(policy: PolicyView, key: string, nowMs: number, kind: CallKind): Full | (() => void) {
    const object = objectName(policy, key);
    if (kind !== "wait" && this.#isFull(object, kind, nowMs))
      return full("caller-calls", this.#bounds.maxCallsAtOnce);
    if (!this.#isKnown(policy, key, nowMs)) return full("caller-new-keys", this.#bounds.maxNewKeysPerSecond);
    const lane = kind === "end" ? "end" : "ask";
    const started = this.#starts?.enter(object, policy.deadlineMs, nowMs, this.#caller, lane);
    if (started !== undefined && "full" in started) return started;
    const leave = kind === "wait" ? undefined : this.#letIn(object, policy, nowMs);
    return () => {
      started?.();
      leave?.();
    };
  }

  /** The same for a call on an object, and not on a key. */
  enterObject(object: string, policy: PolicyView, nowMs: number): Full | (() => void) {
    if (this.#isFull(object, "ask", nowMs)) return full("caller-calls", this.#bounds.maxCallsAtOnce);
    return this.#letIn(object, policy, nowMs);
  }

  #isFull(object: string, kind: CallKind, nowMs: number): boolean {
    const waiting = this.#waiting.get(object);
    const isEnd = kind === "end" || kind === "return";
    const maxCalls = (isEnd ? 2 : 1) * this.#bounds.maxCallsAtOnce;
    if (waiting === undefined || waiting.size < maxCalls) return false;
    for (const entered of waiting) {
      if (entered.goneAtMs > nowMs) break;
      waiting.delete(entered);
    }
    return waiting.size >= maxCalls;
  }

  #letIn(object: string, { deadlineMs }: PolicyView, nowMs: number): () => void {
    const waiting = this.#waiting.get(object) ?? new Set();
    this.#waiting.set(object, waiting);
    const entered = { goneAtMs: nowMs + deadlineMs + LATE_MS };
    waiting.add(entered);
    return () => {
      waiting.delete(entered);
      if (waiting.size === 0 && this.#waiting.get(object) === waiting) this.#waiting.delete(object);
    };
  }

  /** Whether the key came recently, or one more new key may come. From now on it is known. */
  #isKnown(policy: PolicyView, key: string, nowMs: number): boolean {
    const mark = hash(`${policy.name}/${key}`) | 0;
    const slot = mark & (RECENT_KEYS - 1);
    if (this.#recentKeys[slot] === mark) return true;
    const decision = tokenBucket.decide(this.#newKeyRate, this.#newKeys, nowMs, 1, 0);
    if (!decision.allowed) return false;
    this.#newKeys = decision.state;
    this.#recentKeys[slot] = mark;
    return true;
  }
}

/** Makes a call through a caller's gate, if it has one. At a bound the call is not made. */
export async function through<Answer>(
  gate: CallGate | undefined,
  policy: PolicyView,
  key: string,
  nowMs: number,
  call: () => Promise<Answer>,
  kind: CallKind = "ask",
): Promise<Answer | Full> {
  const leave = gate?.enter(policy, key, nowMs, kind);
  if (leave !== undefined && "full" in leave) return leave;
  try {
    return await call();
  } finally {
    leave?.();
  }
}

/** How many objects one process can have, where all of them are in it: as on plain workerd, and not on Cloudflare. */
export interface ObjectBounds {
  /** The most that start at once. Each start waits for the disk, and so do all requests on the same thread. */
  readonly startsAtOnce: number;
  /** The most in memory, each with three open files. workerd ends when there are no more files to open. */
  readonly inMemory: number;
}

/** workerd (1.20261023.1) drops an object 10 s after its last call, and some time passes until it does. */
const IN_MEMORY_MS = 12_000;
/** How long after its deadline a start counts whose request has gone, in milliseconds. */
const LATE_START_MS = 1_000;

/**
 * After `startsAtOnce` starts no further one begins for this time, in milliseconds. workerd sends answers only when it has
 * made all calls that came before. Without the pause, 1,600 of 3,000 simultaneous calls started an object one after the
 * other, and there was no answer for 11 s (tried on a disk).
 */
const PAUSE_MS = 500;

/**
 * This part of both bounds is kept: of the objects in memory for calls that end something, and for callers that have fewer
 * than are left of it; of the starts for such callers too, in addition. So a flood does not keep others out. A single
 * caller may have all but that.
 */
const KEPT_SHARE = 1 / 8;

/** Calls that end something have starts of their own, so a flood of other calls does not use them up. */
type Lane = "ask" | "end";

interface Starts {
  /** By the object's name: until when its start counts, and the caller that began it. */
  readonly underWay: Map<string, { readonly goneAtMs: number; readonly caller: CallerLoad }>;
  fullSinceMs: number;
}

/** What one caller uses of both bounds. */
interface CallerLoad {
  /** Objects in memory that it was the last to call. */
  objects: number;
  /** Starts that are under way. */
  starts: number;
  /** When it began the last one. */
  startedMs: number;
}

/** A caller that has started nothing. */
export const newCaller = (): CallerLoad => ({ objects: 0, starts: 0, startedMs: -Infinity });

/** The objects that calls of this process have started. Calls to one in memory, or that starts already, are let through. */
export class ObjectStarts {
  readonly #bounds: ObjectBounds;
  /** By the object's name: its last call and caller. The one called longest ago is first. */
  readonly #recent = new Map<string, { readonly atMs: number; readonly caller: CallerLoad }>();
  readonly #lanes: Readonly<Record<Lane, Starts>> = {
    ask: { underWay: new Map(), fullSinceMs: -Infinity },
    end: { underWay: new Map(), fullSinceMs: -Infinity },
  };

  constructor(bounds: ObjectBounds) {
    this.#bounds = bounds;
  }

  /**
   * Lets a call through to an object. Returns the bound that is reached, or a function to call after the answer.
   *
   * @param caller always the same object for one caller
   */
  enter(
    object: string,
    deadlineMs: number,
    nowMs: number,
    caller: CallerLoad,
    lane: Lane = "ask",
  ): Full | (() => void) {
    const starts = this.#lanes[lane];
    this.#forget(starts, nowMs);
    const isThere = this.#recent.has(object);
    const reached = isThere ? undefined : this.#reached(starts, caller, nowMs, lane);
    if (reached !== undefined) return reached;
    this.#dropRecent(object);
    this.#recent.set(object, { atMs: nowMs, caller });
    caller.objects += 1;
    if (isThere) return () => undefined;
    this.#dropStart(starts, object);
    starts.underWay.set(object, { goneAtMs: nowMs + deadlineMs + LATE_START_MS, caller });
    caller.starts += 1;
    caller.startedMs = nowMs;
    if (starts.underWay.size >= this.#bounds.startsAtOnce) starts.fullSinceMs = nowMs;
    return () => this.#dropStart(starts, object);
  }

  /** The bound that one more start of this caller would pass; `undefined`: none. */
  #reached(
    { underWay, fullSinceMs }: Starts,
    caller: CallerLoad,
    nowMs: number,
    lane: Lane,
  ): Full | undefined {
    const { startsAtOnce, inMemory } = this.#bounds;
    const isWithin = (sinceMs: number) => nowMs >= sinceMs && nowMs - sinceMs < PAUSE_MS;
    const isPaused = isWithin(fullSinceMs) && isWithin(caller.startedMs);
    const maxStarts = startsAtOnce + Math.floor(startsAtOnce * KEPT_SHARE);
    const hasStart =
      (underWay.size < startsAtOnce && !isWithin(fullSinceMs)) ||
      (!isPaused && caller.starts < maxStarts - underWay.size);
    if (!hasStart) return full("object-starts", startsAtOnce);
    const maxForAll = inMemory - Math.floor(inMemory * KEPT_SHARE);
    const { size } = this.#recent;
    if (size < maxForAll || (size < inMemory && (lane === "end" || caller.objects < inMemory - size)))
      return undefined;
    return full("objects-in-memory", lane === "end" ? inMemory : maxForAll);
  }

  #forget({ underWay }: Starts, nowMs: number): void {
    for (const [object, { atMs }] of this.#recent) {
      if (atMs <= nowMs && nowMs - atMs < IN_MEMORY_MS) break;
      this.#dropRecent(object);
    }
    if (underWay.size < this.#bounds.startsAtOnce) return;
    for (const [object, { goneAtMs }] of underWay)
      if (goneAtMs <= nowMs) this.#dropStart({ underWay }, object);
  }

  #dropRecent(object: string): void {
    const known = this.#recent.get(object);
    if (known === undefined) return;
    known.caller.objects -= 1;
    this.#recent.delete(object);
  }

  #dropStart({ underWay }: Pick<Starts, "underWay">, object: string): void {
    const known = underWay.get(object);
    if (known === undefined) return;
    known.caller.starts -= 1;
    underWay.delete(object);
  }
}

/** Where units come from: the objects themselves, or a remote limiter. */
export interface UnitSource {
  /** Makes a call; `undefined`: there is no answer. A remote limiter may refuse the call. */
  call<Read extends MadeAnswer>(
    policy: PolicyView,
    key: string,
    call: BatchedCall,
    waitMs?: number,
  ): Promise<{ readonly answer: Read } | Problem | undefined>;
  /** The most messages at once that give units back. Absent: there is no bound. */
  readonly mostAtOnce?: number;
}

/** What each request needs to decide from units that are held. */
export interface Holding {
  readonly objects: UnitSource;
  readonly time: Time;
  /** Present when the calls of this caller are bounded. */
  readonly gate?: CallGate;
  /** The runtime's `waitUntil`: the work goes on after the answer. */
  readonly inBackground: (work: Promise<unknown>) => void;
}

/**
 * Reports each later version of a key's policy that comes into force, until the returned function is called: an object
 * at which a call waits would not learn of it otherwise.
 */
export type Follow = (policy: Policy, key: string, tell: (now: Policy) => void) => () => void;

/** What each request needs. */
export interface Caller extends Holding {
  readonly objects: Objects;
  /** Present where policies change at run time. */
  readonly follow?: Follow;
  /** The caller, as JSON text that no other caller has; absent: calls have no caller. */
  readonly callerId?: string;
  /** The calls end claims by an id that proves nothing: they have no more room than calls on a new key. */
  readonly isDoubted?: boolean;
}
