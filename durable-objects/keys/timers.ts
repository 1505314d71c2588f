import { readClockMs } from "../../core/clock.ts";
import { QUIET_MS, type KeyCache } from "./key-cache.ts";

/** An alarm is set to an earlier instant only if it gains more than this, in milliseconds: each move writes a row. */
const ALARM_SLACK_MS = 60_000;
/** No alarm is set further ahead than this, in milliseconds. It comes early then, and sets the next one. */
const MOST_ALARM_MS = 30 * 24 * 60 * 60 * 1_000;

/** Does work that may take long, in steps: calls may come in between. None comes between the last step and `finish`. */
export async function inTurns<Result>(
  work: Generator<undefined, Result>,
  finish: (result: Result) => Promise<void>,
): Promise<void> {
  let step = work.next();
  for (; step.done !== true; step = work.next()) await new Promise((resolve) => setTimeout(resolve, 0));
  await finish(step.value);
}

/** The object's clock, its alarm, and the timer that writes keys which have been quiet. */
export class Timers {
  readonly #storage: DurableObjectStorage;
  readonly #cache: KeyCache;
  #lastNowMs = 0;
  #alarmAtMs = Infinity;
  #hasQuietTimer = false;

  constructor(storage: DurableObjectStorage, cache: KeyCache) {
    this.#storage = storage;
    this.#cache = cache;
  }

  /** Reads the alarm that was set before the object started. */
  async readAlarm(): Promise<void> {
    this.#alarmAtMs = (await this.#storage.getAlarm()) ?? Infinity;
  }

  /** The alarm has come, or was deleted: none is set now. */
  alarmCame(): void {
    this.#alarmAtMs = Infinity;
  }

  /** Sets an alarm for `dueMs`, unless one is already set for at most `slackMs` later. */
  alarmBy(dueMs: number, nowMs: number, slackMs = ALARM_SLACK_MS): void {
    const alarmAtMs = Math.min(dueMs, nowMs + MOST_ALARM_MS);
    if (this.#alarmAtMs <= alarmAtMs + slackMs) return;
    this.#alarmAtMs = alarmAtMs;
    void this.#storage.setAlarm(alarmAtMs);
  }

  /** Writes keys that have been quiet, once a second while memory is ahead of storage. An idle object has no timer. */
  watchQuiet(): void {
    if (this.#hasQuietTimer || !this.#cache.isAhead) return;
    this.#hasQuietTimer = true;
    setTimeout(() => {
      this.#hasQuietTimer = false;
      this.#cache.writeQuiet(this.nowMs());
      this.watchQuiet();
    }, QUIET_MS);
  }

  /** The object's clock, in milliseconds since the Unix epoch. It never runs backwards. */
  nowMs(): number {
    this.#lastNowMs = Math.max(this.#lastNowMs, readClockMs());
    return this.#lastNowMs;
  }
}
