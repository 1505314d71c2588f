import { outstandingOf } from "../../core/accounts/account.ts";
import type { SheddingLevel, SheddingReport } from "../../core/protocol/answers.ts";
import type { KnownLevel, SheddingCall } from "../../core/protocol/calls.ts";
import {
  advanced,
  chanceOf,
  leasedSince,
  reported,
  sheddingNothing,
  utilizationOf,
  type SheddingState,
} from "../../core/shedding/load-shedder.ts";
import type { KeyState } from "../keys/key-state.ts";

/** Keys of one object with a shedder in memory. A further one replaces one that sheds nothing. */
export const MAX_SHEDDERS = 1_000;
/** The most of them opened by calls of one caller, so that others have room. */
export const MAX_SHEDDERS_OF_CALLER = 500;
/** A client's level of that age does not count any more. */
const STALE_MS = 60_000;
/** How long after a start clients' earlier levels count: each sends its own within a second. */
const RESTORING_MS = 5_000;

interface Shedder {
  state: SheddingState;
  leased: number;
  readonly sinceMs: number;
  readonly caller: string | undefined;
  /** The time of the state with which it began; Infinity: a reset, before which nothing counts. */
  ofMs: number;
}

/** In memory only. Clients send their last level with each message: a new object goes on from the latest. */
export class Shedders {
  /** In order of their last use. */
  readonly #shedders = new Map<string, Shedder>();

  /** Adds callers' reports, and returns what is shed of a key's calls. */
  tell(keyState: KeyState, call: Omit<SheddingCall, "policy" | "key">, nowMs: number): SheddingLevel {
    const { reports, known, caller } = call;
    const { shedding, priorities } = keyState.policy;
    const shedder = shedding === undefined ? undefined : this.#open(keyState, nowMs, caller);
    if (shedding === undefined || shedder === undefined) return levelOf(newShedder(keyState, nowMs), nowMs);
    if (known !== undefined) restore(keyState, shedder, known, nowMs);
    if (shedding.by === "leases") count(keyState, shedder, nowMs);
    else shedder.state = reported(shedding, priorities, shedder.state, reports, nowMs);
    return levelOf(shedder, nowMs);
  }

  note(keyState: KeyState, nowMs: number): void {
    const shedder = this.#shedders.get(keyState.key);
    if (shedder !== undefined) count(keyState, shedder, nowMs);
  }

  /** The shedding in a peek; `undefined`: the policy sheds nothing. */
  report(keyState: KeyState, nowMs: number): SheddingReport | undefined {
    const { key, policy } = keyState;
    const { shedding, priorities } = policy;
    if (shedding === undefined) return undefined;
    this.note(keyState, nowMs);
    const { state } = this.#shedders.get(key) ?? newShedder(keyState, nowMs);
    const { level } = advanced(shedding, priorities, state, nowMs);
    const utilization = utilizationOf(state, nowMs);
    const chances = priorities.names.map((name) => [name, rounded(chanceOf(priorities, level, name))]);
    return {
      utilization: utilization === undefined ? null : rounded(utilization),
      chances: Object.fromEntries(chances) as Record<string, number>,
    };
  }

  /** Begins again, and ignores the levels that clients know. */
  reset(keyState: KeyState, nowMs: number): void {
    if (keyState.policy.shedding === undefined) return;
    this.#shedders.delete(keyState.key);
    const shedder = this.#open(keyState, nowMs);
    if (shedder !== undefined) shedder.ofMs = Infinity;
  }

  /** `undefined`: there is none, and no room for one. */
  #open(keyState: KeyState, nowMs: number, caller?: string): Shedder | undefined {
    const { key } = keyState;
    const known = this.#shedders.get(key);
    if (known === undefined && !this.#hasRoomFor(caller)) return undefined;
    const shedder = known ?? newShedder(keyState, nowMs, caller);
    this.#shedders.delete(key);
    this.#shedders.set(key, shedder);
    return shedder;
  }

  /** Drops the least recently used shedder that sheds nothing: of the same caller, at its maximum. */
  #hasRoomFor(caller: string | undefined): boolean {
    const isOwn = (each: Shedder) => caller !== undefined && each.caller === caller;
    let own = 0;
    for (const each of this.#shedders.values()) if (isOwn(each)) own += 1;
    const hasPart = own >= MAX_SHEDDERS_OF_CALLER;
    if (this.#shedders.size < MAX_SHEDDERS && !hasPart) return true;
    for (const [key, each] of this.#shedders)
      if (each.state.level === 0 && (!hasPart || isOwn(each))) return this.#shedders.delete(key);
    return false;
  }
}

function newShedder(keyState: KeyState, nowMs: number, caller?: string): Shedder {
  const isByLeases = keyState.policy.shedding?.by === "leases";
  const leased = isByLeases ? leasedPart(keyState, nowMs) : 0;
  const nothing = sheddingNothing(nowMs);
  const state = isByLeases ? { ...nothing, sum: leased, count: 1, reportedAtMs: Infinity } : nothing;
  return { state, leased, sinceMs: nowMs, caller, ofMs: -Infinity };
}

/** Continues from a level that a client got from a previous object, if it is later than the first one. */
function restore({ policy }: KeyState, shedder: Shedder, known: KnownLevel, nowMs: number): void {
  const { level, troubleMs, utilization, reportedAgoMs, agoMs, sinceMs } = known;
  const { state } = shedder;
  const ofMs = nowMs - agoMs;
  const isOver = nowMs >= shedder.sinceMs + RESTORING_MS || agoMs > STALE_MS;
  if (policy.shedding === undefined || sinceMs === shedder.sinceMs || isOver || ofMs <= shedder.ofMs) return;
  const mean = utilization === null ? { sum: 0, count: 0 } : { sum: utilization, count: 1 };
  const then = { level, troubleMs, calmMs: 0, atMs: ofMs, ...mean, reportedAtMs: ofMs - reportedAgoMs };
  const restored = advanced(policy.shedding, policy.priorities, then, nowMs);
  shedder.ofMs = ofMs;
  // Reports to this object are later than the other one's state.
  shedder.state =
    state.count === 0 ? restored : { ...state, level: restored.level, troubleMs: restored.troubleMs };
}

function count(keyState: KeyState, shedder: Shedder, nowMs: number): void {
  const { shedding, priorities } = keyState.policy;
  if (shedding?.by !== "leases") return;
  shedder.state = leasedSince(shedding, priorities, shedder.state, shedder.leased, nowMs);
  shedder.leased = leasedPart(keyState, nowMs);
}

function levelOf({ state, sinceMs }: Shedder, nowMs: number): SheddingLevel {
  const { level, troubleMs, reportedAtMs } = state;
  const utilization = utilizationOf(state, nowMs) ?? null;
  const reportedAgoMs = utilization === null ? 0 : Math.max(0, nowMs - reportedAtMs);
  return { level, troubleMs, utilization, reportedAgoMs, sinceMs };
}

function rounded(part: number): number {
  return Math.round(part * 10_000) / 10_000;
}

function leasedPart({ ruleStates }: KeyState, nowMs: number): number {
  const parts = ruleStates
    .filter(({ rule }) => rule.lease !== undefined)
    .map(({ rule: { algorithm, config, capacity }, account }) => {
      const limit = algorithm.limitNow?.(config, account.state, nowMs) ?? capacity;
      return limit === 0 ? 1 : Math.min(1, outstandingOf(account) / limit);
    });
  return Math.max(0, ...parts);
}
