import type { Time } from "../core/clock.ts";
import { DURATION_ALLOWED, parseDurationMs } from "../core/policies/policy-fields.ts";
import { requireInteger, violation } from "../core/violations.ts";

/** A clock that only the test moves, with timers that run when it is moved past them. */
export interface ManualClock extends Time {
  /**
   * Moves the clock, stopping at each timer on the way, until all that follows from it has happened.
   *
   * @param by milliseconds, or a duration as in policies: `"250ms" "10s" "15m" "1h" "30d"`
   */
  advance(by: number | string): Promise<void>;
}

interface Timer {
  readonly atMs: number;
  readonly work: () => void;
}

/** The default start: 2026-01-01, a Thursday, midnight in UTC. */
const DEFAULT_START_MS = 1_767_225_600_000;
/** More turns of the event loop than any call in memory takes. */
const TURNS = 4;

// Read before a test can replace it by its own.
const nextTurn: (work: () => void) => unknown =
  typeof setImmediate === "function" ? setImmediate : (work) => setTimeout(work, 0);

/**
 * @param startMs where the clock begins, in milliseconds since the Unix epoch
 * @throws TypeError if that is no integer of 0 or more: on such a clock nothing would end
 */
export function manualClock(startMs: number = DEFAULT_START_MS): ManualClock {
  requireInteger("startMs", startMs, 0);
  /** In the order in which they run. */
  const timers: Timer[] = [];
  let nowMs = startMs;
  const remove = (timer: Timer) => {
    const index = timers.indexOf(timer);
    if (index >= 0) timers.splice(index, 1);
  };
  return {
    nowMs: () => nowMs,
    after(ms, work) {
      const timer = { atMs: nowMs + Math.max(0, Math.ceil(ms)), work };
      timers.splice(timers.findLastIndex(({ atMs }) => atMs <= timer.atMs) + 1, 0, timer);
      return () => remove(timer);
    },
    async advance(by) {
      const untilMs = nowMs + durationMs(by);
      await settled();
      for (let [next] = timers; next !== undefined && next.atMs <= untilMs; [next] = timers) {
        timers.shift();
        nowMs = Math.max(nowMs, next.atMs);
        next.work();
        await settled();
      }
      nowMs = Math.max(nowMs, untilMs);
      await settled();
    },
  };
}

async function settled(): Promise<void> {
  for (let turn = 0; turn < TURNS; turn += 1) await new Promise<void>((done) => nextTurn(done));
}

function durationMs(by: number | string): number {
  const ms = by === 0 ? 0 : parseDurationMs(typeof by === "number" ? `${by}ms` : by);
  if (ms === undefined)
    throw new TypeError(violation(["by"], by, `whole milliseconds, or ${DURATION_ALLOWED}`));
  return ms;
}
