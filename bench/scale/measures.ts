/** What became of the calls of a cell. */
import type { Decision } from "../../core/protocol/decision.ts";
import { ExactQuota, type Quota } from "./laws.ts";

/** A cold start may take this long; after it all is counted. */
export const WARM_MS = 5_000;
/** After the last call, answers may take this long. */
export const LATE_MS = 3_000;
/** Fairness is measured over this long, at the end. */
const FAIR_MS = 10_000;
/** The parts of a run in which what is admitted is compared, to say when it is normal: a log's are its windows. */
const MIN_BIN_MS = 500;
const NORMAL = 0.9;

export interface Figures {
  /** Admitted calls, as a part of those that one exact limiter admits. */
  readonly admitted: number;
  /** Parts of all calls: those that were not decided, and those that waited for a message. */
  readonly degraded: number;
  readonly waited: number;
  /** Waits of calls that waited, in milliseconds. */
  readonly waitP50: number;
  readonly waitP99: number;
  /** At the busiest object: messages a second that are sent to it, and the part of the time in which it works. */
  readonly messages: number;
  readonly busy: number;
  /** All objects, and the messages a second that are sent to them. */
  readonly objects: number;
  readonly allMessages: number;
  /** Jain's index of the admitted parts of holders' calls, and that of one exact limiter. */
  readonly jain: number;
  readonly jainExact: number;
  /** Units beyond the quota: see `Laws`. */
  readonly admittedOver: number;
  readonly handedOutOver: number;
  /** Of `Cell.plan`: what is over its own limit. */
  readonly planOver?: number;
  /** Seconds until 0.9 is admitted, since the cold start and since the event. `Infinity`: never. */
  readonly coldS: number;
  readonly backS: number;
  /** Lines that the product has logged, each second. */
  readonly logLines: number;
  /** How long calls were made, in seconds. */
  readonly seconds: number;
  /** `Measures.timeline`. */
  readonly timeline: readonly number[];
}

interface CallMade {
  readonly holder: number;
  readonly atMs: number;
}

/** What became of the calls. A call counts for the instant at which it was made, whenever it is answered. */
export class Measures {
  readonly #durationMs: number;
  readonly #exact: ExactQuota;
  readonly #counts = { calls: 0, exactly: 0, admitted: 0, degraded: 0, waited: 0 };
  /** Calls by their wait in whole milliseconds, the longest ones together. */
  readonly #waits = new Int32Array(LATE_MS);
  readonly #binMs: number;
  readonly #bins: { exactly: number; admitted: number }[] = [];
  /** By holder, in the last seconds. */
  readonly #fair: { calls: number; exactly: number; admitted: number }[];

  constructor(durationMs: number, holders: number, quota: Quota) {
    this.#durationMs = durationMs;
    this.#exact = new ExactQuota(quota);
    this.#binMs = quota.algorithm === "sliding-log" ? quota.windowMs : MIN_BIN_MS;
    this.#bins = Array.from({ length: Math.ceil(durationMs / this.#binMs) }, () => ({
      exactly: 0,
      admitted: 0,
    }));
    this.#fair = Array.from({ length: holders }, () => ({ calls: 0, exactly: 0, admitted: 0 }));
  }

  begin(holder: number, atMs: number): CallMade {
    const call = { holder, atMs };
    this.#add(call, "calls");
    if (this.#exact.admits(atMs)) this.#add(call, "exactly");
    return call;
  }

  end(call: CallMade, decision: Decision | undefined, nowMs: number): void {
    if (decision === undefined || decision.reason === "degraded") this.#add(call, "degraded");
    else if (decision.success) this.#add(call, "admitted");
    if (nowMs === call.atMs) return;
    this.#add(call, "waited");
    const waitMs = Math.min(nowMs - call.atMs, LATE_MS - 1);
    if (call.atMs >= WARM_MS) this.#waits[waitMs] = (this.#waits[waitMs] ?? 0) + 1;
  }

  #add({ holder, atMs }: CallMade, what: "calls" | "exactly" | "admitted" | "degraded" | "waited"): void {
    if (atMs >= WARM_MS) this.#counts[what] += 1;
    if (what === "degraded" || what === "waited") return;
    const fair = this.#fair[holder];
    if (fair !== undefined && atMs >= this.#durationMs - FAIR_MS) fair[what] += 1;
    const bin = this.#bins[Math.floor(atMs / this.#binMs)];
    if (bin !== undefined && what !== "calls") bin[what] += 1;
  }

  /** Admitted calls since the cold start is over. */
  get admitted(): number {
    return this.#counts.admitted;
  }

  figures() {
    const { calls, exactly, admitted, degraded, waited } = this.#counts;
    const called = this.#fair.filter((each) => each.calls > 0);
    return {
      admitted: admitted / exactly,
      degraded: degraded / calls,
      waited: waited / calls,
      waitP50: this.#waitAt(0.5),
      waitP99: this.#waitAt(0.99),
      jain: jainIndex(called.map((each) => each.admitted / each.calls)),
      jainExact: jainIndex(called.map((each) => each.exactly / each.calls)),
    };
  }

  /** What is admitted in each part of the run, as a part of what one exact limiter admits in it. */
  get timeline(): readonly number[] {
    return this.#bins.map(({ exactly, admitted }) => admitted / exactly);
  }

  #waitAt(part: number): number {
    let left = part * this.#waits.reduce((sum, count) => sum + count, 0);
    return Math.max(
      0,
      this.#waits.findIndex((count) => (left -= count) <= 0),
    );
  }

  /** Seconds from `sinceMs` until what is admitted from then on, to `untilMs`, is `NORMAL`. */
  normalAfterS(sinceMs: number, untilMs: number): number {
    const bins = this.#bins
      .slice(sinceMs / this.#binMs, untilMs / this.#binMs)
      .filter(({ exactly }) => exactly > 0);
    const isNormal = (some: readonly { exactly: number; admitted: number }[]) =>
      some.reduce((sum, { exactly, admitted }) => sum + admitted - NORMAL * exactly, 0) >= 0;
    const index = bins.findIndex((bin, at) => isNormal([bin]) && isNormal(bins.slice(at)));
    return index < 0 ? Infinity : (index * this.#binMs) / 1_000;
  }
}

/** 1: all have the same part. 1/n: one of n has all. `NaN`: none has any. */
function jainIndex(parts: readonly number[]): number {
  const sum = parts.reduce((total, each) => total + each, 0);
  const squares = parts.reduce((total, each) => total + each * each, 0);
  return sum ** 2 / (parts.length * squares);
}
