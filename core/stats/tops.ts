/** The top keys of all policies, of this hour and of the last one: older ones say nothing about now. */
import type { PolicyKeys, TopKeysAnswer, TopKeysCall } from "./messages.ts";
import { mergedKeys, NO_KEYS, type Summary } from "./top-keys.ts";

/** So many policies have top keys: of 64 keys each, four times, some 64,000 keys. */
export const MAX_TOPS = 250;
export const HOUR_MS = 3_600_000;

/** The top keys of one hour. Stored: never rename a field. */
interface OfHour {
  readonly denied: Summary;
  readonly active: Summary;
}

/** The top keys of a policy. Stored: never rename a field. */
export interface PolicyTops {
  /** Since 1970. */
  readonly hour: number;
  readonly now: OfHour;
  readonly before: OfHour;
}

/** Stored: never change the order. */
export type PolicyWithTops = readonly [policy: string, tops: PolicyTops];

const NONE: OfHour = { denied: NO_KEYS, active: NO_KEYS };

/** Keeps the top keys of policies. */
export class Tops {
  readonly #byPolicy: Map<string, PolicyTops>;
  readonly #changed: Set<string>;

  /** @param recent those that have changed since they were stored by themselves */
  constructor(stored: Iterable<PolicyWithTops> = [], recent: readonly PolicyWithTops[] = []) {
    this.#byPolicy = new Map([...stored, ...recent]);
    this.#changed = new Set(recent.map(([policy]) => policy));
  }

  /** The same, to try a change. */
  copy(): Tops {
    return new Tops(this.#byPolicy, this.recent);
  }

  /** Those that have changed since `takeChanges`. */
  get recent(): readonly PolicyWithTops[] {
    return [...this.#changed].flatMap((policy) => {
      const tops = this.#byPolicy.get(policy);
      return tops === undefined ? [] : [[policy, tops] as const];
    });
  }

  /** Takes the keys of a message. Policies past the bound have none, until others have had none for two hours. */
  add(all: readonly PolicyKeys[], nowMs: number): void {
    const hour = Math.floor(nowMs / HOUR_MS);
    for (const { policy, denied = NO_KEYS, active = NO_KEYS } of all) {
      if (!this.#byPolicy.has(policy) && !this.#hasRoom(hour)) continue;
      const { now, before } = atHour(this.#byPolicy.get(policy), hour);
      const sum = { denied: mergedKeys(now.denied, denied), active: mergedKeys(now.active, active) };
      this.#byPolicy.set(policy, { hour, now: sum, before });
      this.#changed.add(policy);
    }
  }

  /** The top keys of one policy. */
  answer({ policy, by }: TopKeysCall, nowMs: number): TopKeysAnswer {
    const hour = Math.floor(nowMs / HOUR_MS);
    const { now, before } = atHour(this.#byPolicy.get(policy), hour);
    return { sinceMs: (hour - 1) * HOUR_MS, keys: mergedKeys(now[by], before[by]).keys };
  }

  /** What has changed since the last call: by policy, what to store; `undefined`: nothing is left of it. */
  takeChanges(): ReadonlyMap<string, PolicyTops | undefined> {
    const changes = new Map([...this.#changed].map((policy) => [policy, this.#byPolicy.get(policy)]));
    this.#changed.clear();
    return changes;
  }

  #hasRoom(hour: number): boolean {
    if (this.#byPolicy.size < MAX_TOPS) return true;
    for (const [policy, tops] of this.#byPolicy) {
      if (hour - tops.hour < 2) continue;
      this.#byPolicy.delete(policy);
      this.#changed.add(policy);
      return true;
    }
    return false;
  }
}

/** The top keys as of an hour. */
function atHour(tops: PolicyTops | undefined, hour: number): PolicyTops {
  if (tops === undefined) return { hour, now: NONE, before: NONE };
  // An hour that is earlier than the last one is that of a clock that was put back.
  if (hour <= tops.hour) return tops;
  return { hour, now: NONE, before: hour - tops.hour === 1 ? tops.now : NONE };
}
