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
  const timers = new Set<{ readonly atMs: number; readonly work: () => void }>();
  let nowMs = startMs;
  /** The first timer until then; of several, the one that was set first. */
  const firstUntil = (untilMs: number) => {
    const [first] = [...timers].toSorted((one, other) => one.atMs - other.atMs);
    return first !== undefined && first.atMs <= untilMs ? first : undefined;
  };
  return {
    nowMs: () => nowMs,
    after(ms, work) {
      const timer = { atMs: nowMs + Math.max(0, Math.ceil(ms)), work };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    async advance(by) {
      const untilMs = nowMs + durationMs(by);
      await settled();
      for (let next = firstUntil(untilMs); next !== undefined; next = firstUntil(untilMs)) {
        timers.delete(next);
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
