/**
 * Calls that wait at a region's object for the next units of a full log or window, each for one: its turn.
 *
 * Of a window the burst of a region's bucket is held twice, so each unit of burst is a unit that nobody admits. But a bucket
 * with a burst of two is full as soon as no call comes for a moment, and what comes then is lost. With calls that wait, no
 * unit waits for a call. Example: a region has 100 units a second, and the next one comes in 4 ms. Three calls come: they are
 * decided in 4, 14 and 24 ms, and each finds its unit.
 *
 * A turn only says when a call is decided. The account decides it then, so no turn admits what the account lacks.
 */
import { MAX_TURN_MS } from "../../core/reservations/sizing.ts";

export class UnitTurns {
  /** Not a count of calls: a request that waits may end at any moment, and could not be counted out. */
  #lastAtMs = -Infinity;

  /**
   * Gives a call its turn. @returns how long it waits; 0: it is decided at once
   * @param nextMs when the next unit is there; 0: now
   * @param unitMs the time between two units
   */
  take(nextMs: number, unitMs: number, nowMs: number): number {
    if (nextMs <= 0 && this.#lastAtMs <= nowMs) return 0;
    const atMs = Math.max(nowMs + nextMs, this.#lastAtMs + unitMs);
    // Also after the clock was set back.
    if (atMs > nowMs + MAX_TURN_MS) return 0;
    this.#lastAtMs = atMs;
    return Math.ceil(atMs - nowMs);
  }
}
