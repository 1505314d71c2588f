import { readClockMs } from "../../core/clock.ts";

/** An alarm is set to an earlier instant only if it gains more than this, in milliseconds: each move writes a row. */
const ALARM_SLACK_MS = 60_000;
/** No alarm is set further ahead than this, in milliseconds. It comes early then, and sets the next one. */
const MAX_ALARM_MS = 30 * 24 * 60 * 60 * 1_000;

/** Does work that may take long, in steps: calls may come in between. None comes between the last step and `finish`. */
export async function inTurns<Result>(
  work: Generator<undefined, Result>,
  finish: (result: Result) => Promise<void>,
): Promise<void> {
  let step = work.next();
  for (; step.done !== true; step = work.next()) await new Promise((resolve) => setTimeout(resolve, 0));
  await finish(step.value);
}

/** Where an alarm is set. */
export type Alarm = Pick<DurableObjectStorage, "getAlarm" | "setAlarm">;

/** The object's clock and its alarm. */
export class Timers {
  readonly #storage: Alarm;
  readonly #read: () => number;
  #lastNowMs = 0;
  #alarmAtMs = Infinity;

  constructor(storage: Alarm, read = readClockMs) {
    this.#storage = storage;
    this.#read = read;
  }

  /**
   * Reads the alarm that was set before the object started. If none is, though something is stored, one is set that
   * comes after `lostMs`: the runtime has given it up.
   */
  async readAlarm(lostMs: number): Promise<void> {
    this.#alarmAtMs = (await this.#storage.getAlarm()) ?? Infinity;
    const nowMs = this.nowMs();
    if (this.#alarmAtMs === Infinity) this.alarmBy(nowMs + lostMs, nowMs);
  }

  /** The alarm has come, or was deleted: none is set now. */
  alarmCame(): void {
    this.#alarmAtMs = Infinity;
  }

  /** Sets an alarm for `dueMs`, unless one is already set for at most `slackMs` later. */
  alarmBy(dueMs: number, nowMs: number, slackMs = ALARM_SLACK_MS): void {
    const alarmAtMs = Math.min(dueMs, nowMs + MAX_ALARM_MS);
    if (this.#alarmAtMs <= alarmAtMs + slackMs) return;
    this.#alarmAtMs = alarmAtMs;
    void this.#storage.setAlarm(alarmAtMs);
  }

  /** The object's clock, in milliseconds since the Unix epoch. It never runs backwards. */
  nowMs(): number {
    this.#lastNowMs = Math.max(this.#lastNowMs, this.#read());
    return this.#lastNowMs;
  }
}
