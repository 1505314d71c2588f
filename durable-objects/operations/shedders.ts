import { outstandingOf } from "../../core/accounts/account.ts";
import type { SheddingLevel, SheddingReport } from "../../core/protocol/answers.ts";
import type { KnownLevel, SheddingCall } from "../../core/protocol/messages.ts";
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

/** So many keys of one object have a shedder in memory. A further one takes the place of one that sheds nothing. */
export const MAX_SHEDDERS = 1_000;
/** Of those, the most that calls of one caller have opened: what is shed of others has room beside them. */
export const MAX_SHEDDERS_OF_CALLER = 500;
/** What a client was told so long ago says nothing about now. */
const STALE_MS = 60_000;
/** For so long after a start the clients tell what was shed before: each does so within a second if it has calls. */
const RESTORING_MS = 5_000;

interface Shedder {
  state: SheddingState;
  /** The part of its leases that has been taken since `state`. */
  leased: number;
  readonly sinceMs: number;
  /** Whose call was the first of the key here. Absent: nobody's in particular. */
  readonly caller: string | undefined;
  /** Of when the knowledge is with which it began; Infinity: it was reset, and nothing from before counts. */
  ofMs: number;
}

/**
 * What is shed of the calls of an object's keys. It is only in memory: clients say with each message what they were told
 * last, and an object that has lost its memory goes on from the latest of that.
 */
export class Shedders {
  /** In order of their last use. */
  readonly #shedders = new Map<string, Shedder>();

  /** Takes what callers have reported, and says what is shed of a key's calls. */
  tell(
    keyState: KeyState,
    { reports, known, caller }: Pick<SheddingCall, "reports" | "known" | "caller">,
    nowMs: number,
  ): SheddingLevel {
    const { shedding, priorities } = keyState.policy;
    const shedder = shedding === undefined ? undefined : this.#open(keyState, nowMs, caller);
    if (shedding === undefined || shedder === undefined) return levelOf(newShedder(keyState, nowMs), nowMs);
    if (known !== undefined) restore(keyState, shedder, known, nowMs);
    if (shedding.by === "leases") count(keyState, shedder, nowMs);
    else shedder.state = reported(shedding, priorities, shedder.state, reports, nowMs);
    return levelOf(shedder, nowMs);
  }

  /** Leases of a key were granted or have ended. */
  note(keyState: KeyState, nowMs: number): void {
    const shedder = this.#shedders.get(keyState.key);
    if (shedder !== undefined) count(keyState, shedder, nowMs);
  }

  /** What is shed, for a look at the key; `undefined`: its policy sheds nothing. */
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

  /** Begins anew, whatever clients say that they were told. */
  reset(keyState: KeyState, nowMs: number): void {
    if (keyState.policy.shedding === undefined) return;
    this.#shedders.delete(keyState.key);
    const shedder = this.#open(keyState, nowMs);
    if (shedder !== undefined) shedder.ofMs = Infinity;
  }

  /** The shedder of a key; `undefined`: there is none, and no room for one. */
  #open(keyState: KeyState, nowMs: number, caller?: string): Shedder | undefined {
    const { key } = keyState;
    const known = this.#shedders.get(key);
    if (known === undefined && !this.#hasRoomFor(caller)) return undefined;
    const shedder = known ?? newShedder(keyState, nowMs, caller);
    this.#shedders.delete(key);
    this.#shedders.set(key, shedder);
    return shedder;
  }

  /**
   * Makes room, if there is none, by dropping the shedder that was used least lately of those that shed nothing. A caller
   * that has its part makes room among its own.
   */
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

/** Goes on from what a client was told by an object that is gone, if that is later than what it began with. */
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
  // What was reported to this object is later than what the other one knew.
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
