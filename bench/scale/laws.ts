/**
 * The quota as one exact limiter counts it, and the two laws that hold whatever is handed out to whom: on the admissions,
 * and on what may be admitted at an instant. It shares no code with the product. Instants are whole milliseconds.
 */
export interface Quota {
  readonly algorithm: "token-bucket" | "sliding-log" | "fixed-window";
  readonly limit: number;
  readonly windowMs: number;
}

export class ExactQuota {
  readonly #quota: Quota;
  #left: number;
  #atMs = 0;
  /** A log: the units of each of the last `windowMs` milliseconds. */
  readonly #log: Int32Array;

  constructor(quota: Quota) {
    this.#quota = quota;
    this.#left = quota.limit;
    this.#log = new Int32Array(quota.algorithm === "sliding-log" ? quota.windowMs : 0);
  }

  /** The units that are left; fewer than none, if too many were taken. The burst of a bucket is its limit. */
  leftAt(nowMs: number): number {
    const { algorithm, limit, windowMs } = this.#quota;
    if (algorithm === "token-bucket")
      this.#left = Math.min(limit, this.#left + (limit * (nowMs - this.#atMs)) / windowMs);
    else if (algorithm === "fixed-window")
      this.#left = nowMs % windowMs < nowMs - this.#atMs ? limit : this.#left;
    else
      for (let ms = this.#atMs + 1; ms <= nowMs; ms += 1) {
        this.#left += this.#log[ms % windowMs] ?? 0;
        this.#log[ms % windowMs] = 0;
      }
    this.#atMs = nowMs;
    return this.#left;
  }

  take(units: number, nowMs: number): void {
    this.#left = this.leftAt(nowMs) - units;
    const slot = nowMs % this.#quota.windowMs;
    if (slot < this.#log.length) this.#log[slot] = (this.#log[slot] ?? 0) + units;
  }

  /** Takes a unit if there is one. */
  admits(nowMs: number): boolean {
    if (this.leftAt(nowMs) < 1) return false;
    this.take(1, nowMs);
    return true;
  }
}

/** What one holder or object may admit by itself at an instant, without hearing of another. */
export interface Share {
  /** Units that it may admit now. */
  readonly units: number;
  /** For a part of the quota: what it may admit in a window on top of `burst`, which is what it may admit at once. */
  readonly perWindow?: number;
  readonly burst?: number;
}

/**
 * Units that were admitted, or could be admitted, and that the quota does not have.
 *
 * - *Admitted*: a bucket that each admission is taken from is never below empty, which is its bound in every interval at
 *   once. No window of a log has more than the limit.
 * - *Handed out*: if at any instant all admitted what they may, the first law would still hold. The parts of the quota
 *   that are handed out are together no more than the quota. This finds a unit that is handed out twice, also where
 *   nobody uses it.
 */
export class Laws {
  admittedOver = 0;
  handedOutOver = 0;
  readonly #quota: Quota;
  readonly #exact: ExactQuota;

  constructor(quota: Quota) {
    this.#quota = quota;
    this.#exact = new ExactQuota(quota);
  }

  admitted(units: number, nowMs: number): void {
    this.#exact.take(units, nowMs);
    this.admittedOver = Math.max(this.admittedOver, -this.#exact.leftAt(nowMs));
  }

  handedOut(shares: Iterable<Share>, nowMs: number): void {
    let [units, rates, bursts] = [0, 0, 0];
    for (const { units: own, perWindow = 0, burst = 0 } of shares) {
      units += own;
      rates += perWindow;
      bursts += burst;
    }
    const { algorithm, limit } = this.#quota;
    // Rates are fractions, whose sum is not exact.
    const rounded = Math.round(rates * 1e6) / 1e6;
    // A log or window counts all that is admitted in it, at once or at a rate.
    const most = algorithm === "token-bucket" ? Math.max(rounded, bursts) : rounded + bursts;
    const over = Math.max(units - this.#exact.leftAt(nowMs), most - limit);
    this.handedOutOver = Math.max(this.handedOutOver, over);
  }
}
