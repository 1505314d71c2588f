import { outstandingOf } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Level, SheddingReport } from "../../core/protocol/answers.ts";
import type { SheddingCall } from "../../core/protocol/messages.ts";
import {
  advanced,
  chanceOf,
  reported,
  sheddingNothing,
  utilizationOf,
  type Shedding,
  type SheddingState,
} from "../../core/shedding/load-shedder.ts";
import type { KeyState } from "../keys/key-state.ts";

/** So many keys of one object have a shedder in memory. Of further ones nothing is shed. */
export const MOST_SHEDDERS = 1_000;
/** What a client was told so long ago says nothing about now. */
const STALE_MS = 60_000;

/**
 * What is shed of the calls of an object's keys. It is only in memory: clients say with each message what they were told
 * last, and an object that has lost its memory goes on from there.
 */
export class Shedders {
  readonly #states = new Map<string, SheddingState>();

  /** Takes what callers have reported, and says what is shed of a key's calls; `undefined`: nothing ever is. */
  tell(keyState: KeyState, call: Pick<SheddingCall, "reports" | "known">, nowMs: number): Level {
    const { policy, key } = keyState;
    const { shedding, priorities } = policy;
    const before = this.#states.get(key) ?? begun(call, nowMs);
    if (shedding === undefined || before === undefined || !this.#hasRoom(key, policy, nowMs)) return NOTHING;
    const reports = shedding.by === "leases" ? { sum: leased(keyState, nowMs), count: 1 } : call.reports;
    const state = reported(shedding, priorities, before, reports, nowMs);
    this.#states.set(key, state);
    return { level: state.level, troubleMs: state.troubleMs };
  }

  /** What is shed, for a look at the key; `undefined`: its policy sheds nothing. */
  report({ policy, key }: KeyState, nowMs: number): SheddingReport | undefined {
    const { shedding, priorities } = policy;
    if (shedding === undefined) return undefined;
    const state = advanced(shedding, priorities, this.#states.get(key) ?? sheddingNothing(nowMs), nowMs);
    const utilization = utilizationOf(state, nowMs);
    const chances = priorities.names.map((name) => [name, rounded(chanceOf(priorities, state.level, name))]);
    return {
      utilization: utilization === undefined ? null : rounded(utilization),
      chances: Object.fromEntries(chances) as Record<string, number>,
    };
  }

  /** Begins anew, whatever clients say that they were told. */
  reset({ policy, key }: KeyState, nowMs: number): void {
    if (policy.shedding !== undefined && this.#hasRoom(key, policy, nowMs))
      this.#states.set(key, sheddingNothing(nowMs));
  }

  /** Whether a key may have a shedder. Those of which nothing is known any more and nothing is shed are dropped. */
  #hasRoom(key: string, { shedding, priorities }: Policy, nowMs: number): boolean {
    if (this.#states.has(key) || this.#states.size < MOST_SHEDDERS) return true;
    for (const [each, state] of this.#states)
      if (shedding !== undefined && isIdle(shedding, priorities, state, nowMs)) this.#states.delete(each);
    return this.#states.size < MOST_SHEDDERS;
  }
}

/** To 4 digits after the point. */
function rounded(part: number): number {
  return Math.round(part * 10_000) / 10_000;
}

const NOTHING: Level = { level: 0, troubleMs: 0 };

/** The state of a key that this object knows nothing of: as the client was told, by this object or by one before it. */
function begun({ known }: Pick<SheddingCall, "known">, nowMs: number): SheddingState {
  const nothing = sheddingNothing(nowMs);
  if (known === undefined || known.agoMs > STALE_MS) return nothing;
  return { ...nothing, level: known.level, troubleMs: known.troubleMs };
}

function isIdle(shedding: Shedding, priorities: Policy["priorities"], state: SheddingState, nowMs: number) {
  return (
    utilizationOf(state, nowMs) === undefined && advanced(shedding, priorities, state, nowMs).level === 0
  );
}

/** The part of a key's leases that is taken: of the rule of which most is. */
function leased({ ruleStates }: KeyState, nowMs: number): number {
  const parts = ruleStates
    .filter(({ rule }) => rule.lease !== undefined)
    .map(({ rule: { algorithm, config, capacity }, account }) => {
      const limit = algorithm.limitNow?.(config, account.state, nowMs) ?? capacity;
      return limit === 0 ? 1 : Math.min(1, outstandingOf(account) / limit);
    });
  return Math.max(0, ...parts);
}
