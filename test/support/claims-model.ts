/** A model of leases and holds: the object's required answers, without its machinery. Time moves in jumps. */

export interface ModelLease {
  readonly units: number;
  readonly ttlMs: number;
  expiresAtMs: number;
}

export interface ModelWaiter {
  readonly name: number;
  readonly units: number;
  readonly ttlMs: number;
  readonly untilMs: number;
}

export interface ModelHold {
  readonly units: number;
  readonly expiresAtMs: number;
}

export class ClaimsModel {
  nowMs = 0;
  readonly leaseLimit: number;
  readonly maxWaiters: number;
  /** By the name of the acquire that was granted. */
  readonly leases = new Map<number, ModelLease>();
  queue: ModelWaiter[] = [];
  /** Waiters that were answered since the last check: whether they were granted. */
  readonly told = new Map<number, boolean>();
  readonly holds = new Map<number, ModelHold>();
  readonly endedHolds = new Set<number>();
  readonly cancelledHolds = new Set<number>();
  readonly holdLimit: number;
  used = 0;

  constructor(leaseLimit: number, maxWaiters: number, holdLimit: number) {
    this.leaseLimit = leaseLimit;
    this.maxWaiters = maxWaiters;
    this.holdLimit = holdLimit;
  }

  get leased(): number {
    return sum(this.leases.values());
  }

  get held(): number {
    return sum(this.holds.values());
  }

  get holdsLeft(): number {
    return Math.max(0, this.holdLimit - this.used - this.held);
  }

  acquire(
    name: number,
    units: number,
    ttlMs: number,
    waitMs: number,
  ): "granted" | "denied" | "waits" | "full" {
    if (this.queue.length === 0 && this.leased + units <= this.leaseLimit) {
      this.leases.set(name, { units, ttlMs, expiresAtMs: this.nowMs + ttlMs });
      return "granted";
    }
    if (waitMs === 0 || units > this.leaseLimit) return "denied";
    if (this.queue.length >= this.maxWaiters) return "full";
    this.queue.push({ name, units, ttlMs, untilMs: this.nowMs + waitMs });
    return "waits";
  }

  /** Moves time on. Expired leases and holds end, then waiters are served in order. */
  jump(toMs: number): void {
    this.nowMs = toMs;
    for (const [name, { expiresAtMs }] of this.leases) if (expiresAtMs <= toMs) this.leases.delete(name);
    for (const [name, { units, expiresAtMs }] of this.holds) {
      if (expiresAtMs > toMs) continue;
      this.holds.delete(name);
      this.endedHolds.add(name);
      this.used += units;
    }
    this.serve();
  }

  serve(): void {
    for (let head = this.queue[0]; head !== undefined; head = this.queue[0]) {
      const { name, units, ttlMs, untilMs } = head;
      const isGranted = this.leased + units <= this.leaseLimit;
      if (!isGranted && untilMs > this.nowMs) break;
      this.queue.shift();
      if (isGranted) this.leases.set(name, { units, ttlMs, expiresAtMs: this.nowMs + ttlMs });
      this.told.set(name, isGranted);
    }
    for (const { name, untilMs } of this.queue) if (untilMs <= this.nowMs) this.told.set(name, false);
    this.queue = this.queue.filter(({ untilMs }) => untilMs > this.nowMs);
  }

  leave(name: number): void {
    this.queue = this.queue.filter((waiter) => waiter.name !== name);
    this.serve();
  }
}

function sum(claims: Iterable<{ readonly units: number }>): number {
  let units = 0;
  for (const claim of claims) units += claim.units;
  return units;
}
