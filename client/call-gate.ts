import {
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
} from "../core/algorithms/token-bucket.ts";
import type { CallerBounds } from "../core/policies/caller-bounds.ts";
import type { HeldPolicy } from "../core/policies/held-policy.ts";
import { full, type Full } from "../core/protocol/bounds.ts";
import { hash } from "../core/protocol/hash.ts";
import { objectName } from "../core/protocol/object-names.ts";
import { newCaller, type ObjectStarts } from "./object-starts.ts";

/** New keys may come so many seconds' worth at once: an isolate that starts knows none. */
const BURST_SECONDS = 10;
/** Keys that are remembered as asked for lately, by their hashes: 64 KiB. Two keys in one place count as new again. */
const PLACES = 2 ** 14;

/**
 * What a call does to an object. `ask`: it is answered at once. `end`: it ends what the caller has, as a release does, and
 * proves it; of those twice as many may wait for their answer, because they make room, and a flood of other calls keeps
 * none of them from starting its object. `return`: it gives units back, and has that room too, but an object that has to
 * be started for it knows nothing of them. `wait`: it may wait for units, and the object has its own bounds for that.
 */
export type CallKind = "ask" | "end" | "return" | "wait";

/**
 * A call that waits. Its request may end first (its client leaves), and then none of its code runs any more: from
 * `goneAtMs` on, long after its deadline, it does not count.
 */
interface Entered {
  readonly goneAtMs: number;
}
/** Some calls may take longer than their deadline: those that wait for others on several keys. In milliseconds. */
const LATE_MS = 1_000;

/** Lets the calls of one caller through to the objects, as many as its bounds allow. */
export class CallGate {
  readonly #bounds: CallerBounds;
  readonly #newKeyRate: TokenBucketConfig;
  /** By the object's name: the calls that wait for its answer, in order of arrival. */
  readonly #waiting = new Map<string, Set<Entered>>();
  readonly #lately = new Int32Array(PLACES);
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

  /** Lets one call through. Returns the bound that is reached, or a function to call when the object has answered. */
  enter(policy: HeldPolicy, key: string, nowMs: number, kind: CallKind): Full | (() => void) {
    const object = objectName(policy, key);
    if (kind !== "wait" && this.#isFull(object, kind, nowMs))
      return full("caller-calls", this.#bounds.maxCallsAtOnce);
    if (!this.#isKnown(policy, key, nowMs)) return full("caller-new-keys", this.#bounds.maxNewKeysPerSecond);
    const started = this.#starts?.enter(
      object,
      policy.deadlineMs,
      nowMs,
      this.#caller,
      kind === "end" ? "end" : "ask",
    );
    if (started !== undefined && "full" in started) return started;
    const leave = kind === "wait" ? undefined : this.#letIn(object, policy, nowMs);
    return () => {
      started?.();
      leave?.();
    };
  }

  /** The same for a call on an object that is about no key. */
  enterObject(object: string, policy: HeldPolicy, nowMs: number): Full | (() => void) {
    if (this.#isFull(object, "ask", nowMs)) return full("caller-calls", this.#bounds.maxCallsAtOnce);
    return this.#letIn(object, policy, nowMs);
  }

  #isFull(object: string, kind: CallKind, nowMs: number): boolean {
    const waiting = this.#waiting.get(object);
    const isEnd = kind === "end" || kind === "return";
    const most = (isEnd ? 2 : 1) * this.#bounds.maxCallsAtOnce;
    if (waiting === undefined || waiting.size < most) return false;
    for (const entered of waiting) {
      if (entered.goneAtMs > nowMs) break;
      waiting.delete(entered);
    }
    return waiting.size >= most;
  }

  #letIn(object: string, { deadlineMs }: HeldPolicy, nowMs: number): () => void {
    const waiting = this.#waiting.get(object) ?? new Set();
    this.#waiting.set(object, waiting);
    const entered = { goneAtMs: nowMs + deadlineMs + LATE_MS };
    waiting.add(entered);
    return () => {
      waiting.delete(entered);
      if (waiting.size === 0 && this.#waiting.get(object) === waiting) this.#waiting.delete(object);
    };
  }

  /** Whether the key was asked for lately, or one more new key may come. From now on it is known. */
  #isKnown(policy: HeldPolicy, key: string, nowMs: number): boolean {
    const mark = hash(`${policy.name}/${key}`) | 0;
    const place = mark & (PLACES - 1);
    if (this.#lately[place] === mark) return true;
    const decision = tokenBucket.decide(this.#newKeyRate, this.#newKeys, nowMs, 1, 0);
    if (!decision.allowed) return false;
    this.#newKeys = decision.state;
    this.#lately[place] = mark;
    return true;
  }
}

/** Makes a call through a caller's gate, if it has one. At a bound the call is not made. */
export async function through<Answer>(
  gate: CallGate | undefined,
  policy: HeldPolicy,
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
