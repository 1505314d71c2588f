/** A model of callers that wait for units of rates, by single milliseconds, without the machinery. */

export type ModelRule =
  | { readonly kind: "bucket"; readonly limit: number; readonly windowMs: number }
  | {
      readonly kind: "log";
      readonly limit: number;
      readonly windowMs: number;
      readonly minIntervalMs: number;
    };

export interface ModelCall {
  readonly name: number;
  readonly cost: number;
  readonly idempotencyKey: string | undefined;
}

interface ModelWaiter extends ModelCall {
  readonly untilMs: number;
}

export type Outcome = "admitted" | "denied" | "timeout" | "full";

/** One rule's naive state: a drained bucket, or all units ever taken. */
class Rate {
  readonly rule: ModelRule;
  spentParts = 0;
  atMs = 0;
  log: { readonly atMs: number; readonly units: number }[] = [];
  lastMs = -Infinity;

  constructor(rule: ModelRule) {
    this.rule = rule;
  }

  clone(): Rate {
    return Object.assign(new Rate(this.rule), this, { log: [...this.log] });
  }

  admits(cost: number, held: number, nowMs: number): boolean {
    const { rule } = this;
    if (rule.kind === "log" && nowMs < this.lastMs + rule.minIntervalMs) return false;
    return this.#used(nowMs) + (cost + held) * this.#unit <= rule.limit * this.#unit;
  }

  use(units: number, nowMs: number): void {
    if (this.rule.kind === "bucket") {
      this.spentParts = this.#used(nowMs) + units * this.#unit;
      this.atMs = nowMs;
    } else if (units > 0) this.log.push({ atMs: nowMs, units });
  }

  refund(units: number, nowMs: number): void {
    this.spentParts = Math.max(0, this.#used(nowMs) - units * this.#unit);
    this.atMs = nowMs;
  }

  get #unit(): number {
    return this.rule.kind === "bucket" ? this.rule.windowMs : 1;
  }

  #used(nowMs: number): number {
    const { rule } = this;
    if (rule.kind === "bucket") return Math.max(0, this.spentParts - rule.limit * (nowMs - this.atMs));
    const counted = this.log.filter(({ atMs }) => atMs > nowMs - rule.windowMs);
    return counted.reduce((sum, { units }) => sum + units, 0);
  }
}

export class TurnsModel {
  nowMs = 0;
  readonly maxWaiters: number;
  readonly #rules: readonly ModelRule[];
  #rates: Rate[];
  #queue: ModelWaiter[] = [];
  #holds = new Map<number, { readonly units: number; readonly expiresAtMs: number }>();
  #answered = new Set<string>();
  /** Waiters that were answered since the last check. */
  readonly told = new Map<number, Outcome>();

  constructor(rules: readonly ModelRule[], maxWaiters: number) {
    this.#rules = rules;
    this.maxWaiters = maxWaiters;
    this.#rates = rules.map((rule) => new Rate(rule));
  }

  get waiting(): readonly number[] {
    return this.#queue.map(({ name }) => name);
  }

  get holds(): readonly number[] {
    return [...this.#holds.keys()];
  }

  /** The outcome of a call; `waits`: it is queued. `waitMs` is `undefined` for a call that does not wait. */
  limit(call: ModelCall, waitMs: number | undefined): Outcome | "waits" {
    if (this.#isAnswered(call)) return "admitted";
    if (this.#queue.length === 0 && this.#admits(call.cost)) {
      this.#take(call);
      return "admitted";
    }
    const leastMs = this.waitOf(call.cost, { withHolds: false });
    if (waitMs === undefined || waitMs === 0 || leastMs === null || leastMs > waitMs) return "denied";
    if (this.#queue.length >= this.maxWaiters) return "full";
    this.#queue.push({ ...call, untilMs: this.nowMs + waitMs });
    return "waits";
  }

  hold(name: number, units: number, ttlMs: number): boolean {
    if (this.#queue.length > 0 || !this.#admits(units)) return false;
    this.#holds.set(name, { units, expiresAtMs: this.nowMs + ttlMs });
    for (const rate of this.#rates) rate.lastMs = this.nowMs;
    return true;
  }

  settle(name: number, used: number): void {
    if (!this.#holds.delete(name)) return;
    for (const rate of this.#rates) rate.use(used, this.nowMs);
    this.#serve();
  }

  refund(units: number): void {
    for (const rate of this.#rates) rate.refund(units, this.nowMs);
    this.#serve();
  }

  reset(): void {
    this.#rates = this.#rules.map((rule) => new Rate(rule));
    this.#holds.clear();
    this.#answered.clear();
    this.#serve();
  }

  /** All waits end: those that pass without others ahead do. Returns how long the others are told to wait. */
  endWaits(): ReadonlyMap<number, number | null> {
    const left = this.#queue.filter((waiter) => {
      if (!this.#isAnswered(waiter) && !this.#admits(waiter.cost)) return true;
      if (!this.#isAnswered(waiter)) this.#take(waiter);
      this.told.set(waiter.name, "admitted");
      return false;
    });
    this.#queue = [];
    for (const { name } of left) this.told.set(name, "timeout");
    return new Map(left.map(({ name, cost }) => [name, this.waitOf(cost)]));
  }

  leave(name: number): void {
    this.#queue = this.#queue.filter((waiter) => waiter.name !== name);
    this.#serve();
  }

  tick(): void {
    this.nowMs += 1;
    for (const [name, { units, expiresAtMs }] of this.#holds) {
      if (expiresAtMs > this.nowMs) continue;
      this.#holds.delete(name);
      for (const rate of this.#rates) rate.use(units, this.nowMs);
    }
    this.#serve();
  }

  /** The wait of a cost behind the queue; without holds: if all were returned unused now. */
  waitOf(cost: number, { withHolds = true } = {}): number | null {
    if (this.#rules.some(({ limit }) => cost > limit)) return null;
    const later = new TurnsModel(this.#rules, this.maxWaiters);
    later.nowMs = this.nowMs;
    later.#rates = this.#rates.map((rate) => rate.clone());
    later.#queue = [...this.#queue];
    if (withHolds) later.#holds = new Map(this.#holds);
    later.#serve();
    while (later.#queue.length > 0 || !later.#admits(cost)) later.tick();
    return later.nowMs - this.nowMs;
  }

  #serve(): void {
    for (let head = this.#queue[0]; head !== undefined; head = this.#queue[0]) {
      if (!this.#isAnswered(head) && !this.#admits(head.cost)) break;
      this.#queue.shift();
      if (!this.#isAnswered(head)) this.#take(head);
      this.told.set(head.name, "admitted");
    }
    const over = this.#queue.find(({ untilMs }) => untilMs <= this.nowMs);
    if (over === undefined) return;
    this.told.set(over.name, this.#isAnswered(over) ? "admitted" : "timeout");
    this.#queue = this.#queue.filter((each) => each !== over);
    // Those queued behind it may be served now.
    this.#serve();
  }

  #admits(cost: number): boolean {
    let held = 0;
    for (const { units } of this.#holds.values()) held += units;
    return this.#rates.every((rate) => rate.admits(cost, held, this.nowMs));
  }

  #take({ cost, idempotencyKey }: ModelCall): void {
    for (const rate of this.#rates) {
      rate.use(cost, this.nowMs);
      rate.lastMs = this.nowMs;
    }
    if (idempotencyKey !== undefined) this.#answered.add(idempotencyKey);
  }

  #isAnswered({ idempotencyKey }: ModelCall): boolean {
    return idempotencyKey !== undefined && this.#answered.has(idempotencyKey);
  }
}
