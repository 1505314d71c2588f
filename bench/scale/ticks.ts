import type { Time } from "../../core/clock.ts";

/**
 * Virtual time in ticks of one millisecond, as the product's clocks and timers have. All events of a tick run in the
 * order of their making, then all promises settle, until nothing of this tick is left. Unlike a heap, this takes
 * constant time for each event, and promises settle once a tick instead of once an event.
 */
export class Ticks {
  nowMs = 0;
  readonly #due = new Map<number, (() => void)[]>();

  /** Runs `work` in the tick of `atMs`, or in the next one if it is over. */
  at(atMs: number, work: () => void): void {
    const tick = Math.max(Math.ceil(atMs), this.nowMs + 1);
    const due = this.#due.get(tick);
    if (due === undefined) this.#due.set(tick, [work]);
    else due.push(work);
  }

  /** A clock that is ahead by `aheadMs`. */
  clock(aheadMs: number): Time {
    return {
      nowMs: () => this.nowMs + aheadMs,
      after: (ms, work) => {
        let left: (() => void) | undefined = work;
        this.at(this.nowMs + ms, () => left?.());
        return () => {
          left = undefined;
        };
      },
    };
  }

  /** Runs until `isOver`, and calls `inTick` in each tick after its events. */
  async run(isOver: () => boolean, inTick: (nowMs: number) => void): Promise<void> {
    for (; !isOver(); this.nowMs += 1) {
      const due = this.#due.get(this.nowMs);
      if (due !== undefined) {
        this.#due.delete(this.nowMs);
        for (const work of due) work();
        await settled();
      }
      inTick(this.nowMs);
      await settled();
    }
  }
}

/** Waits until no promise has a continuation left: these run before an immediate. */
function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
