import { tokenBucket, type TokenBucketState } from "../core/algorithms/token-bucket.ts";
/**
 * What an isolate or a process admits of a key by itself while the level beneath is away (`onFailure = { limit, window }`):
 * a token bucket of its own for each key, which begins full. So n isolates admit at most n times as much.
 */
import { normaliseKey } from "../core/catalog/keys.ts";
import { type Cost, costOf, type PolicyView } from "../core/policies/policy.ts";
import { type Decision, degradedDecision } from "../core/protocol/decision.ts";
import { isKeySized } from "../core/protocol/names.ts";

/** Of more keys the one that came least recently is forgotten, and begins with its whole limit again. */
export const MAX_FAILURE_KEYS = 10_000;

export class FailureLimits {
  readonly #states = new Map<string, TokenBucketState>();
  readonly #maxKeys: number;

  constructor(maxKeys = MAX_FAILURE_KEYS) {
    this.#maxKeys = maxKeys;
  }

  /** The decision on a call that nothing beneath has answered. */
  decide(policy: PolicyView, key: string, cost: Cost, nowMs: number): Decision {
    const degraded = degradedDecision(policy, key);
    const { failureLimit, shadow } = policy;
    if (failureLimit === undefined) return degraded;
    const { limit, windowMs } = failureLimit;
    // In a process nobody else has checked the call, and the key may be an address.
    const isCost = typeof cost === "number" || (typeof cost === "object" && (cost as unknown) !== null);
    const units = isCost ? Math.max(...policy.rules.map((rule) => costOf(rule, cost))) : -1;
    const own = typeof key === "string" && isKeySized(key) ? normaliseKey(policy, key) : undefined;
    if (own === undefined || !Number.isInteger(units) || units < 0) return degraded;
    const name = `${policy.name}/${own}`;
    const before = this.#states.get(name);
    const decided = tokenBucket.decide({ limit, windowMs, burst: limit }, before, nowMs, units, 0);
    const { allowed, remaining, resetAfterMs } = decided;
    this.#keep(name, allowed ? decided.state : before);
    const retryAfterMs = allowed || shadow ? 0 : decided.retryAfterMs;
    return { ...degraded, success: allowed || shadow, limit, remaining, resetAfterMs, retryAfterMs };
  }

  #keep(name: string, state: TokenBucketState | undefined): void {
    this.#states.delete(name);
    if (state === undefined) return;
    this.#states.set(name, state);
    for (const oldest of this.#states.keys()) {
      if (this.#states.size <= this.#maxKeys) break;
      this.#states.delete(oldest);
    }
  }
}
