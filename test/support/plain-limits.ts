/** The limit rules as simply as possible: variables that change, and a sum instead of a running average. */
import type { LimitTerms, Sample } from "../../core/algorithms/adaptive/adaptive-limits.ts";

export class PlainLimit {
  limit: number;
  readonly #terms: LimitTerms;
  readonly #floor: number;
  readonly #ceiling: number;
  #noLoadMs = 0;
  #calls = 0;
  #probes = 0;
  #first: number[] = [];
  #longMs = 0;

  constructor(terms: LimitTerms, floor: number, initial: number, ceiling: number) {
    this.#terms = terms;
    this.#floor = floor;
    this.limit = initial;
    this.#ceiling = ceiling;
  }

  add(sample: Sample): number {
    const terms = this.#terms;
    if (terms.adapt === "aimd") {
      if (sample.isDropped || sample.durationMs > terms.timeoutMs)
        this.#set(Math.floor(this.limit * terms.backoffRatio));
      else if (2 * sample.inFlight >= this.limit) this.#set(this.limit + 1);
    } else if (terms.adapt === "vegas") this.#vegas(terms, sample);
    else this.#gradient2(terms, sample);
    return this.limit;
  }

  #vegas(terms: LimitTerms & { adapt: "vegas" }, { durationMs, inFlight, isDropped }: Sample): void {
    this.#calls += 1;
    const golden = 0.618033988749895;
    const fraction = (this.#probes + 1) * golden;
    const part = 0.5 + 0.5 * (fraction - Math.floor(fraction));
    if (this.#calls >= part * terms.probeMultiplier * this.limit) {
      this.#calls = 0;
      this.#probes += 1;
      this.#noLoadMs = durationMs;
      return;
    }
    if (this.#noLoadMs === 0 || durationMs < this.#noLoadMs) {
      this.#noLoadMs = durationMs;
      return;
    }
    // One less than the number of digits.
    const step = Math.max(1, String(Math.floor(this.limit)).length - 1);
    const alpha = terms.alpha ?? 3 * step;
    const beta = terms.beta ?? 6 * step;
    const waiting = Math.ceil(this.limit * (1 - this.#noLoadMs / durationMs));
    let change = 0;
    if (isDropped) change = -step;
    else if (2 * inFlight < this.limit) return;
    else if (waiting <= step) change = beta;
    else if (waiting < alpha) change = step;
    else if (waiting > beta) change = -step;
    else return;
    const wanted = Math.min(this.#ceiling, Math.max(this.#floor, this.limit + change));
    this.#set((1 - terms.smoothing) * this.limit + terms.smoothing * wanted);
  }

  #gradient2(terms: LimitTerms & { adapt: "gradient2" }, { durationMs, inFlight }: Sample): void {
    if (this.#first.length < 10) {
      // From the sum, even if the average was changed meanwhile.
      this.#first.push(durationMs);
      this.#longMs = this.#first.reduce((sum, each) => sum + each, 0) / this.#first.length;
    } else {
      const factor = 2 / (terms.longWindow + 1);
      this.#longMs += (durationMs - this.#longMs) * factor;
    }
    const longMs = this.#longMs;
    if (longMs / durationMs > 2) this.#longMs = longMs * 0.95;
    if (inFlight < this.limit / 2) return;
    let gradient = (terms.rttTolerance * longMs) / durationMs;
    if (gradient > 1) gradient = 1;
    if (gradient < 0.5) gradient = 0.5;
    const wanted = this.limit * gradient + terms.queueSize;
    this.#set(this.limit + (wanted - this.limit) * terms.smoothing);
  }

  #set(limit: number): void {
    this.limit = Math.min(this.#ceiling, Math.max(this.#floor, limit));
  }
}
