import { randomId, SYSTEM_TIME } from "../core/clock.ts";
import { publicName } from "../core/policies/policy-names.ts";
import { STATS_NAME, type StatsMessage, type StatsNamespace } from "../core/stats/messages.ts";
import { StatsSender } from "../core/stats/sender.ts";
import { Tally, type Counter } from "../core/stats/tally.ts";

/** What the objects of this isolate count, all of them together: one of them alone would send a message for a few calls. */
const tally = new Tally();
const sender = new StatsSender(tally, randomId, (error) =>
  console.warn(`what objects counted could not be sent, and is sent again: ${String(error)}`),
);

/** Where an object counts. */
export const objectCounter: Pick<Counter, "add"> = tally;

/** Sees to it that what objects count is sent. No call waits for it, and no timer keeps an object in memory. */
export class ObjectStats {
  readonly #namespace: StatsNamespace | undefined;
  readonly #waitUntil: (work: Promise<unknown>) => void;

  /** @param namespace absent: nobody takes counts */
  constructor(namespace: StatsNamespace | undefined, waitUntil: (work: Promise<unknown>) => void) {
    this.#namespace = namespace;
    this.#waitUntil = waitUntil;
  }

  /** Counts a call on a key. What was counted before is sent when it is time. */
  called(policy: string, method: string): void {
    if (this.#namespace === undefined) return;
    tally.add("object_calls", [publicName(policy), method]);
    if (sender.isDue(SYSTEM_TIME.nowMs())) this.#waitUntil(sender.begin(SYSTEM_TIME, this.#push, 0));
  }

  /** Sends all that has been counted: the process is about to end. */
  async sendAll(): Promise<void> {
    if (this.#namespace === undefined) return;
    // First what had no answer, then what has been counted since.
    for (let messages = 0; messages < 2; messages += 1) await sender.send(SYSTEM_TIME, this.#push);
  }

  readonly #push = (message: StatsMessage) =>
    this.#namespace?.getByName(STATS_NAME).push(message) ?? Promise.resolve();
}
