/** Oracles of windows, counted and sliding: lists of units, slow, and too simple to be wrong. */
import type { SlidingLogConfig } from "../../core/algorithms/log/sliding-log.ts";

interface Entry {
  readonly atMs: number;
  readonly window: string;
}

export interface Said {
  readonly allowed: boolean;
  readonly remaining: number;
  readonly retryAfterMs: number | null;
}

/** The fixed window: instants with the same window name count together. */
export class NaiveWindows {
  readonly #limit: number;
  /** `undefined`: windows begin with the first request, and have this length. */
  readonly #nameAt: ((atMs: number) => string) | undefined;
  readonly #mostMs: number;
  #firstMs = 0;
  #units: Entry[] = [];

  /** @param mostMs the longest window; without `nameAt`, the length of each */
  constructor(limit: number, mostMs: number, nameAt?: (atMs: number) => string) {
    this.#limit = limit;
    this.#mostMs = mostMs;
    this.#nameAt = nameAt;
  }

  decide(nowMs: number, cost: number, held: number): Said {
    const free = this.#limit - this.#countedAt(nowMs) - held;
    const allowed = cost === 0 || cost <= free;
    if (allowed) this.debit(nowMs, cost);
    return {
      allowed,
      remaining: Math.max(0, allowed ? free - cost : free),
      retryAfterMs: allowed ? 0 : cost + held > this.#limit ? null : this.endMs(nowMs) - nowMs,
    };
  }

  debit(nowMs: number, units: number): void {
    if (units === 0) return;
    if (this.#countedAt(nowMs) === 0) {
      this.#units = [];
      this.#firstMs = nowMs;
    }
    const window = this.#name(nowMs);
    for (let count = 0; count < units; count += 1) this.#units.push({ atMs: nowMs, window });
  }

  credit(nowMs: number, units: number): void {
    if (this.#countedAt(nowMs) > 0) this.#units = this.#units.slice(units);
  }

  uncharge(nowMs: number, units: number, atMs: number): void {
    if (this.#countedAt(nowMs) === 0) return;
    let left = units;
    this.#units = this.#units.filter((each) => each.atMs !== atMs || (left -= 1) < 0);
  }

  /** The end of an instant's window, found by trying. */
  endMs(nowMs: number): number {
    let [inside, outside] = [nowMs, nowMs + this.#mostMs];
    while (outside - inside > 1) {
      const between = Math.floor((inside + outside) / 2);
      if (this.#name(between) === this.#name(nowMs)) inside = between;
      else outside = between;
    }
    return outside;
  }

  countedAt(nowMs: number): number {
    return this.#countedAt(nowMs);
  }

  /** Units that were taken at an instant and count now. */
  chargedAt(nowMs: number, atMs: number): number {
    const window = this.#name(nowMs);
    return this.#units.filter((each) => each.window === window && each.atMs === atMs).length;
  }

  #countedAt(nowMs: number): number {
    const window = this.#name(nowMs);
    return this.#units.filter((each) => each.window === window).length;
  }

  #name(atMs: number): string {
    if (this.#nameAt !== undefined) return this.#nameAt(atMs);
    return this.#units.length > 0 && atMs >= this.#firstMs + this.#mostMs ? "over" : `${this.#firstMs}`;
  }
}

/** The names of the periods of the calendar, as a zone's clocks show them. */
export function namesOf(period: string, timeZone: string): (atMs: number) => string {
  const clock = new Intl.DateTimeFormat("sv-SE", {
    timeZone,
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    timeZoneName: "longOffset",
  });
  return (atMs) => {
    const shown = clock.format(atMs);
    if (period === "1 hour") return shown;
    if (period === "1 week")
      return `week ${Math.floor((Date.parse(shown.slice(0, 10)) / 86_400_000 + 3) / 7)}`;
    return shown.slice(0, { "1 year": 4, "1 month": 7, "1 day": 10 }[period]);
  };
}

/** The sliding window counter: two windows are counted, and the estimate is a fraction. */
export class NaiveCounter {
  readonly #limit: number;
  readonly #windowMs: number;
  #units: number[] = [];

  constructor(limit: number, windowMs: number) {
    this.#limit = limit;
    this.#windowMs = windowMs;
  }

  decide(nowMs: number, cost: number, held: number): Said {
    const allowed = this.#passes(nowMs, cost, held);
    if (allowed) this.debit(nowMs, cost);
    let remaining = 0;
    while (this.#passes(nowMs, remaining + 1, held)) remaining += 1;
    return { allowed, remaining, retryAfterMs: allowed ? 0 : this.#waitMs(nowMs, cost, held) };
  }

  debit(nowMs: number, units: number): void {
    for (let count = 0; count < units; count += 1) this.#units.push(nowMs);
  }

  /** The newest first, while they are of this window, then those of the one before, by weight. */
  credit(nowMs: number, units: number): void {
    const window = this.#windowAt(nowMs);
    const now = this.#units.filter((atMs) => this.#windowAt(atMs) === window);
    const before = this.#units.filter((atMs) => this.#windowAt(atMs) === window - 1);
    const over = Math.max(0, units - now.length);
    const inViewMs = this.#windowMs - (nowMs % this.#windowMs);
    const gone = Math.floor((over * this.#windowMs) / inViewMs);
    this.#units = [...before.slice(gone), ...now.slice(0, Math.max(0, now.length - units))];
  }

  uncharge(units: number, atMs: number): void {
    let left = units;
    this.#units = this.#units.filter((takenAtMs) => takenAtMs !== atMs || (left -= 1) < 0);
  }

  #windowAt(atMs: number): number {
    return Math.floor(atMs / this.#windowMs);
  }

  #passes(nowMs: number, cost: number, held: number): boolean {
    if (cost === 0) return true;
    const window = this.#windowAt(nowMs);
    const count = (which: number) => this.#units.filter((atMs) => this.#windowAt(atMs) === which).length;
    const inViewMs = this.#windowMs - (nowMs % this.#windowMs);
    // A fraction of small numbers: an error of a double is far below one part.
    const estimate = (count(window - 1) * inViewMs) / this.#windowMs + count(window);
    return estimate + held + cost <= this.#limit + 1e-9;
  }

  #waitMs(nowMs: number, cost: number, held: number): number | null {
    for (let atMs = nowMs + 1; atMs <= nowMs + 2 * this.#windowMs; atMs += 1)
      if (this.#passes(atMs, cost, held)) return atMs - nowMs;
    return null;
  }
}

interface NaiveDecision {
  readonly allowed: boolean;
  readonly reason: string;
  readonly remaining: number;
  /** `undefined`: calls may come at any distance. */
  readonly quotaRemaining: number | undefined;
  readonly retryAfterMs: number | null;
}

/** The sliding log: a unit counts until it is as old as the window. */
export class NaiveLog {
  readonly #config: SlidingLogConfig;
  /** When each unit was taken, oldest first. */
  #units: number[] = [];
  #lastMs = -Infinity;

  constructor(config: SlidingLogConfig) {
    this.#config = config;
  }

  decide(nowMs: number, cost: number): NaiveDecision {
    const { limit, countDenied, minIntervalMs } = this.#config;
    const allowed = cost === 0 || this.#passes(nowMs, cost);
    const reason = allowed ? "ok" : this.#reason(nowMs, cost);
    if (cost > 0 && (allowed || (countDenied && cost <= limit))) {
      this.debit(nowMs, cost);
      this.#lastMs = nowMs;
      if (!allowed) this.#units = this.#units.slice(-limit);
    }
    const isTooSoon = minIntervalMs > 0 && nowMs < this.#lastMs + minIntervalMs;
    const left = Math.max(0, limit - this.#countedAt(nowMs));
    return {
      allowed,
      reason,
      remaining: isTooSoon ? 0 : left,
      quotaRemaining: minIntervalMs > 0 ? left : undefined,
      retryAfterMs: allowed ? 0 : this.#waitMs(nowMs, cost),
    };
  }

  debit(nowMs: number, units: number): void {
    for (let count = 0; count < units; count += 1) this.#units.push(nowMs);
  }

  credit(nowMs: number, units: number): void {
    this.#units = this.#units.filter((takenAtMs) => nowMs < takenAtMs + this.#config.windowMs).slice(units);
  }

  uncharge(nowMs: number, units: number, atMs: number): void {
    let left = nowMs < atMs + this.#config.windowMs ? units : 0;
    this.#units = this.#units.filter((takenAtMs) => takenAtMs !== atMs || (left -= 1) < 0);
  }

  #countedAt(nowMs: number): number {
    return this.#units.filter((takenAtMs) => nowMs < takenAtMs + this.#config.windowMs).length;
  }

  #passes(nowMs: number, cost: number): boolean {
    const { limit, minIntervalMs } = this.#config;
    return this.#countedAt(nowMs) + cost <= limit && nowMs >= this.#lastMs + minIntervalMs;
  }

  /** The last reason to wait for a denied cost, before this denial is counted. */
  #reason(nowMs: number, cost: number): string {
    if (cost > this.#config.limit) return "cost-over-limit";
    const atMs = nowMs + (this.#waitMs(nowMs, cost) ?? 0);
    const hasRoomBefore = this.#countedAt(atMs - 1) + cost <= this.#config.limit;
    return hasRoomBefore ? "min-interval" : "quota";
  }

  /** Found by trying every instant at which something changes. */
  #waitMs(nowMs: number, cost: number): number | null {
    const { limit, windowMs, minIntervalMs } = this.#config;
    if (cost > limit) return null;
    const instants = [this.#lastMs + minIntervalMs, ...this.#units.map((takenAtMs) => takenAtMs + windowMs)];
    const passes = instants.filter((atMs) => atMs > nowMs && this.#passes(atMs, cost));
    return Math.min(...passes) - nowMs;
  }
}
