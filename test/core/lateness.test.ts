import { expect, test } from "vitest";
import {
  Arrivals,
  Departures,
  STALE,
  BATCH_PROTOCOL,
  type Batch,
  type BatchedCall,
} from "../../core/protocol/messages.ts";
import { answerBatch } from "../../durable-objects/wire-methods.ts";

const LIMIT: BatchedCall = { limit: { policy: "api", key: "a", cost: 1 } };
const UNITS: BatchedCall = {
  reserve: { policy: "api", key: "a", cost: 0, holder: "h", turn: 1, ttlMs: 1, isShort: false, rules: {} },
};

let senders = 0;

/** A sender and a receiver whose clocks differ by `aheadMs`, on a way of 40 ms. */
function path(aheadMs: number) {
  const departures = new Departures(() => `sender-${(senders += 1)}`);
  const arrivals = new Arrivals();
  const arrive = (sentMs: number, lateMs: number, leftMs: number, call = LIMIT) => {
    const sent = departures.stamp([{ untilMs: sentMs + leftMs }], sentMs);
    return arrivals.note(sent, sentMs + 40 + lateMs + aheadMs)(call, 0);
  };
  return { departures, arrivals, arrive };
}

test.each([0, 3_600_000, -3_600_000])(
  "with a clock that is %i ms ahead, a message is late by what it took longer than the quickest",
  (aheadMs) => {
    const { arrive } = path(aheadMs);
    expect(arrive(0, 0, 500)).toBe(false);
    expect(arrive(100, 400, 500)).toBe(false);
    expect(arrive(200, 600, 500)).toBe(true);
    expect(arrive(300, 600, 5_000)).toBe(false);
    // Units that come back, or are wanted for later calls, are taken in however late they come.
    expect(arrive(400, 600, 500, UNITS)).toBe(false);
    expect(arrive(500, 0, 500)).toBe(false);
  },
);

test("a first message that is late itself is not known to be, until a quicker one comes", () => {
  const { arrive } = path(0);
  expect(arrive(0, 1_000, 500)).toBe(false);
  expect(arrive(100, 1_400, 500)).toBe(false);
  expect(arrive(200, 0, 500)).toBe(false);
  expect(arrive(300, 1_000, 500)).toBe(true);
});

test("a clock that was set back makes all messages late, until their sender takes another name", () => {
  const { arrive, departures } = path(0);
  expect(arrive(10_000, 0, 500)).toBe(false);
  expect(arrive(9_000, 1_100, 500)).toBe(true);
  departures.restart();
  expect(arrive(9_100, 1_100, 500)).toBe(false);
});

test("clocks that drift apart by 100 ppm for a day make nothing late", () => {
  const arrivals = new Arrivals();
  for (let sentMs = 0; sentMs < 86_400_000; sentMs += 5_000) {
    const sent = { from: "a", atMs: sentMs, leftMs: [100] };
    expect(arrivals.note(sent, Math.floor(sentMs * 1.0001))(LIMIT, 0)).toBe(false);
  }
});

test("there are 4,096 senders at most, and those of the last minute stay", () => {
  const arrivals = new Arrivals();
  for (let index = 0; index < 10_000; index += 1) {
    arrivals.note({ from: `${index}`, atMs: 0, leftMs: [] }, index);
    arrivals.note({ from: "steady", atMs: index * 20, leftMs: [] }, index * 20);
  }
  expect(arrivals.size).toBe(4_096);
  expect(arrivals.note({ from: "steady", atMs: 200_000, leftMs: [500] }, 201_000)(LIMIT, 0)).toBe(true);
});

test("of a message only the calls whose callers have left are not decided, and what they return is taken", async () => {
  const made: string[] = [];
  const returned = [{ key: "b", holder: "h", turn: 1, used: {} }];
  const calls = [LIMIT, { ...LIMIT, giveBack: { policy: "api", returned } }, LIMIT, UNITS];
  const batch: Batch = { protocol: BATCH_PROTOCOL, calls: JSON.stringify(calls) };
  const arrivals = new Arrivals();
  arrivals.note({ from: "a", atMs: 0, leftMs: [] }, 0);
  const isStale = arrivals.note({ from: "a", atMs: 1_000, leftMs: [500, 10, 10, 10] }, 1_100);
  const make = (method: string) => {
    made.push(method);
    return JSON.stringify({ rules: [] });
  };
  const answers = JSON.parse(await answerBatch(batch, make, isStale)) as unknown[];
  expect(answers).toEqual([{ rules: [] }, { failed: STALE }, { failed: STALE }, { rules: [] }]);
  expect(made).toEqual(["limitCall", "giveBack", "reserve"]);
});
