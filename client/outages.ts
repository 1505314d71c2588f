import type { Time } from "../core/clock.ts";

/** After one line about a limiter that does not answer, the next comes so much later at the earliest, in milliseconds. */
const QUIET_MS = 10_000;

/**
 * Says on the console that the limiter does not answer: at once, and from then on how many calls that were. It sets no
 * timer, since in a worker that would be one request's: what is left to say is said with the next call or answer.
 */
export class Outages {
  readonly #time: Time;
  #saidAtMs = -Infinity;
  #calls = 0;
  #cause = "";

  constructor(time: Time) {
    this.#time = time;
  }

  /** @param calls how many were answered without the limiter; 0: a message failed that no call waits for */
  note(cause: string, calls = 1): void {
    const isFirst = this.#calls === 0;
    this.#calls += calls;
    this.#cause = cause;
    const nowMs = this.#time.nowMs();
    if (!this.#isDue(nowMs)) return;
    if (!isFirst) return this.#say(nowMs);
    this.#saidAtMs = nowMs;
    this.#calls = 0;
    console.warn(`weir: no answer from the limiter: ${cause}`);
  }

  /** The limiter has answered. */
  answered(): void {
    if (this.#calls === 0) return;
    const nowMs = this.#time.nowMs();
    if (this.#isDue(nowMs)) this.#say(nowMs);
  }

  #isDue(nowMs: number): boolean {
    // The clock may have been set back.
    return nowMs < this.#saidAtMs || nowMs - this.#saidAtMs >= QUIET_MS;
  }

  #say(nowMs: number): void {
    const calls = this.#calls === 1 ? "1 call was" : `${this.#calls} calls were`;
    const seconds = Math.max(1, Math.round((nowMs - this.#saidAtMs) / 1_000));
    this.#saidAtMs = nowMs;
    this.#calls = 0;
    console.warn(`weir: ${calls} answered without the limiter in the last ${seconds} s: ${this.#cause}`);
  }
}
