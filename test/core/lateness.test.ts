import { describe, expect, test } from "vitest";
import { type LimiterStub, sendTogether } from "../../client/transports/send-batch.ts";
import type { Sent } from "../../core/protocol/calls.ts";
import {
  Arrivals,
  Departures,
  STALE,
  BATCH_PROTOCOL,
  type Batch,
  type BatchedCall,
} from "../../core/protocol/messages.ts";
import type { KeyMoves } from "../../durable-objects/moves/key-moves.ts";
import { answerBatch, OwnerRouting, stubOf } from "../../durable-objects/wire-methods.ts";

const LIMIT: BatchedCall = { limit: { policy: "api", key: "a", cost: 1 } };
const UNITS: BatchedCall = {
  reserve: { policy: "api", key: "a", cost: 0, holder: "h", turn: 1, ttlMs: 1, isShort: false, rules: {} },
};

const LEASE: BatchedCall = {
  operation: { op: "lease", policy: "api", key: "a", id: "l", cost: 1, ttlMs: 1_000, waitMs: 0 },
};
const RELEASE: BatchedCall = { operation: { op: "release", policy: "api", key: "a", id: "l" } };

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
    expect(arrive(420, 600, 500, LEASE)).toBe(true);
    expect(arrive(440, 600, 500, RELEASE)).toBe(false);
    expect(arrive(500, 0, 500)).toBe(false);
  },
);

test("of a message that comes again no call is decided that nobody waits for any more", () => {
  const { departures, arrivals, arrive } = path(0);
  expect(arrive(0, 0, 500)).toBe(false);
  const sent = departures.stamp([{ untilMs: 1_000 }, { untilMs: 1_500 }], 1_200);
  const isStale = arrivals.note(sent, 1_240);
  expect([isStale(LEASE, 0), isStale(LEASE, 1), isStale(RELEASE, 0)]).toEqual([true, false, false]);
});

test("each call of a batch says for how long its caller still waits: it may have to wait for another object", () => {
  const sent = new Departures(() => "sender").stamp([{ untilMs: 500 }, { untilMs: 900 }], 100);
  const made: unknown[] = [];
  const make = (method: string, [call]: readonly unknown[]) => {
    made.push([method, (call as { readonly leftMs?: number }).leftMs]);
    return "{}";
  };
  void answerBatch({ protocol: BATCH_PROTOCOL, calls: JSON.stringify([LIMIT, UNITS]), sent }, make);
  expect(made).toEqual([
    ["limitCall", 400],
    ["reserve", 800],
  ]);
});

test("an operation on a key that is elsewhere is not passed on, as that object may not know it", async () => {
  const there: KeyMoves["make"] = (_, __, { there: pass }) => pass({} as never, []) as never;
  const epochs = { lift: () => undefined };
  const elsewhere = { moves: { make: there } as unknown as KeyMoves, places: {} as never, epochs };
  const routing = new OwnerRouting(() => "here", { time: { nowMs: () => 0 }, elsewhere });
  const batch: Batch = { protocol: BATCH_PROTOCOL, calls: JSON.stringify([RELEASE]) };
  const answers = JSON.parse((await routing.call("reserve", [batch])) as string) as unknown[];
  expect(answers).toMatchObject([{ unsupported: {} }]);
});

test("where messages are late the next one of a sender is for after the queue, and one of each sender", () => {
  const arrivals = new Arrivals();
  const all = Array.from({ length: 1_000 }, (_, index) => new Departures(() => `of-${index}`));
  const round = (atMs: number, lateMs: number) => {
    for (const departures of all) arrivals.note(departures.stamp([], atMs), atMs + 40 + lateMs);
    return arrivals.paceMs;
  };
  expect(round(0, 0)).toBe(0);
  expect(round(1_000, 200)).toBe(0);
  expect(round(2_000, 500)).toBeCloseTo(1_250 + 500, -1);
  expect(round(5_000, 800)).toBeCloseTo(1_250 + 800, -1);
  // It stood still, and its queue is not as long.
  expect(round(9_000, 10_000)).toBeCloseTo(1_250 + 1_000, -1);
  expect(round(20_000, 10)).toBe(0);
});

test("an object keeps no time for those that it has sent to another one", () => {
  let nowMs = 0;
  let more = {};
  const routing = new OwnerRouting(() => JSON.stringify({ rules: [], ...more }), {
    time: { nowMs: () => nowMs },
  });
  const all = Array.from({ length: 1_000 }, (_, index) => new Departures(() => `of-${index}`));
  const askAll = (asking: readonly Departures[], sentMs: number, lateMs: number) => {
    nowMs = sentMs + lateMs;
    const answers = asking.map((departures) => {
      const sent = departures.stamp([{ untilMs: sentMs + 5_000 }], sentMs);
      return JSON.parse(routing.call("reserve", [{ ...UNITS.reserve, sent }]) as string) as {
        paceMs?: number;
      };
    });
    return answers.at(-1)?.paceMs ?? 0;
  };
  expect(askAll(all, 0, 0)).toBe(0);
  expect(askAll(all, 1_000, 500)).toBeGreaterThan(1_250);
  more = { reserved: { ttlMs: 0, isNew: false, units: {}, asksRegion: true } };
  askAll(all.slice(100), 2_000, 500);
  more = {};
  expect(askAll(all.slice(0, 100), 3_000, 500)).toBeLessThan(1_250 / 10 + 501);
});

test("an object that is behind says when it wants the next message, beside the answers, to those who say when they sent", async () => {
  let nowMs = 0;
  const routing = new OwnerRouting(() => JSON.stringify({ rules: [] }), { time: { nowMs: () => nowMs } });
  const stub = stubOf(routing) as unknown as LimiterStub;
  const departures = new Departures(() => "a");
  const paces: number[] = [];
  const ask = async (lateMs: number, calls: readonly BatchedCall[], isSaid = true) => {
    const sentMs = nowMs;
    nowMs += 40 + lateMs;
    const queued = calls.map((call) => ({ call, text: JSON.stringify(call), untilMs: sentMs + 5_000 }));
    const sent = isSaid ? departures.stamp(queued, sentMs) : undefined;
    const answers = await sendTogether(stub, queued, undefined, sent, (ms) => paces.push(ms));
    expect(answers).toEqual(calls.map(() => ({ rules: [] })));
  };
  await ask(0, [LIMIT, LIMIT]);
  expect(paces).toEqual([]);
  for (let message = 0; message < 20; message += 1) await ask(2_000, [LIMIT, LIMIT]);
  const said = paces.length;
  expect(said).toBeGreaterThan(5);
  await ask(2_000, [UNITS]);
  expect(paces.length).toBe(said + 1);
  await ask(2_000, [LIMIT, UNITS], false);
  expect(paces.length).toBe(said + 1);
});

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

describe("a message that comes again", () => {
  const HOLDER = {
    policy: "api",
    key: "a",
    cost: 0,
    holder: "h",
    turn: 1,
    ttlMs: 1,
    isShort: false,
    rules: {},
  };
  const batch = (sent?: Sent) => ({
    protocol: BATCH_PROTOCOL,
    calls: JSON.stringify([LIMIT, LIMIT]),
    ...(sent && { sent }),
  });
  const single = (sent?: Sent) => ({ ...HOLDER, ...(sent && { sent }) });

  function object() {
    let [made, nowMs] = [0, 0];
    const answer = () => JSON.stringify({ rules: [], made: (made += 1) });
    const routing = new OwnerRouting(answer, { time: { nowMs: () => nowMs } });
    const departures = new Departures(() => `again-${(senders += 1)}`);
    const stamp = (number?: number) => departures.stamp([{ untilMs: 500 }, { untilMs: 500 }], 0, number);
    const call = (message: object) => routing.call("reserve", [message]);
    return { stamp, call, made: () => made, pass: (ms: number) => (nowMs += ms) };
  }

  test.each([
    ["of several calls", batch, 2],
    ["of one call", single, 1],
  ])("%s is answered as before, and made once", (_, message, count) => {
    const { stamp, call, made } = object();
    const first = call(message(stamp(1)));
    expect(call(message(stamp(1)))).toBe(first);
    expect(made()).toBe(count);
    call(message(stamp(2)));
    expect(made()).toBe(2 * count);
  });

  test("without a number, or with that of another sender, it is made again", () => {
    const { stamp, call, made } = object();
    for (let message = 0; message < 2; message += 1) call(single(stamp()));
    expect(made()).toBe(2);
    call(single(stamp(1)));
    call(single({ ...stamp(1), from: "another" }));
    expect(made()).toBe(4);
  });

  test("is remembered for 3 s, since many objects share an isolate's memory", () => {
    const { stamp, call, made, pass } = object();
    call(single(stamp(0)));
    pass(2_999);
    call(single(stamp(1)));
    call(single(stamp(0)));
    expect(made()).toBe(2);
    pass(1);
    call(single(stamp(2)));
    call(single(stamp(0)));
    expect(made()).toBe(4);
    call(single(stamp(1)));
    expect(made()).toBe(4);
  });

  test("is remembered for 2,048 messages", () => {
    const { stamp, call, made } = object();
    call(single(stamp(0)));
    for (let number = 1; number < 2_048; number += 1) call(single(stamp(number)));
    call(single(stamp(0)));
    expect(made()).toBe(2_048);
    call(single(stamp(2_048)));
    call(single(stamp(0)));
    expect(made()).toBe(2_050);
  });
});
