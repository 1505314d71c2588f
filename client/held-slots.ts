/** The slots of one key that this isolate has: its leases, and what they need. Plain data, which its requests share. */
import { type Latch, randomId } from "../core/clock.ts";
import type { Policy, Rule } from "../core/policies/policy.ts";
import type { Decided } from "../core/protocol/answers.ts";
import type { AcquireParams, HandedLease } from "../core/protocol/calls.ts";
import { PACE_MS } from "../core/protocol/messages.ts";
import { HeldTimes } from "../core/stats/held-times.ts";

/** In a pace: fewer acquires are not worth slots. */
const MIN_CALLS = 3;
/** When its leases need more slots than it has, it asks before its pace. */
const EARLY_PART = 0.2;
/** A message without an answer is repeated after so many paces, and then more rarely. */
const MAX_MISSED = 3;
const SMOOTHING = 16;
/** The most leases that a message hands over. */
export const MAX_HANDED = 256;

export interface YoungLease {
  readonly id: string;
  readonly units: number;
  readonly ttlMs: number;
  readonly fencingToken: number;
  /** When it was granted, for the counts; `grantedAtMs` may be earlier, so that it is handed over. */
  readonly beganAtMs: number;
  grantedAtMs: number;
  readonly caller: string | undefined;
  expiresAtMs: number;
}

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

/** The slots of one key. */
export class HeldSlots {
  policy: Policy;
  readonly key: string;
  /** Unguessable but for its mark, which the ids of its leases have. */
  readonly holder = randomId();
  readonly young = new Map<string, YoungLease>();
  /** Handed over, until the object has said so. */
  readonly handed = new Map<string, YoungLease>();
  /** Leases of the object for callers of this isolate, and when they were granted. */
  readonly others = new Map<string, number>();
  readonly heldTimes = new HeldTimes();
  /** In the order in which they came. */
  readonly waiting: WaitingCall[] = [];
  kept = 0;
  leased = 0;
  isHome = false;
  /** Its part of the slots, if all holders together need more than there are. */
  most = Infinity;
  spendableUntilMs = -Infinity;
  ttlMs = 0;
  longestMs = 0;
  offUntilMs = -Infinity;
  token = 0;
  tokensEnd = 0;
  remaining = 0;
  turn = 0;
  heard = 0;
  memory: string | undefined;
  /** When the message under way was sent; `undefined`: none is. */
  underWaySinceMs: number | undefined;
  sentAtMs = -Infinity;
  isAtOnce = false;
  /** The object has lost its memory, and has applied no message since. */
  isRefused = false;
  /** Calls have come since the last message: they say which plan the key has. */
  hasCalls = false;
  missed = 0;
  paceMs = PACE_MS;
  granted = 0;
  released = 0;
  /** Units that were asked for in this period. */
  calls = 0;
  #sinceMs: number;
  #callsPerPace = 0;
  /** How long a lease takes a slot here: at most a pace, since it is handed over then. */
  #heldMs: number | undefined;
  #nextEndMs = Infinity;

  constructor(policy: Policy, key: string, nowMs: number) {
    this.policy = policy;
    this.key = key;
    this.#sinceMs = nowMs;
  }

  get idle(): number {
    return this.kept - this.leased;
  }

  get isHolding(): boolean {
    return this.kept > 0 || this.handed.size > 0;
  }

  /** Whether it may be forgotten. */
  get isAtRest(): boolean {
    return !this.isHolding && this.waiting.length === 0 && this.underWaySinceMs === undefined;
  }

  /** After the clock was set back what it has is told again, and none of it is leased before an answer. */
  restart(nowMs: number): void {
    this.spendableUntilMs = -Infinity;
    this.sentAtMs = -Infinity;
    this.underWaySinceMs = undefined;
    this.offUntilMs = -Infinity;
    this.#sinceMs = nowMs;
    for (const lease of this.young.values()) lease.grantedAtMs = -Infinity;
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
    this.#remove(lease, nowMs);
    this.kept -= lease.units;
    this.handed.set(lease.id, lease);
  }

  /** Whether a lease may be granted here. */
  admits(units: number, ttlMs: number, nowMs: number): boolean {
    const isOurs = nowMs < this.spendableUntilMs && !this.isHome && ttlMs <= this.ttlMs;
    return isOurs && units > 0 && units <= this.idle && this.token < this.tokensEnd;
  }

  /** Grants a lease from a free slot. */
  grant(
    { name, capacity }: Rule,
    { id, units, ttlMs, caller }: Pick<YoungLease, "id" | "units" | "ttlMs" | "caller">,
    nowMs: number,
    waitedMs: number,
  ): Decided {
    const fencingToken = this.token;
    this.token += 1;
    this.granted += 1;
    const at = { beganAtMs: nowMs, grantedAtMs: nowMs, expiresAtMs: nowMs + ttlMs };
    this.#put({ id, units, ttlMs, caller, fencingToken, ...at });
    const of = { name, limit: capacity, remaining: this.remaining + this.idle, resetAfterMs: ttlMs };
    return {
      rules: [{ ...of, success: true, retryAfterMs: 0, reason: "ok" }],
      waitedMs,
      lease: { id, fencingToken, expiresAfterMs: ttlMs },
    };
  }

  #put(lease: YoungLease): void {
    this.young.set(lease.id, lease);
    this.leased += lease.units;
    this.#nextEndMs = Math.min(this.#nextEndMs, lease.expiresAtMs);
  }

  /** A lease of its own ends: its slot is free. */
  end(id: string, nowMs: number): YoungLease | undefined {
    const lease = this.young.get(id);
    if (lease === undefined) return undefined;
    this.#remove(lease, nowMs);
    this.heldTimes.note(Math.min(nowMs, lease.expiresAtMs) - lease.beganAtMs);
    return lease;
  }

  #remove({ id, units, grantedAtMs }: YoungLease, nowMs: number): void {
    this.#lasted(nowMs - grantedAtMs);
    this.young.delete(id);
    this.leased -= units;
  }

  endOther(id: string, nowMs: number): void {
    const grantedAtMs = this.others.get(id);
    if (grantedAtMs === undefined) return;
    this.others.delete(id);
    this.#lasted(nowMs - grantedAtMs);
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
    const of = { name, limit: capacity, remaining: 0, resetAfterMs: this.freeInMs(this.kept, nowMs) ?? 0 };
    return {
      rules: [{ ...of, success: false, retryAfterMs, reason: "quota" }],
      reason: "wait-timeout",
      waitedMs: nowMs - sinceMs,
    };
  }

  endExpired(nowMs: number): void {
    if (nowMs < this.#nextEndMs) return;
    this.#nextEndMs = Infinity;
    for (const { id, expiresAtMs } of this.young.values())
      if (expiresAtMs <= nowMs) this.end(id, nowMs);
      else this.#nextEndMs = Math.min(this.#nextEndMs, expiresAtMs);
  }

  #lasted(ms: number): void {
    const heldMs = Math.min(ms, this.paceMs);
    this.#heldMs = this.#heldMs === undefined ? heldMs : this.#heldMs + (heldMs - this.#heldMs) / SMOOTHING;
  }

  /** The slots that its calls need (Little's law), and so many more that they seldom do not suffice. */
  estimate(nowMs: number): number {
    for (const [id, grantedAtMs] of this.others)
      if (nowMs >= grantedAtMs + this.paceMs) this.endOther(id, nowMs);
    const spanMs = nowMs - this.#sinceMs;
    if (spanMs >= this.paceMs / 2) {
      this.#callsPerPace = (this.#callsPerPace + (this.calls * this.paceMs) / spanMs) / 2;
      this.#sinceMs = nowMs;
      this.calls = 0;
    }
    const calls = Math.max(this.#callsPerPace, this.calls);
    const inUse = (calls / this.paceMs) * (this.#heldMs ?? this.paceMs);
    return calls < MIN_CALLS ? 0 : Math.max(1, Math.ceil(inUse + 2 * Math.sqrt(inUse)));
  }

  isUnderWay(nowMs: number): boolean {
    if (this.underWaySinceMs === undefined) return false;
    return nowMs < this.underWaySinceMs + this.policy.deadlineMs + PACE_MS;
  }

  needsMessage(nowMs: number): boolean {
    if (nowMs < this.offUntilMs || this.isUnderWay(nowMs)) return false;
    if (this.isAtOnce) return true;
    const sinceMs = nowMs - this.sentAtMs;
    if (this.idle > 0 && this.kept > this.most) return sinceMs > 0;
    const paceMs = this.paceMs * 2 ** Math.min(this.missed, MAX_MISSED);
    if (this.isHolding) return sinceMs >= (this.isShort ? EARLY_PART : 1) * paceMs;
    return this.calls >= MIN_CALLS && sinceMs >= paceMs;
  }

  /** It has no slot left for the next acquire. */
  get isShort(): boolean {
    if (this.missed > 0) return false;
    return this.token >= this.tokensEnd || (this.idle <= 0 && this.kept < this.most);
  }
}

export function handedOf(lease: YoungLease, nowMs: number): HandedLease {
  const { id, units, ttlMs, expiresAtMs, fencingToken, caller, beganAtMs } = lease;
  const by = caller === undefined ? {} : { caller };
  const [leftMs, heldMs] = [Math.min(ttlMs, expiresAtMs - nowMs), Math.max(0, nowMs - beganAtMs)];
  return { id, units, ttlMs, leftMs, heldMs, fencingToken, ...by };
}
