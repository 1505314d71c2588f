import type { Forecast, Uses } from "../algorithms/forecast.ts";
import type { Rule } from "../policies/policy.ts";
import { heldUnits, indexAfter, usesOf, type Hold } from "./hold.ts";

/**
 * One account as it will be, if every hold is used when it expires, every lease runs to its end, and no call comes.
 *
 * Time moves on in it, and never back. So each hold is met once, however many questions are asked on the way.
 */
export class Outlook {
  readonly #rule: Rule;
  readonly #forecast: Forecast;
  readonly #holds: Uses;
  #nextHold = 0;
  /** The ends and the units of leases that begin on the way, in the order of their ends. */
  readonly #leasesEndMs: number[] = [];
  readonly #leased: number[] = [];
  #nextLease = 0;
  #outstanding: number;

  constructor(rule: Rule, state: unknown, holds: readonly Hold[]) {
    this.#rule = rule;
    this.#forecast = rule.algorithm.forecast(rule.config, state);
    this.#holds = usesOf(holds);
    this.#outstanding = heldUnits(holds).all;
  }

  /**
   * The first instant, `fromMs` or later, at which a cost passes. `Infinity`: there is none, or none up to `untilMs`;
   * it may also be a later one. Time moves on, at most to that instant or to `untilMs`.
   *
   * @param apart units that are kept for more important calls; absent: as the rule says
   */
  passesAtMs(fromMs: number, cost: number, untilMs = Infinity, apart = this.#rule.apart ?? 0): number {
    // What a share says is the pool's word, and the pool knows of the units that are held here.
    if (this.#rule.algorithm.isShare === true)
      return this.#forecast.passesAtMs(fromMs, cost, this.#outstanding + apart);
    const fitsAtMs = cost === 0 ? fromMs : this.#fitsAtMs(fromMs, cost + apart, untilMs);
    // Units that are leased are all that a lease waits for, where the limit stays as it is.
    const isFixed = this.#rule.algorithm.limitNow === undefined;
    if (fitsAtMs === Infinity || (this.#rule.lease !== undefined && isFixed)) return fitsAtMs;
    for (let atMs = fitsAtMs; ; atMs = this.#nextMs()) {
      this.moveTo(atMs);
      const taken = this.#outstanding + apart;
      const passesAtMs = this.#forecast.passesAtMs(atMs, cost, taken);
      const isCertain = passesAtMs <= this.#nextMs() || this.#forecast.isCertain(atMs, taken);
      if (isCertain) return passesAtMs;
      if (this.#nextMs() > untilMs) return Infinity;
    }
  }

  /** The first instant at which the capacity has room for a cost beside what is outstanding. */
  #fitsAtMs(fromMs: number, cost: number, untilMs: number): number {
    const { endsMs, units } = this.#holds;
    const [leasesEndMs, leased] = [this.#leasesEndMs, this.#leased];
    const { capacity, apart = 0 } = this.#rule;
    let missing = cost + this.#outstanding - capacity - apart;
    let atMs = fromMs;
    let hold = this.#nextHold;
    let lease = this.#nextLease;
    let leaseMs = leasesEndMs[lease] ?? Infinity;
    while (missing > 0) {
      const holdMs = hold < endsMs.length ? (endsMs[hold] ?? Infinity) : Infinity;
      atMs = holdMs < leaseMs ? holdMs : leaseMs;
      if (atMs === Infinity || atMs > untilMs) return Infinity;
      if (holdMs === atMs) {
        missing -= units[hold] ?? 0;
        hold += 1;
      } else {
        missing -= leased[lease] ?? 0;
        lease += 1;
        leaseMs = leasesEndMs[lease] ?? Infinity;
      }
    }
    return atMs;
  }

  /** Ends what expires at this instant or before. */
  moveTo(atMs: number): void {
    const { endsMs, units } = this.#holds;
    const from = this.#nextHold;
    let [to, ended] = [from, 0];
    for (; to < endsMs.length && (endsMs[to] ?? 0) <= atMs; to += 1) ended += units[to] ?? 0;
    this.#forecast.debit(this.#holds, from, to);
    this.#outstanding -= ended;
    this.#nextHold = to;
    for (; (this.#leasesEndMs[this.#nextLease] ?? Infinity) <= atMs; this.#nextLease += 1)
      this.#outstanding -= this.#leased[this.#nextLease] ?? 0;
  }

  /** Takes a cost that passes at this instant. If the rule leases, the units are free again at `endsAtMs`. */
  take(atMs: number, units: number, endsAtMs: number): void {
    if (units === 0) return;
    this.#forecast.take(atMs, units);
    if (this.#rule.lease === undefined) return;
    const index = indexAfter(this.#leasesEndMs, endsAtMs);
    this.#leasesEndMs.splice(index, 0, endsAtMs);
    this.#leased.splice(index, 0, units);
    this.#outstanding += units;
  }

  #nextMs(): number {
    return Math.min(
      this.#holds.endsMs[this.#nextHold] ?? Infinity,
      this.#leasesEndMs[this.#nextLease] ?? Infinity,
    );
  }
}
