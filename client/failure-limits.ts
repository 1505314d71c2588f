/**
 * What an isolate or a process admits of a key by itself while the level beneath is away (`onFailure = { limit, window }`):
 * a token bucket of its own for each key, which begins full. So n isolates admit at most n times as much.
 */
import { normaliseKey } from "../core/catalog/keys.ts";
import { type Cost, costOf, type PolicyView } from "../core/policies/policy.ts";
import { type Decision, degradedDecision } from "../core/protocol/decision.ts";
import { isKeySized } from "../core/protocol/names.ts";

/** Of more keys the one that came least recently is forgotten, and begins with its whole limit again. */
const MAX_FAILURE_KEYS = 10_000;

/** In parts, as core/algorithms/token-bucket.ts, which would be a tenth of the client: a unit is `windowMs` of them. */
interface Level {
  readonly spent: number;
  readonly atMs: number;
}

export class FailureLimits {
  readonly #levels = new Map<string, Level>();
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
    const name = `${limit}/${windowMs}/${policy.name}/${own}`;
    const before = this.#levels.get(name) ?? { spent: 0, atMs: nowMs };
    const atMs = Math.max(nowMs, before.atMs);
    const spent = Math.max(0, before.spent - limit * (atMs - before.atMs));
    const over = spent + (units - limit) * windowMs;
    const isAdmitted = units === 0 || over <= 0;
    const after = isAdmitted ? spent + units * windowMs : spent;
    this.#keep(name, after === 0 ? undefined : { spent: after, atMs });
    const success = isAdmitted || shadow;
    return {
      ...degraded,
      success,
      limit,
      remaining: Math.floor((limit * windowMs - after) / windowMs),
      resetAfterMs: Math.ceil(after / limit),
      retryAfterMs: success ? 0 : units > limit ? null : atMs - nowMs + Math.ceil(over / limit),
    };
  }

  #keep(name: string, level: Level | undefined): void {
    this.#levels.delete(name);
    if (level === undefined) return;
    this.#levels.set(name, level);
    for (const oldest of this.#levels.keys()) {
      if (this.#levels.size <= this.#maxKeys) break;
      this.#levels.delete(oldest);
    }
  }
}
