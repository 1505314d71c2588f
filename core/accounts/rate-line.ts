/**
 * Whose turn it is where groups share a rate (core/algorithms/fair/fair-shares.ts). The first call of each group waits for two
 * things: that its group's share lets it pass, and that there are units. Shares are taken as by calls that do not wait, so
 * most calls wait for their own group's share alone, and none of another group.
 *
 * If units are short, for a call that its share lets pass (but not as a burst, which may find units or not), this is the order:
 *
 * - calls that are *late*: for whom the rate of their part has brought their cost since units were short;
 * - calls within their parts;
 * - the others, which do not pass one that units are short for.
 *
 * Of several, the group comes first that owes least of its part. So a flood waits behind each group within its part; and one
 * large call, which needs the burst to fill up, gets it while small ones keep coming. Under a bucket, units are short
 * only for calls larger than their parts, and after a change of the groups or of the policy.
 *
 * In memory only, like the calls. Numbers here are fractions: they decide between groups, and never how much all have.
 */
import { rateWeightsOf, type Turn, turnsAt } from "../algorithms/fair/fair.ts";
import { MAX_TRUSTED_MS } from "../algorithms/fair/standing.ts";
import { costOf } from "../policies/policy.ts";
import { endOverdue, firstsOf, type LineOwner, nameOf, type QueuedCall } from "./fair-line.ts";
import { heldByGroup, heldUnits } from "./hold.ts";
import type { QueuedCost } from "./queue-waits.ts";

type Queued = Pick<QueuedCost, "cost" | "group" | "namedBy" | "inForce">;

interface Place extends Turn {
  readonly isLate: boolean;
}

export class RateLine<Call extends QueuedCall> {
  /** The calls that units are short for, and since when. */
  readonly #short = new Map<Call, number>();
  /** When a call can pass at the earliest, unless units are given back: calls of others only delay it, but those below. */
  #earliestMs = new WeakMap<Call, number>();
  /** The calls that yield to others: an admission may let one pass sooner. And the states that this was asked of. */
  readonly #yielding = new Set<Call>();
  #states: readonly unknown[] = [];
  /** Until then nobody can be served, unless one comes. */
  #nextMs = -Infinity;

  /** Whether an admission may let a call pass sooner. */
  get hasYielding(): boolean {
    return this.#yielding.size > 0;
  }

  /** A call has come to the line. */
  noteNew(): void {
    this.#nextMs = -Infinity;
  }

  /**
   * Answers callers in turn. @param isMore units may have come back, other than by time
   * @returns when the next can be served without returned units; Infinity: none
   */
  serve(owner: LineOwner, waiters: Call[], nowMs: number, isMore: boolean): number {
    if (isMore) this.#earliestMs = new WeakMap();
    else if (this.#forgetYielding(owner)) this.#nextMs = -Infinity;
    // Each call that does not wait asks too, and there may be a thousand groups in line.
    else if (nowMs < this.#nextMs && waiters.every(({ untilMs }) => untilMs > nowMs)) return this.#nextMs;
    for (;;) {
      const served = this.#serveNext(owner, waiters, nowMs);
      if (served === true) {
        this.#forgetYielding(owner);
        continue;
      }
      const { length } = waiters;
      endOverdue(waiters, nowMs);
      // Those behind them may pass.
      if (waiters.length < length) continue;
      this.#nextMs = waiters.length === 0 ? Infinity : served;
      return this.#nextMs;
    }
  }

  /** @returns whether something was admitted that may let a call pass sooner */
  #forgetYielding(owner: LineOwner): boolean {
    if (this.#yielding.size === 0) return false;
    const states = owner.ruleStates.map(({ account: { state } }) => state);
    if (states.every((state, index) => state === this.#states[index])) return false;
    for (const call of this.#yielding) this.#earliestMs.delete(call);
    this.#yielding.clear();
    this.#states = states;
    return true;
  }

  /** The calls of other groups that units are short for and that this one may not pass. */
  before(owner: LineOwner, waiters: readonly Call[], call: Queued, nowMs: number): ReadonlySet<Call> {
    const before = new Set<Call>();
    if (this.#short.size === 0) return before;
    const placeOf = this.#placesAt(owner, nowMs);
    const own = placeOf(call);
    for (const short of this.#short.keys()) {
      const isOther = nameOf(short) !== nameOf(call) && waiters.includes(short);
      if (isOther && compare(placeOf(short, short), own) <= 0 && !mayPass(own, placeOf(short, short)))
        before.add(short);
    }
    return before;
  }

  /** @returns true: one has left the line. Otherwise when the next can be served */
  #serveNext(owner: LineOwner, waiters: Call[], nowMs: number): true | number {
    const placeOf = this.#placesAt(owner, nowMs);
    const heads = [...firstsOf(waiters).values()].map((first) => ({ first, place: placeOf(first, first) }));
    const short = new Map<Call, number>();
    const ahead: Place[] = [];
    let nextMs = Infinity;
    for (const { first, place } of heads.toSorted((one, other) => compare(one.place, other.place))) {
      const sinceMs = this.#short.get(first);
      if (!ahead.every((each) => mayPass(place, each))) {
        if (sinceMs !== undefined) short.set(first, sinceMs);
        continue;
      }
      let earliestMs = this.#earliestMs.get(first) ?? -Infinity;
      if (earliestMs <= nowMs || first.untilMs <= nowMs) {
        const waitMs = first.attempt(nowMs);
        if (waitMs === undefined || first.untilMs <= nowMs) {
          waiters.splice(waiters.indexOf(first), 1);
          if (waitMs !== undefined) first.giveUp(nowMs);
          return true;
        }
        earliestMs = nowMs + Math.min(waitMs, MAX_TRUSTED_MS);
        this.#earliestMs.set(first, earliestMs);
        if (place.isYielding) this.#yielding.add(first);
      }
      nextMs = Math.min(nextMs, earliestMs);
      if (!place.isFirm || first.isBrief === true) continue;
      ahead.push(place);
      short.set(first, sinceMs ?? nowMs);
    }
    this.#short.clear();
    for (const [call, sinceMs] of short) this.#short.set(call, sinceMs);
    return nextMs;
  }

  /** The place of a call at an instant, under all rules that groups share. */
  #placesAt(owner: LineOwner, nowMs: number): (call: Queued, waiting?: Call) => Place {
    const sharedBy = (inForce: Queued["inForce"]) =>
      owner
        .seenBy({ inForce })
        .filter(({ rule }) => rateWeightsOf(rule.config) !== undefined)
        .map(({ rule, account: { state, holds } }) => {
          const { all } = heldUnits(holds);
          return { rule, turnOf: turnsAt(rule.config, state, heldByGroup(holds), all, nowMs) };
        });
    const byPlan = new Map<string | undefined, ReturnType<typeof sharedBy>>();
    return ({ cost, group, namedBy, inForce }, waiting) => {
      const shared = byPlan.get(inForce?.plan) ?? sharedBy(inForce);
      byPlan.set(inForce?.plan, shared);
      let all: Turn = { isFirm: true, isWithin: true, isYielding: false, level: 0, ownMs: 0 };
      for (const { rule, turnOf } of shared) {
        const units = costOf(rule, cost);
        if (group === undefined || units === 0) continue;
        const turn = turnOf(group, namedBy, units);
        all = {
          isFirm: all.isFirm && turn.isFirm,
          isWithin: all.isWithin && turn.isWithin,
          isYielding: all.isYielding || turn.isYielding,
          level: Math.max(all.level, turn.level),
          ownMs: Math.max(all.ownMs, turn.ownMs),
        };
      }
      const sinceMs = (waiting && this.#short.get(waiting)) ?? Infinity;
      return { ...all, isLate: nowMs - sinceMs >= all.ownMs };
    };
  }
}

/** Below 0: the first one comes before the other. */
function compare(one: Place, other: Place): number {
  return (
    Number(other.isLate) - Number(one.isLate) ||
    Number(other.isWithin) - Number(one.isWithin) ||
    one.level - other.level
  );
}

/** Whether a call may be served before one that comes first, and that units are short for. */
function mayPass({ isWithin }: Place, first: Place): boolean {
  return isWithin && !first.isLate;
}
