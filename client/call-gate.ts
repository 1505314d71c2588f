import {
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
} from "../core/algorithms/token-bucket.ts";
import type { Time } from "../core/clock.ts";
import type { CallerBounds, LocationHint, Policy, PolicyView } from "../core/policies/policy.ts";
import type { BatchedCall, MadeAnswer } from "../core/protocol/messages.ts";
import { hash, objectName } from "../core/protocol/names.ts";
import { full, type Full, type Problem } from "../core/protocol/problems.ts";
import type { Counter } from "../core/stats/tally.ts";
import { boundReached } from "./read-answer.ts";
import type { Objects } from "./transports/objects.ts";

/** Seconds of the new-key rate that may come at once: an isolate that starts knows no keys. */
const BURST_SECONDS = 10;
/** Recent keys are remembered by their hashes: 64 KiB. Two keys in one slot count as new again. */
const RECENT_KEYS = 2 ** 14;

/**
 * Bounds by use of an object. `end`: proves and ends a claim, so twice as many may be under way. `return`:
 * the same bound, but it may not start an object. `wait`: the object itself bounds these. `ask`: all others.
 */
export type CallKind = "ask" | "end" | "return" | "wait";

/** Code of an ended request never runs, so a call stops counting at `goneAtMs`, after its deadline. */
interface EnteredCall {
  readonly goneAtMs: number;
}
/** Milliseconds after its deadline for which a start, or a call that waits on several keys, still counts. */
const LATE_MS = 1_000;

/** Bounds the calls of one caller to the objects. */
export class CallGate {
  readonly #bounds: CallerBounds;
  readonly #newKeyRate: TokenBucketConfig;
  readonly #waiting = new Map<string, Set<EnteredCall>>();
  readonly #recentKeys = new Int32Array(RECENT_KEYS);
  readonly #starts: ObjectStartLimit | undefined;
  readonly #caller = newCaller();
  #newKeys: TokenBucketState | undefined;

  /** @param starts present where all objects are in one process; it counts the calls of all callers */
  constructor(bounds: CallerBounds, starts?: ObjectStartLimit) {
    this.#bounds = bounds;
    this.#starts = starts;
    const limit = bounds.maxNewKeysPerSecond;
    this.#newKeyRate = { limit, windowMs: 1_000, burst: limit * BURST_SECONDS };
  }

  /** Admits one call. Returns the bound that is reached, or a function to call after the answer. */
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

  /** Asks the key's object, unless a bound is reached. */
  ask<Answer>(
    policy: PolicyView,
    key: string,
    nowMs: number,
    call: () => Promise<Answer>,
  ): Promise<Answer | Problem> {
    return through(this.enter(policy, key, nowMs, "ask"), call);
  }

  /** Whether a call of any kind on the key would be let in: none of the bounds that kinds differ in is near. */
  hasRoom(policy: PolicyView, key: string, nowMs: number): boolean {
    const object = objectName(policy, key);
    return !this.#isFull(object, "ask", nowMs) && this.#starts?.isStarted(object, nowMs) !== false;
  }

  /** `enter` for a call on an object instead of a key. */
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

  /** Whether the key is recent, or one more new key is within the rate. Remembers the key. */
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

/** Makes a call that a gate has admitted. At a bound it is not made. @param entered absent: there is no gate */
export async function through<Answer>(
  entered: Full | (() => void) | undefined,
  call: () => Promise<Answer>,
): Promise<Answer | Problem> {
  if (entered !== undefined && "full" in entered) return boundReached(entered);
  try {
    return await call();
  } finally {
    entered?.();
  }
}

/** Bounds on objects where all run in one process: on plain workerd, not on Cloudflare. */
export interface ObjectBounds {
  /** The most simultaneous starts. Each waits for the disk, which blocks all requests on the thread. */
  readonly startsAtOnce: number;
  /** The most in memory, with three open files each. workerd exits at its limit of open files. */
  readonly inMemory: number;
}

/** workerd (1.20261023.1) drops an object 10 s after its last call, with some delay. */
const IN_MEMORY_MS = 12_000;

/**
 * Milliseconds after `startsAtOnce` starts: without it, 1,600 of 3,000 simultaneous calls started objects in
 * turn, and workerd, which sends answers after all earlier calls, sent none for 11 s.
 */
const PAUSE_MS = 500;

/** This part of both bounds is reserved for `end` calls and light callers, against floods of one caller. */
const KEPT_SHARE = 1 / 8;

/** `end` calls have separate starts, so a flood of other calls cannot use them up. */
type Lane = "ask" | "end";

interface Starts {
  /** By object name: when its start stops counting, and the caller that began it. */
  readonly underWay: Map<string, { readonly goneAtMs: number; readonly caller: CallerLoad }>;
  fullSinceMs: number;
}

interface CallerLoad {
  objects: number;
  starts: number;
  startedMs: number;
}

export const newCaller = (): CallerLoad => ({ objects: 0, starts: 0, startedMs: -Infinity });

/** The objects that this process has started. Calls to those in memory, or already starting, pass. */
export class ObjectStartLimit {
  readonly #bounds: ObjectBounds;
  /** By object name: its last call and caller, least recent first. */
  readonly #recent = new Map<string, { readonly atMs: number; readonly caller: CallerLoad }>();
  readonly #lanes: Readonly<Record<Lane, Starts>> = {
    ask: { underWay: new Map(), fullSinceMs: -Infinity },
    end: { underWay: new Map(), fullSinceMs: -Infinity },
  };

  constructor(bounds: ObjectBounds) {
    this.#bounds = bounds;
  }

  /** Admits a call to an object, as `CallGate.enter`. @param caller the identical object for a caller */
  enter(
    object: string,
    deadlineMs: number,
    nowMs: number,
    caller: CallerLoad,
    lane: Lane = "ask",
  ): Full | (() => void) {
    const starts = this.#lanes[lane];
    this.#forget(nowMs);
    const isThere = this.#recent.has(object);
    const reached = isThere ? undefined : this.#reached(lane, caller, nowMs);
    if (reached !== undefined) return reached;
    this.#dropRecent(object);
    this.#recent.set(object, { atMs: nowMs, caller });
    caller.objects += 1;
    if (isThere) return () => undefined;
    this.#dropStart(starts, object);
    starts.underWay.set(object, { goneAtMs: nowMs + deadlineMs + LATE_MS, caller });
    caller.starts += 1;
    caller.startedMs = nowMs;
    if (starts.underWay.size >= this.#bounds.startsAtOnce) starts.fullSinceMs = nowMs;
    return () => this.#dropStart(starts, object);
  }

  /** Whether the object is in memory, or about to be: a call to it is no start. */
  isStarted(object: string, nowMs: number): boolean {
    const known = this.#recent.get(object);
    return known !== undefined && known.atMs <= nowMs && nowMs - known.atMs < IN_MEMORY_MS;
  }

  #reached(lane: Lane, caller: CallerLoad, nowMs: number): Full | undefined {
    const { underWay, fullSinceMs } = this.#lanes[lane];
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

  #forget(nowMs: number): void {
    for (const [object, { atMs }] of this.#recent) {
      if (atMs <= nowMs && nowMs - atMs < IN_MEMORY_MS) break;
      this.#dropRecent(object);
    }
    for (const { underWay } of [this.#lanes.ask, this.#lanes.end])
      for (const [object, { goneAtMs }] of underWay.size < this.#bounds.startsAtOnce ? [] : underWay)
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

/** The source of units: the objects, or a remote limiter. */
export interface UnitSource {
  /** Makes a call; `undefined`: no answer. A remote limiter may refuse the call. */
  call<Read extends MadeAnswer>(
    policy: PolicyView,
    key: string,
    call: BatchedCall,
    waitMs?: number,
    region?: LocationHint,
  ): Promise<{ readonly answer: Read } | Problem | undefined>;
  /** Notes a call without an answer that has sent no message: it waited for another one's. */
  unanswered(policy: PolicyView): undefined;
  /** The most simultaneous messages that give units back. Absent: no bound. */
  readonly mostAtOnce?: number;
}

export interface Holding {
  readonly objects: UnitSource;
  readonly time: Time;
  readonly gate?: CallGate;
  /** Where the holder is. `undefined`: unknown, so it asks the home object of each key. */
  readonly region?: () => LocationHint | undefined;
  readonly inBackground: (work: Promise<unknown>) => void;
}

/** Reports later versions of a key's policy to a waiting call, until the returned function is called. */
export type Follow = (policy: Policy, key: string, tell: (now: Policy) => void) => () => void;

export interface ClientContext extends Holding {
  readonly objects: Objects;
  /** Counts the leases that isolates grant by themselves. */
  readonly counter?: Pick<Counter, "add"> | undefined;
  /** Present where policies change at run time. */
  readonly follow?: Follow;
  /** JSON text unique to the caller; absent: calls have no caller. */
  readonly callerId?: string;
  /** The calls end claims by an unproven id, so they are bounded like calls on a new key. */
  readonly isDoubted?: boolean;
}
