import {
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
} from "../core/algorithms/token-bucket.ts";
import type { CallerBounds } from "../core/policies/caller-bounds.ts";
import type { Policy } from "../core/policies/policy.ts";
import { full, type Full } from "../core/protocol/bounds.ts";
import { hash } from "../core/protocol/hash.ts";
import { objectName } from "./transports/object-names.ts";

/** New keys may come so many seconds' worth at once: an isolate that starts knows none. */
const BURST_SECONDS = 10;
/** Keys that are remembered as asked for lately, by their hashes: 64 KiB. Two keys in one place count as new again. */
const PLACES = 2 ** 14;

/**
 * What a call does to an object. `ask`: it is answered at once. `end`: it ends what the caller has, as a release does;
 * of those twice as many may wait for their answer, because they make room. `wait`: it may wait for units, and the
 * object has its own bounds for that.
 */
export type CallKind = "ask" | "end" | "wait";

/** Lets the calls of one caller through to the objects, as many as its bounds allow. */
export class CallGate {
  readonly #bounds: CallerBounds;
  readonly #newKeyRate: TokenBucketConfig;
  /** By the object's name: how many calls wait for its answer. */
  readonly #waiting = new Map<string, number>();
  readonly #lately = new Int32Array(PLACES);
  #newKeys: TokenBucketState | undefined;

  constructor(bounds: CallerBounds) {
    this.#bounds = bounds;
    const limit = bounds.maxNewKeysPerSecond;
    this.#newKeyRate = { limit, windowMs: 1_000, burst: limit * BURST_SECONDS };
  }

  /** Lets one call through. Returns the bound that is reached, or a function to call when the object has answered. */
  enter(policy: Policy, key: string, nowMs: number, kind: CallKind): Full | (() => void) {
    const object = objectName(policy, key);
    if (kind !== "wait" && this.#isFull(object, kind))
      return full("caller-calls", this.#bounds.maxCallsAtOnce);
    if (!this.#isKnown(policy, key, nowMs)) return full("caller-new-keys", this.#bounds.maxNewKeysPerSecond);
    return kind === "wait" ? () => undefined : this.#letIn(object);
  }

  /** The same for a call on an object that is about no key. */
  enterObject(object: string): Full | (() => void) {
    if (this.#isFull(object, "ask")) return full("caller-calls", this.#bounds.maxCallsAtOnce);
    return this.#letIn(object);
  }

  #isFull(object: string, kind: CallKind): boolean {
    return (this.#waiting.get(object) ?? 0) >= (kind === "end" ? 2 : 1) * this.#bounds.maxCallsAtOnce;
  }

  #letIn(object: string): () => void {
    this.#waiting.set(object, (this.#waiting.get(object) ?? 0) + 1);
    return () => this.#leave(object);
  }

  /** Whether the key was asked for lately, or one more new key may come. From now on it is known. */
  #isKnown(policy: Policy, key: string, nowMs: number): boolean {
    const mark = hash(`${policy.name}/${key}`) | 0;
    const place = mark & (PLACES - 1);
    if (this.#lately[place] === mark) return true;
    const decision = tokenBucket.decide(this.#newKeyRate, this.#newKeys, nowMs, 1, 0);
    if (!decision.allowed) return false;
    this.#newKeys = decision.state;
    this.#lately[place] = mark;
    return true;
  }

  #leave(object: string): void {
    const waiting = (this.#waiting.get(object) ?? 1) - 1;
    if (waiting === 0) this.#waiting.delete(object);
    else this.#waiting.set(object, waiting);
  }
}

/** Makes a call through a caller's gate, if it has one. At a bound the call is not made. */
export async function through<Answer>(
  gate: CallGate | undefined,
  policy: Policy,
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
