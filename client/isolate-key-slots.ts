/**
 * The slots of one key that an isolate has: its leases, the calls that wait for them, and what it hands over.
 *
 * A message each pace is worth it with many calls. With few, the isolate rests: it is silent, and keeps its slots, for as
 * long as some calls take, unless a lease gets old and has to be handed over.
 */
import type { Latch } from "../core/clock.ts";
import type { Policy, Rule } from "../core/policies/policy.ts";
import type { Decided } from "../core/protocol/answers.ts";
import type { AcquireParams, HandedLease, SlotsCall } from "../core/protocol/calls.ts";
import { MAX_REST_MS } from "../core/protocol/messages.ts";
import { HeldTimes } from "../core/stats/held-times.ts";
import { KeySlots, MIN_CALLS, type YoungLease } from "./key-slots.ts";

/** The most leases that a message hands over. */
export const MAX_HANDED = 256;
/** A rest is as long as so many calls take. */
const CALLS_OF_REST = 16;

/** Makes the secret of a lease's id, with the mark of a holder. */
export type MakeId = (holder: string) => string;

/** A call that waits for a slot: here, and at the object if that may be sooner. */
export interface WaitingCall extends Pick<AcquireParams, "ttlMs"> {
  readonly makeId: MakeId;
  readonly units: number;
  readonly caller: string | undefined;
  readonly sinceMs: number;
  /** Then its request has ended, if it is still here. */
  readonly untilMs: number;
  readonly signal: AbortSignal | undefined;
  /** Open when it has its answer. */
  readonly latch: Latch;
  answer?: Decided;
}

/** The slots of one key in an isolate. */
export class IsolateKeySlots extends KeySlots<Policy> {
  /** Handed over, until the object has said so. */
  readonly handed = new Map<string, YoungLease>();
  /** Leases of the object for callers of this isolate, and when they were granted. */
  readonly others = new Map<string, number>();
  readonly heldTimes = new HeldTimes();
  /** In the order in which they came. */
  readonly waiting: WaitingCall[] = [];
  ttlMs = 0;
  longestMs = 0;
  /** Calls have come since the last message: they say which plan the key has. */
  hasCalls = false;
  /** The object has refused a rest, and is not asked for one before. */
  noRestUntilMs = -Infinity;
  /** Acquires and their units, of which each counts less the longer ago it was: by e in `MAX_REST_MS`. */
  #recent = { calls: 0, units: 0, atMs: 0 };

  override get isHolding(): boolean {
    return super.isHolding || this.handed.size > 0;
  }

  protected override get inUse(): number {
    return this.leased + this.others.size;
  }

  override get isAtRest(): boolean {
    return super.isAtRest && this.waiting.length === 0;
  }

  override restart(nowMs: number): void {
    super.restart(nowMs);
    for (const lease of this.young.values()) lease.grantedAtMs = -Infinity;
  }

  override called(units: number, nowMs: number): void {
    super.called(units, nowMs);
    const recent = this.#recentAt(nowMs);
    this.#recent = { calls: recent.calls + 1, units: recent.units + units, atMs: nowMs };
  }

  #recentAt(nowMs: number): { readonly calls: number; readonly units: number } {
    const { calls, units, atMs } = this.#recent;
    const part = Math.exp((atMs - nowMs) / MAX_REST_MS);
    return { calls: part * calls, units: part * units };
  }

  /** The slots that its calls need while it rests; `undefined`: they are too many or too few for a rest, or too long. */
  rest(nowMs: number): SlotsCall["rest"] {
    const { calls, units } = this.#recentAt(nowMs);
    const isSeldomHanded = this.heldMs !== undefined && this.heldMs <= this.paceMs / 2;
    // After a rest without calls the slots go home.
    if (this.calls === 0 || calls < MIN_CALLS || !isSeldomHanded || nowMs < this.noRestUntilMs)
      return undefined;
    const ms = Math.min(MAX_REST_MS, Math.floor((CALLS_OF_REST * MAX_REST_MS) / calls));
    return ms <= this.paceMs ? undefined : { units: this.needed(units / MAX_REST_MS), ms };
  }

  override needsMessage(nowMs: number): boolean {
    if (super.needsMessage(nowMs)) return true;
    const maySend = nowMs >= this.offUntilMs && !this.isUnderWay(nowMs);
    if (!maySend || this.isHolding || this.missed > 0) return false;
    return nowMs >= this.sentAtMs + this.paceMs && this.rest(nowMs) !== undefined;
  }

  /** While it rests it need say nothing but that a lease has become old. */
  protected override everyMs(nowMs: number): number {
    const [oldest] = this.young.values();
    const isOld = oldest !== undefined && nowMs >= oldest.grantedAtMs + this.paceMs;
    const isResting = this.missed === 0 && this.handed.size === 0 && !isOld;
    return isResting ? Math.max(this.paceMs, this.restMs) : super.everyMs(nowMs);
  }

  /** While it rests, one call too many now and then is no reason for a message. */
  protected override isShort(nowMs: number): boolean {
    if (!super.isShort(nowMs) || this.restMs === 0) return super.isShort(nowMs);
    return this.token >= this.tokensEnd || this.needed(this.#recentAt(nowMs).units / MAX_REST_MS) > this.kept;
  }

  /** If another version decides now, idle slots go back, and none is leased before the object has answered by that. */
  override adopt(policy: Policy): void {
    const { inForce } = this.policy;
    super.adopt(policy);
    if (inForce?.fields === policy.inForce?.fields) return;
    this.kept = this.leased;
    this.spendableUntilMs = -Infinity;
    this.underWaySinceMs = undefined;
    this.turn += 1;
    this.isAtOnce = true;
  }

  /** The first call that could be served by the slots that it has. */
  get firstWaiting(): WaitingCall | undefined {
    return this.waiting.find(({ units }) => units <= this.kept);
  }

  /** Leases that are old become the object's with the next message, which names so many at most. */
  handOver(nowMs: number): void {
    for (const [id, lease] of this.handed) if (lease.expiresAtMs <= nowMs) this.handed.delete(id);
    for (const lease of this.young.values())
      if (nowMs >= lease.grantedAtMs + this.paceMs && this.handed.size < MAX_HANDED) this.hand(lease, nowMs);
  }

  hand(lease: YoungLease, nowMs: number): void {
    this.remove(lease, nowMs);
    this.kept -= lease.units;
    this.handed.set(lease.id, lease);
    this.said.endsAt(lease.expiresAtMs);
  }

  /** Whether a lease may be granted here. */
  admits(units: number, ttlMs: number, nowMs: number): boolean {
    return ttlMs <= this.ttlMs && this.hasFree(units, nowMs);
  }

  override end(id: string, nowMs: number): YoungLease | undefined {
    const lease = super.end(id, nowMs);
    if (lease !== undefined) this.heldTimes.note(Math.min(nowMs, lease.expiresAtMs) - lease.beganAtMs);
    return lease;
  }

  endOther(id: string, nowMs: number): void {
    const grantedAtMs = this.others.get(id);
    if (grantedAtMs === undefined) return;
    this.others.delete(id);
    this.lasted(nowMs - grantedAtMs);
  }

  /** When so many of its slots are free, if none of its leases ends before its time; `undefined`: it has fewer. */
  freeInMs(units: number, nowMs: number): number | undefined {
    let free = this.idle;
    let atMs = nowMs;
    for (const lease of [...this.young.values()].toSorted((a, b) => a.expiresAtMs - b.expiresAtMs)) {
      if (free >= units) break;
      free += lease.units;
      atMs = lease.expiresAtMs;
    }
    return free < units ? undefined : atMs - nowMs;
  }

  /** Of a call whose wait was ended: that it may pass sooner, by slots of others, is not known here. */
  denial({ name, capacity }: Rule, { units, sinceMs }: WaitingCall, nowMs: number): Decided {
    const retryAfterMs = this.freeInMs(units, nowMs) ?? null;
    const of = { name, limit: capacity, remaining: 0, resetAfterMs: this.wholeAfterMs(nowMs) };
    return {
      rules: [{ ...of, success: false, retryAfterMs, reason: "quota" }],
      reason: "wait-timeout",
      waitedMs: nowMs - sinceMs,
    };
  }

  /** At most a pace: a lease is handed over then. */
  protected override lasted(ms: number): void {
    super.lasted(Math.min(ms, this.paceMs));
  }

  override estimate(nowMs: number): number {
    for (const [id, grantedAtMs] of this.others)
      if (nowMs >= grantedAtMs + this.paceMs) this.endOther(id, nowMs);
    return super.estimate(nowMs);
  }
}

export function handedOf(lease: YoungLease, nowMs: number): HandedLease {
  const { id, units, ttlMs, expiresAtMs, fencingToken, caller, beganAtMs } = lease;
  const by = caller === undefined ? {} : { caller };
  const [leftMs, heldMs] = [Math.min(ttlMs, expiresAtMs - nowMs), Math.max(0, nowMs - beganAtMs)];
  return { id, units, ttlMs, leftMs, heldMs, fencingToken, ...by };
}
