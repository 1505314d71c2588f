import { readClockMs } from "../../core/clock.ts";
import { QUIET_MS, type KeyCache } from "./key-cache.ts";

/** An alarm is moved forward only for this much or more: each move is a row written. */
const ALARM_SLACK_MS = 60_000;
/** No alarm is set further ahead; it looks again then. */
const MOST_ALARM_MS = 30 * 24 * 60 * 60 * 1_000;

/** What an object does in time: its clock, its alarm, and the writing of what has been quiet. */
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

  /** Finds the alarm that was set before this start, if there was one. */
  async readAlarm(): Promise<void> {
    this.#alarmAtMs = (await this.#storage.getAlarm()) ?? Infinity;
  }

  /** The alarm has come: there is none now. */
  alarmCame(): void {
    this.#alarmAtMs = Infinity;
  }

  /** Sees to it that an alarm comes by then, or up to `slackMs` later. */
  alarmBy(dueMs: number, nowMs: number, slackMs = ALARM_SLACK_MS): void {
    const alarmAtMs = Math.min(dueMs, nowMs + MOST_ALARM_MS);
    if (this.#alarmAtMs <= alarmAtMs + slackMs) return;
    this.#alarmAtMs = alarmAtMs;
    void this.#storage.setAlarm(alarmAtMs);
  }

  /** While memory is ahead of storage, a timer writes what has been quiet; it keeps no idle object in memory. */
  watchQuiet(): void {
    if (this.#hasQuietTimer || !this.#cache.isAhead) return;
    this.#hasQuietTimer = true;
    setTimeout(() => {
      this.#hasQuietTimer = false;
      this.#cache.writeQuiet(this.nowMs());
      this.watchQuiet();
    }, QUIET_MS);
  }

  /** The clock of this object, which never runs backwards. */
  nowMs(): number {
    this.#lastNowMs = Math.max(this.#lastNowMs, readClockMs());
    return this.#lastNowMs;
  }
}
