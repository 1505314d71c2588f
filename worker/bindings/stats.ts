import type { Time } from "../../core/clock.ts";
import type { Compared } from "../../core/stats/compared.ts";
import { STATS_NAME, type StatsMessage, type StatsNamespace } from "../../core/stats/messages.ts";
import { SEND_EVERY_MS, StatsSender } from "../../core/stats/sender.ts";
import { Tally, type Counter, type Told } from "../../core/stats/tally.ts";

/** Counts for one isolate of the worker, and sees to it that the counts are sent. No call waits for that. */
export class WorkerStats implements Counter {
  readonly #tally: Tally;
  readonly #sender: StatsSender;
  readonly #time: Time;
  readonly #push: (message: StatsMessage) => Promise<void>;
  readonly #inBackground: (work: Promise<unknown>) => void;

  /** @param mayHaveKeys see `Tally` */
  constructor(
    namespace: StatsNamespace,
    time: Time,
    makeId: () => string,
    inBackground: (work: Promise<unknown>) => void,
    mayHaveKeys: (policy: string) => boolean,
  ) {
    this.#tally = new Tally(mayHaveKeys);
    this.#sender = new StatsSender(this.#tally, makeId, (error) =>
      console.warn(`what was counted could not be sent, and is sent again: ${String(error)}`),
    );
    this.#time = time;
    // A new stub for each message: one that has thrown stays broken, and one of another request may not be used.
    this.#push = (message) => namespace.getByName(STATS_NAME).push(message);
    this.#inBackground = inBackground;
  }

  decided(told: Told): void {
    this.#tally.decided(told);
  }

  compared(compared: Compared): void {
    this.#tally.compared(compared);
  }

  add(...args: Parameters<Counter["add"]>): void {
    this.#tally.add(...args);
  }

  lasted(...args: Parameters<Counter["lasted"]>): void {
    this.#tally.lasted(...args);
  }

  /** Sends all that has been counted: the process is about to end. */
  async sendAll(): Promise<void> {
    // First what had no answer, then what has been counted since.
    for (let messages = 0; messages < 2; messages += 1) await this.#sender.send(this.#time, this.#push);
  }

  /**
   * The next message is this request's to send: in 10 s, while it has long been answered. A request whose caller keeps stubs
   * of it must not be asked: those would end that much later.
   */
  see(): void {
    if (!this.#sender.isDue(this.#time.nowMs())) return;
    this.#inBackground(this.#sender.begin(this.#time, this.#push, SEND_EVERY_MS));
  }
}
