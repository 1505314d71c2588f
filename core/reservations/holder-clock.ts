import { MAX_MARGIN_MS } from "./sizing.ts";

/**
 * The clock by which one holder counts the lifetimes of its units. Requests of one isolate may read slightly different
 * instants: the runtime makes clocks coarse, lets them stand still while code runs, and goes on with a request on another
 * thread. So the largest instant counts that any of them has read.
 *
 * A clock that is put back stands still here until it has caught up, which makes lifetimes longer. That is no harm as
 * long as it is within the last part of a lifetime, in which nothing is spent. More is a jump: then all units have to
 * go back.
 */
export class HolderClock {
  #latestMs = -Infinity;
  /** The shortest such part of all units that are held. */
  #marginMs = MAX_MARGIN_MS;

  /** The largest instant that was read since the last jump. */
  get latestMs(): number {
    return this.#latestMs;
  }

  /** By how much the clock may be put back. */
  get marginMs(): number {
    return this.#marginMs;
  }

  /** Takes what a request has read. Returns whether it is a jump: from then on that reading counts. */
  read(readMs: number): boolean {
    if (readMs >= this.#latestMs) {
      this.#latestMs = readMs;
      return false;
    }
    if (this.#latestMs - readMs <= this.#marginMs) return false;
    this.restart(readMs);
    return true;
  }

  /** Notes that units are held at whose end nothing is spent for so long. */
  hold(marginMs: number): void {
    this.#marginMs = Math.min(this.#marginMs, marginMs);
  }

  /** Notes that nothing is held. */
  release(): void {
    this.#marginMs = MAX_MARGIN_MS;
  }

  /** Counts from this reading on. Nothing is held. */
  restart(readMs: number): void {
    this.#latestMs = readMs;
    this.release();
  }
}

/**
 * Looks at the clock in steps that a timer measures, so it sees a clock that is put back again and again, by a little
 * each time. A timer may be late, and never early, so the clock is ahead of all steps together by more and more, or by as
 * much as before.
 */
export class SteppedClock {
  readonly #clock: HolderClock;
  #steppedMs = 0;
  #mostAheadMs = -Infinity;

  constructor(clock: HolderClock) {
    this.#clock = clock;
  }

  /** Whether the clock was put back by more than the margin, in all steps together. */
  step(steppedMs: number, readMs: number): boolean {
    this.#steppedMs += steppedMs;
    const aheadMs = readMs - this.#steppedMs;
    const isBack = this.#mostAheadMs - aheadMs > this.#clock.marginMs;
    this.#mostAheadMs = isBack ? aheadMs : Math.max(this.#mostAheadMs, aheadMs);
    return isBack;
  }
}
