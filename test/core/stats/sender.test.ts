/** When an isolate sends its counts, and what. That each count is stored once: senders.workerd.test.ts. */
import { expect, test } from "vitest";
import type { Receipt, StatsMessage } from "../../../core/stats/messages.ts";
import { SEND_EVERY_MS, SENT_AGAIN_MS, StatsSender, Tally } from "../../../core/stats/tally.ts";
import { VirtualTime } from "../../simulation/virtual-time.ts";

/** An object that answers as it is told to, and a sender with a message due whenever it is asked to send. */
class Line {
  readonly virtual = new VirtualTime();
  readonly time = this.virtual.clock({ ms: 0 });
  readonly tally = new Tally();
  readonly sender = new StatsSender(this.tally, () => "isolate");
  readonly pushed: StatsMessage[] = [];
  answer: (message: StatsMessage) => Promise<Receipt | undefined> | Receipt | undefined = () => undefined;
  readonly push = async (message: StatsMessage) => {
    this.pushed.push(message);
    return await this.answer(message);
  };

  async pass(ms: number): Promise<void> {
    const untilMs = this.virtual.nowMs + ms;
    this.virtual.at(untilMs, () => undefined);
    await this.virtual.run(untilMs, () => undefined);
  }

  /** Counts something, and sends. Returns whether the object has all. */
  async send(rows: number): Promise<boolean> {
    if (rows > 0) this.tally.add("rows_read", [], rows);
    const sent = this.sender.send(this.time, this.push);
    await this.pass(3_000);
    return await sent;
  }

  /** What was pushed since it was asked last: numbers, rows, and what each comes after. */
  get taken(): (readonly (number | undefined)[])[] {
    return this.pushed
      .splice(0)
      .map(({ number, counts, after }) => [
        number,
        counts["rows_read"],
        ...(after === undefined ? [] : [after]),
      ]);
  }
}

const lost = () => Promise.reject(new Error("lost"));

test("a message without an answer goes again as it was, and what was counted since waits", async () => {
  const line = new Line();
  line.answer = lost;
  expect(await line.send(1)).toBe(false);
  line.answer = ({ number }) => ({ received: number, stored: number });
  expect(await line.send(5)).toBe(true);
  expect(await line.send(0)).toBe(true);
  expect(line.taken).toEqual([
    [1, 1],
    [1, 1],
    [2, 5],
  ]);
  expect(await line.send(0)).toBe(true);
  expect(line.taken).toEqual([]);
});

test("a message is kept until a later answer says that it is stored, and goes again if the object has lost it", async () => {
  const line = new Line();
  line.answer = ({ number }) => ({ received: number, stored: number - 1 });
  for (const rows of [1, 2, 3]) expect(await line.send(rows)).toBe(true);
  expect(line.taken).toEqual([
    [1, 1],
    [2, 2, 1],
    [3, 3, 2],
  ]);
  // It has lost its memory, and only knows what it had stored.
  let received = 2;
  line.answer = ({ number, after = 0 }) => {
    if (received >= after) received = number;
    return { received, stored: 2 };
  };
  expect(await line.send(4)).toBe(true);
  expect(line.taken).toEqual([
    [4, 4, 3],
    [3, 3],
    [4, 4, 3],
  ]);
});

test("an object of an older version stores before it answers", async () => {
  const line = new Line();
  expect([await line.send(1), await line.send(2), await line.send(0)]).toEqual([true, true, true]);
  expect(line.taken).toEqual([
    [1, 1],
    [2, 2],
  ]);
});

test("an object that never stores gets no more than three messages, until they are given up", async () => {
  const line = new Line();
  line.answer = ({ number }) => ({ received: number, stored: 0 });
  for (let each = 0; each < 8; each += 1) await line.send(1);
  expect(line.taken.map(([number]) => number)).toEqual([1, 2, 3, 3, 3, 3, 3, 3]);
  await line.pass(SENT_AGAIN_MS);
  await line.send(0);
  expect(line.taken).toEqual([[4, 5]]);
});

test("while a message is under way there is no other, and after two seconds it counts as lost", async () => {
  const line = new Line();
  line.answer = () => new Promise(() => undefined);
  line.tally.add("rows_read", []);
  const sent = line.sender.send(line.time, line.push);
  await line.pass(1_999);
  expect(await line.sender.send(line.time, line.push)).toBe(false);
  expect(line.taken.length).toBe(1);
  await line.pass(1);
  expect(await sent).toBe(false);
  void line.sender.send(line.time, line.push);
  await line.pass(0);
  expect(line.taken.length).toBe(1);
});

test("an isolate sends every ten seconds, or less often if the object asks for that", async () => {
  const line = new Line();
  const sentIn = async (ms: number) => {
    for (let passed = 0; passed < ms; passed += 500) {
      line.tally.add("rows_read", []);
      if (line.sender.isDue(line.time.nowMs())) void line.sender.begin(line.time, line.push, 0);
      await line.pass(500);
    }
    return line.taken.length;
  };
  expect(await sentIn(6 * SEND_EVERY_MS)).toBe(6);
  line.answer = ({ number }) => ({ received: number, stored: number, everyMs: 3 * SEND_EVERY_MS });
  await sentIn(SEND_EVERY_MS);
  await sentIn(2 * SEND_EVERY_MS);
  expect(await sentIn(6 * SEND_EVERY_MS)).toBe(2);
  line.answer = ({ number }) => ({ received: number, stored: number });
  await sentIn(3 * SEND_EVERY_MS);
  expect(await sentIn(6 * SEND_EVERY_MS)).toBe(6);
});

test("at the end of a process all is stored, also what was counted while a message was under way", async () => {
  const line = new Line();
  let stored = 0;
  line.answer = async ({ number, isKept }) => {
    await new Promise<void>((done) => line.time.after(500, done));
    if (isKept !== true) stored = number;
    return { received: number, stored };
  };
  line.tally.add("rows_read", []);
  void line.sender.begin(line.time, line.push, 0);
  await line.pass(100);
  line.tally.add("rows_read", [], 5);
  const ended = line.sender.sendAll(line.time, line.push);
  await line.pass(2_000);
  await ended;
  expect([stored, line.taken]).toEqual([
    2,
    [
      [1, 1],
      [2, 5, 1],
    ],
  ]);
});

test("at the end of a process with nothing new, what is not known to be stored is stored", async () => {
  const line = new Line();
  line.answer = ({ number }) => ({ received: number, stored: 0 });
  await line.send(1);
  expect(line.pushed.map(({ isKept }) => isKept)).toEqual([true]);
  line.answer = ({ number }) => ({ received: number, stored: number });
  await line.sender.sendAll(line.time, line.push);
  expect(line.pushed.map(({ number, isKept }) => [number, isKept])).toEqual([
    [1, true],
    [1, undefined],
  ]);
});
