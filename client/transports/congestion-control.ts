/**
 * How fast a holder sends messages to one object. The next message goes when the last one is answered, or overdue by the
 * holder's own measure of the round trip: the smoothed mean and deviation of RFC 6298, section 2. Each further overdue
 * message doubles that time, with jitter. After `MAX_MISSED` of them the object counts as overloaded: for a while calls
 * are answered without it, at once, except one that probes it. So a slow object gets fewer messages and not more.
 */
import { jitterAt } from "../../core/clock.ts";

/**
 * An isolate itself may stand still for as long, so a message is no sooner overdue than this after the mean (as RFC 6298
 * does with the granularity of its clock). Where round trips hardly differ, four deviations of them are nothing.
 */
export const STILL_MS = 25;
/** The time before the first answer (RFC 6298, 2.1): holders that all start at once wait for each other. */
const FIRST_OVERDUE_MS = 1_000;
/** As many overdue messages in a row mean that the object is overloaded, or away. */
const MAX_MISSED = 3;
/** How long calls are then answered without it, doubled with each probe that fails. */
const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 4_500;
/** Whatever an object says. */
const MAX_PACE_MS = 10_000;
/** The most messages in flight, where each further one is full: 250 ms away they are 64 a second. */
const MAX_FLIGHTS = 16;
/** The most time for which a message waits for further calls. In a millisecond a server answers some ten requests. */
const MAX_GATHER_MS = 1;
/** The most that is added to a doubled time, as a part of it: holders that failed together do not come again together. */
const JITTER = 0.5;

export class CongestionControl {
  readonly #all: CongestionControl | undefined;
  readonly #onPause: () => void;
  #meanMs: number | undefined;
  #deviationMs = 0;
  #leastMs = Infinity;
  #window = 1;
  #missed = 0;
  #missedAtMs = -Infinity;
  #pausedAtMs = -Infinity;
  #pauseMs = 0;
  #probedAtMs = -Infinity;
  #followedAtMs = -Infinity;
  #paceMs = 0;

  /** @param all that of the isolate's messages to all objects, which holds until this object has answered */
  constructor(all?: CongestionControl, onPause = () => {}) {
    this.#all = all;
    this.#onPause = onPause;
  }

  /** Whether it knows nothing that a new one does not: the object is near, and answers. */
  get isUsual(): boolean {
    return this.#missed === 0 && (this.#meanMs ?? 0) + 4 * this.#deviationMs <= STILL_MS;
  }

  /** How many messages may be in flight, if each further one is full. */
  get maxFlights(): number {
    return Math.floor(this.#window);
  }

  /** The time after which a message that is sent now is overdue; at most `maxMs`, the deadline of its calls. */
  overdueMs(nowMs: number, maxMs: number): number {
    const onceMs = this.#overdueOnceMs ?? FIRST_OVERDUE_MS;
    return Math.min(maxMs, Math.ceil(spread(onceMs, this.#missed, nowMs)));
  }

  /** How long the next message waits for further calls, of those whose calls were just answered: at most a round trip. */
  get gatherMs(): number {
    return Math.min(MAX_GATHER_MS, Math.floor(this.#meanMs ?? 0));
  }

  /**
   * An answer came. One that was later than its calls could wait is measured only. @param isUsed as many messages were in
   * flight as may be: the window grows by one in a round trip, as TCP's does, and halves where messages wait for each other
   */
  answered(tookMs: number, maxMs: number, isUsed = false): void {
    this.#measure(Math.min(Math.max(0, tookMs), maxMs));
    if (tookMs > 2 * this.#leastMs + STILL_MS) this.#window = Math.max(1, this.#window / 2);
    else if (isUsed) this.#window = Math.min(MAX_FLIGHTS, this.#window + 1 / this.#window);
    if (tookMs <= maxMs) this.restore();
  }

  /** The object has answered in time, so calls go to it again. */
  restore(): void {
    this.#missed = 0;
    this.#pauseMs = 0;
  }

  /** A message is overdue. Those that were under way together are missed once: one pause may have delayed them all. */
  missMessage(sentMs: number, nowMs: number): void {
    const isMissed = sentMs < this.#missedAtMs && this.#missedAtMs <= nowMs;
    if (!isMissed) this.miss(nowMs);
  }

  /** A call had no answer in time, or the object said that it is overloaded. */
  miss(nowMs: number, isOverloaded = false): void {
    // Of many calls that fail together, the first ones say it.
    if (this.isPaused(nowMs)) return;
    this.#missedAtMs = nowMs;
    this.#missed = Math.max(this.#missed + 1, isOverloaded ? MAX_MISSED : 0);
    this.#window = 1;
    if (this.#missed < MAX_MISSED) return;
    this.#onPause();
    this.#pausedAtMs = nowMs;
    this.#pauseMs = Math.min(MAX_PAUSE_MS, spread(FIRST_PAUSE_MS / 2, this.#missed - MAX_MISSED + 1, nowMs));
  }

  /**
   * Whether a call may be sent to the object. After a pause this is one call, the probe, until it is answered or
   * overdue.
   */
  admits(nowMs: number, maxMs: number): boolean {
    if (this.#missed < MAX_MISSED) return true;
    if (this.isPaused(nowMs) || isWithin(nowMs, this.#probedAtMs, maxMs)) return false;
    this.#probedAtMs = nowMs;
    return true;
  }

  /** The object is behind, and wants the next message after this time. */
  follow(paceMs: number, nowMs: number): void {
    this.#followedAtMs = nowMs;
    this.#paceMs = Math.min(MAX_PACE_MS, paceMs * (1 + (jitterAt(nowMs) - 0.5) / 2));
  }

  /** The time until the next message may be sent. */
  untilNextMs(nowMs: number): number {
    return isWithin(nowMs, this.#followedAtMs, this.#paceMs) ? this.#followedAtMs + this.#paceMs - nowMs : 0;
  }

  /** Whether calls are answered without the object. */
  isPaused(nowMs: number): boolean {
    return isWithin(nowMs, this.#pausedAtMs, this.#pauseMs);
  }

  get #overdueOnceMs(): number | undefined {
    if (this.#meanMs !== undefined) return this.#meanMs + Math.max(STILL_MS, 4 * this.#deviationMs);
    return this.#all === undefined ? undefined : this.#all.#overdueOnceMs;
  }

  #measure(tookMs: number): void {
    if (this.#all !== undefined) this.#all.#measure(tookMs);
    this.#leastMs = Math.min(this.#leastMs, tookMs);
    if (this.#meanMs === undefined) {
      this.#meanMs = tookMs;
      this.#deviationMs = tookMs / 2;
      return;
    }
    this.#deviationMs += (Math.abs(this.#meanMs - tookMs) - this.#deviationMs) / 4;
    this.#meanMs += (tookMs - this.#meanMs) / 8;
  }
}

function spread(ms: number, doublings: number, nowMs: number): number {
  return ms * 2 ** Math.min(doublings, 8) * (doublings === 0 ? 1 : 1 + JITTER * jitterAt(nowMs));
}

/** A clock that was set back ends the time. */
function isWithin(nowMs: number, sinceMs: number, ms: number): boolean {
  return nowMs >= sinceMs && nowMs < sinceMs + ms;
}
