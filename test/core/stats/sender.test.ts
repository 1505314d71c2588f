/** An isolate that sends over a bad line to an object that dies: the object has what was counted, once. */
import { expect, test } from "vitest";
import type { Time } from "../../../core/clock.ts";
import { PolicyNames } from "../../../core/stats/counts.ts";
import { withMessage, type OpenMinute } from "../../../core/stats/ledger.ts";
import type { StatsMessage } from "../../../core/stats/messages.ts";
import { SEND_EVERY_MS, StatsSender, Tally } from "../../../core/stats/tally.ts";
import { seededRandom, seedOr, whole } from "../../support/random.ts";

const HISTORIES = 300;
const SERIES = "decisions api admitted ok isolate";
const EMPTY: OpenMinute = { minute: 0, counts: {}, senders: [] };

/** Time that goes on when it is told to. Timers run when they are due. */
class Clock implements Time {
  #nowMs = 0;
  #timers: { readonly atMs: number; readonly work: () => void }[] = [];

  nowMs(): number {
    return this.#nowMs;
  }

  after(ms: number, work: () => void): () => void {
    const timer = { atMs: this.#nowMs + ms, work };
    this.#timers.push(timer);
    return () => (this.#timers = this.#timers.filter((each) => each !== timer));
  }

  async pass(ms: number): Promise<void> {
    const untilMs = this.#nowMs + ms;
    for (;;) {
      for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
      const [next] = this.#timers.filter(({ atMs }) => atMs <= untilMs).toSorted((a, b) => a.atMs - b.atMs);
      if (next === undefined) break;
      this.#timers = this.#timers.filter((each) => each !== next);
      this.#nowMs = Math.max(this.#nowMs, next.atMs);
      next.work();
    }
    this.#nowMs = untilMs;
  }
}

/** The object: what it has stored, which survives its death. */
class Recorded {
  stored = EMPTY;
  count(message: StatsMessage, nowMs: number): void {
    this.stored = withMessage(this.stored, message, new PolicyNames(), nowMs);
  }
  get total(): number {
    return this.stored.counts[SERIES] ?? 0;
  }
}

async function history(seed: number): Promise<void> {
  const random = seededRandom(seed);
  const [clock, object, tally] = [new Clock(), new Recorded(), new Tally()];
  const sender = new StatsSender(tally, () => "isolate");
  let [counted, sent] = [0, 0];
  let isGood = false;
  const push = async (message: StatsMessage): Promise<void> => {
    sent += 1;
    const fate = isGood ? 1 : random();
    // Lost on its way; counted, but its answer is lost; the answer comes after the deadline; the object hangs.
    if (fate < 0.2) throw new Error("lost");
    if (fate < 0.3) await new Promise(() => undefined);
    object.count(message, clock.nowMs());
    if (fate < 0.4) object.count(message, clock.nowMs());
    if (fate < 0.5) throw new Error("the answer is lost");
    if (fate < 0.6) await new Promise<void>((done) => clock.after(whole(random, 30_000), done));
  };
  const request = () => {
    tally.decided({ policy: "api", key: "a", success: true, reason: "ok", source: "isolate" });
    counted += 1;
    // The request that keeps the message may be ended, and then nothing of it runs any more.
    const isDue = sender.isDue(clock.nowMs());
    const time =
      isGood || random() < 0.8 ? clock : { nowMs: () => clock.nowMs(), after: () => () => undefined };
    if (isDue) void sender.begin(time, push, SEND_EVERY_MS);
  };
  for (let step = 0; step < 60; step += 1) {
    request();
    await clock.pass(whole(random, 8_000));
    expect(object.total).toBeLessThanOrEqual(counted);
  }
  isGood = true;
  for (let step = 0; step < 6; step += 1) {
    request();
    await clock.pass(2 * SEND_EVERY_MS);
  }
  await clock.pass(2 * SEND_EVERY_MS);
  expect(object.total).toBe(counted);
  // One in 10 s at most, and one more while others are under way.
  expect(sent).toBeLessThanOrEqual(clock.nowMs() / SEND_EVERY_MS + 1);
}

test("everything is counted once, whatever is lost, late or repeated, and whoever ends", async () => {
  const first = seedOr(1);
  for (let seed = first; seed < first + HISTORIES; seed += 1)
    await history(seed).catch((error: unknown) => {
      throw new Error(`SEED=${seed}: ${String(error)}`, { cause: error });
    });
});

test("a message without an answer goes again as it was, and what was counted since waits", async () => {
  const [clock, tally] = [new Clock(), new Tally()];
  const sender = new StatsSender(tally, () => "isolate");
  const messages: StatsMessage[] = [];
  let isLost = true;
  const push = async (message: StatsMessage) => {
    messages.push(message);
    if (isLost) throw new Error("lost");
  };
  tally.add("rows_read", []);
  expect(await sender.send(clock, push)).toBe(false);
  tally.add("rows_read", [], 5);
  isLost = false;
  expect(await sender.send(clock, push)).toBe(true);
  expect(await sender.send(clock, push)).toBe(true);
  expect(messages.map(({ number, counts }) => [number, counts["rows_read"]])).toEqual([
    [1, 1],
    [1, 1],
    [2, 5],
  ]);
  expect(await sender.send(clock, push)).toBe(true);
  expect(messages.length).toBe(3);
});

test("while a message is under way there is no other", async () => {
  const [clock, tally] = [new Clock(), new Tally()];
  const sender = new StatsSender(tally, () => "isolate");
  let pushes = 0;
  const push = async () => {
    pushes += 1;
    await new Promise(() => undefined);
  };
  tally.add("rows_read", []);
  void sender.send(clock, push);
  expect(await sender.send(clock, push)).toBe(false);
  expect(pushes).toBe(1);
  await clock.pass(20_000);
  void sender.send(clock, push);
  await clock.pass(0);
  expect(pushes).toBe(2);
});

test("at the end of a process all is sent, also what was counted while a message was under way", async () => {
  const [clock, tally] = [new Clock(), new Tally()];
  const sender = new StatsSender(tally, () => "isolate");
  const counted: unknown[] = [];
  const push = async (message: StatsMessage) => {
    await new Promise<void>((done) => clock.after(500, done));
    counted.push(message.counts["rows_read"]);
  };
  tally.add("rows_read", []);
  void sender.begin(clock, push, 0);
  await clock.pass(100);
  tally.add("rows_read", [], 5);
  const ended = sender.sendAll(clock, push);
  await clock.pass(2_000);
  await ended;
  expect(counted).toEqual([1, 5]);
});
