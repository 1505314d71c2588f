/** Calls that travel together, in virtual time: requests end at any moment, messages are lost, late, or fail. */
import { afterEach, expect, test, vi } from "vitest";
import { BatchQueue, BatchQueues, QueuedCall } from "../../client/transports/batch-queue.ts";
import { STILL_MS } from "../../client/transports/congestion-control.ts";
import type { Answers } from "../../client/transports/send-batch.ts";
import type { Time } from "../../core/clock.ts";
import { MAX_BATCH_LENGTH, MAX_BATCHED } from "../../core/protocol/messages.ts";
import { Dice } from "../simulation/dice.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";
import { depth } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";
import { type Breakage, BrokenLaw, callOf, DEADLINE_MS, History, law, warm } from "./batch-history.ts";

const HISTORIES = depth(120, 300);

afterEach(() => void vi.restoreAllMocks());

/** A random history; its calls come in bursts. */
async function run(seed: number, breakage?: Breakage, mayRepeat = false): Promise<History> {
  const dice = new Dice(seed);
  const history = new History(breakage, mayRepeat);
  const isFaulty = dice.chance(0.7);
  let failure: unknown;
  let atMs = 0;
  for (let call = 0; call < 60; call += 1) {
    const diesAfterMs = isFaulty && dice.chance(0.2) ? dice.upTo(30) : Infinity;
    const fate = () => ({
      ...(!(isFaulty && dice.chance(0.1)) && { backMs: 1 + dice.upTo(dice.chance(0.1) ? 400 : 8) }),
      isFailed: isFaulty && dice.chance(0.05),
    });
    history.time.at(
      atMs,
      () => void history.call(`key-${call}`, fate, diesAfterMs).catch((e: unknown) => (failure ??= e)),
    );
    atMs += dice.of([0, 0, 0, 1, 1, 3, 30]);
  }
  await history.time.run(10_000, () => {
    if (failure !== undefined) throw failure;
  });
  law(history.open === 0, `${history.open} calls hang`);
  return history;
}

async function search(breakage: () => Breakage): Promise<unknown> {
  for (let seed = 1; seed < 2_000; seed += 1) {
    const found: unknown = await run(seed, breakage()).then(
      () => undefined,
      (error: unknown) => error,
    );
    if (found !== undefined) return found;
  }
  return undefined;
}

test(`in ${HISTORIES} random histories every call ends in time, with its own answer, and is sent once at most`, async () => {
  const first = announcedSeed("outbox");
  const sum = { answered: 0, unanswered: 0, died: 0, messages: 0, calls: 0 };
  for (let seed = first; seed < first + HISTORIES; seed += 1) {
    const { answered, unanswered, died, messages } = await run(seed).catch((error: Error) => {
      throw new Error(`SEED=${seed}: ${error.message}`, { cause: error });
    });
    sum.answered += answered;
    sum.unanswered += unanswered;
    sum.died += died;
    sum.messages += messages.length;
    sum.calls += 60;
  }
  expect(sum.answered).toBeGreaterThan(sum.calls / 2);
  expect(sum.unanswered).toBeGreaterThan(HISTORIES);
  expect(sum.died).toBeGreaterThan(HISTORIES);
  expect(sum.messages).toBeLessThan(sum.calls * 0.8);
});

test(`in ${HISTORIES} more a message may come again: with its own number and calls, and fewer calls have no answer`, async () => {
  const first = announcedSeed("outbox");
  const sum = { again: 0, unanswered: 0, without: 0 };
  for (let seed = first; seed < first + HISTORIES; seed += 1) {
    const { again, unanswered } = await run(seed, undefined, true).catch((error: Error) => {
      throw new Error(`SEED=${seed}: ${error.message}`, { cause: error });
    });
    sum.again += again;
    sum.unanswered += unanswered;
    sum.without += (await run(seed)).unanswered;
  }
  expect(sum.again).toBeGreaterThan(HISTORIES / 4);
  expect(sum.unanswered).toBeLessThan(0.8 * sum.without);
});

test("an answer of a batch that is given to the wrong caller is found", async () => {
  const answers = (given: Answers) => (Array.isArray(given) ? given.toReversed() : given);
  expect(await search(() => ({ answers }))).toBeInstanceOf(BrokenLaw);
});

test("waiting for a wake alone is found: the sender dies between two messages, and the others hang", async () => {
  const clock = (time: Time): Time => ({
    nowMs: () => time.nowMs(),
    after: (ms, work) => (ms === 0 ? time.after(0, work) : () => {}),
  });
  expect(await search(() => ({ clock }))).toBeInstanceOf(BrokenLaw);
});

test("a wake that gets lost costs no answer", async () => {
  vi.spyOn(Promise, "withResolvers").mockImplementation(() => ({
    promise: new Promise<never>(() => undefined),
    resolve: () => undefined,
    reject: () => undefined,
  }));
  const history = new History();
  history.time.at(0, () => {
    for (let call = 0; call < 5; call += 1) void history.call(`key-${call}`, () => ({ backMs: 5 }));
  });
  await history.time.run(1_000, () => undefined);
  expect(history).toMatchObject({ answered: 5, open: 0 });
});

test("one call goes at once, those that come meanwhile go with the next message, and nobody waits where there is no traffic", async () => {
  const history = new History();
  const call = (atMs: number, key: string) =>
    history.time.at(atMs, () => void history.call(key, () => ({ backMs: 10 })));
  call(0, "a");
  for (const key of ["b", "c", "d"]) call(3, key);
  call(100, "e");
  await history.time.run(1_000, () => undefined);
  expect(history.messages).toEqual([
    { atMs: 0, keys: ["a"] },
    { atMs: 11, keys: ["b", "c", "d"] },
    { atMs: 100, keys: ["e"] },
  ]);
});

test("calls that come within a millisecond of an answer go with those that waited for it; a full message goes at once", async () => {
  for (const [waiting, sentMs, most] of [
    [2, 11, 3],
    [MAX_BATCHED, 10, MAX_BATCHED],
  ] as const) {
    const history = new History();
    const call = (atMs: number, key: string) =>
      history.time.at(atMs, () => void history.call(key, () => ({ backMs: 10 })));
    call(0, "first");
    for (let each = 0; each < waiting; each += 1) call(3, `waits ${each}`);
    call(11, "again");
    await history.time.run(1_000, () => undefined);
    expect(history.messages[1]?.atMs).toBe(sentMs);
    expect(history.messages[1]?.keys).toHaveLength(most);
  }
});

test("callers whose calls went together go together again, though nothing is queued when the first of them comes", async () => {
  const history = new History();
  const startMs = warm(history, 5) + 100;
  const after = (ms: number, key: string) =>
    new Promise<void>((done) => {
      history.time.at(ms, () => void history.call(key, () => ({ backMs: 5 })).then(done));
    });
  const caller = async (number: number) => {
    for (let turn = 0; turn < 20; turn += 1)
      await after(Math.max(startMs, history.time.nowMs + 0.5), `${number}-${turn}`);
  };
  const callers = Promise.all(Array.from({ length: 8 }, async (_, number) => await caller(number)));
  void callers.then(async () => {
    await after(history.time.nowMs + 0.5, "soon");
    await after(history.time.nowMs + 30, "later");
  });
  await history.time.run(2_000, () => undefined);
  const messages = history.messages.filter(({ atMs }) => atMs >= startMs);
  // The first call has nobody to wait for, so its caller is done a turn before the others.
  const together = messages.slice(2, -3);
  expect(together.map(({ keys }) => keys.length)).toEqual(together.map(() => 8));
  expect(together).toHaveLength(18);
  // A call soon after a message of many waits for a millisecond, a later one does not.
  const [end = 0, soon = 0, later = 0] = messages.slice(-3).map(({ atMs }) => atMs);
  expect([soon - end, later - soon]).toEqual([5 + 0.5 + 1, 5 + 30]);
});

test("calls that one turn of the event loop makes go in one message", async () => {
  const history = new History();
  for (const key of ["a", "b", "c"]) void history.call(key, () => ({ backMs: 10 }));
  await history.time.run(100, () => undefined);
  expect(history.messages.map(({ keys }) => keys)).toEqual([["a", "b", "c"]]);
});

test("the next message goes when the last one is overdue: 25 ms after the mean of round trips that hardly differ", async () => {
  for (const [backMs, overdueMs] of [
    [1, 1 + STILL_MS],
    [100, 100 + STILL_MS],
  ] as const) {
    const history = new History();
    const fromMs = warm(history, backMs);
    history.time.at(fromMs, () => void history.call("lost", () => ({})));
    history.time.at(fromMs + 5, () => void history.call("next", () => ({ backMs })));
    await history.time.run(20_000, () => undefined);
    const [lost, next] = history.messages.slice(-2);
    expect(lost?.keys).toEqual(["lost"]);
    expect(next?.keys).toEqual(["next"]);
    const waitedMs = (next?.atMs ?? 0) - (lost?.atMs ?? 0);
    expect(waitedMs).toBeGreaterThanOrEqual(overdueMs);
    expect(waitedMs).toBeLessThan(overdueMs + 5);
  }
});

test("a message that is overdue comes again while its call waits, and what that took is no measure", async () => {
  const history = new History({}, true);
  const fromMs = warm(history, 20);
  const { congestion } = history.queue;
  let answers = 0;
  const fate = () => ((answers += 1) === 3 ? { backMs: 20 } : {});
  let overdueMs = 0;
  history.time.at(fromMs, () => {
    overdueMs = congestion.overdueMs(fromMs, DEADLINE_MS);
    void history.call("lost", fate);
  });
  await history.time.run(fromMs + 5_000, () => undefined);
  const lost = history.messages.filter(({ keys }) => keys[0] === "lost");
  expect(lost).toHaveLength(3);
  expect(history).toMatchObject({ again: 2, unanswered: 0 });
  // Each waits twice as long as the one before, or more.
  const gaps = lost.slice(1).map(({ atMs }, index) => atMs - (lost[index]?.atMs ?? 0));
  expect(gaps[0]).toBe(overdueMs);
  expect(gaps[1]).toBeGreaterThanOrEqual(2 * overdueMs);
  expect(congestion.overdueMs(fromMs + 5_000, DEADLINE_MS)).toBe(overdueMs);
});

test("when the first answer comes after all, the message that came again is not missed", async () => {
  const history = new History({}, true);
  const fromMs = warm(history, 20);
  const { congestion } = history.queue;
  let [overdueMs, answers] = [0, 0];
  const fate = () => ((answers += 1) === 1 ? { backMs: overdueMs + 10 } : {});
  history.time.at(fromMs, () => {
    overdueMs = congestion.overdueMs(fromMs, DEADLINE_MS);
    void history.call("late", fate);
  });
  await history.time.run(fromMs + 5_000, () => undefined);
  expect(history).toMatchObject({ again: 1, unanswered: 0 });
  expect(congestion.overdueMs(fromMs + 5_000, DEADLINE_MS)).toBe(overdueMs);
});

test.each([
  ["whose caller has left", 100, 0, 2],
  ["more than twice", 5, 0, 3],
  ["to an object that is overloaded", 20, 10, 1],
])("no message comes again %s", async (_, backMs, pausedAfterMs, times) => {
  const history = new History({}, true);
  const fromMs = warm(history, backMs);
  history.time.at(fromMs, () => void history.call("lost", () => ({})));
  if (pausedAfterMs > 0)
    history.time.at(fromMs + pausedAfterMs, () => history.queue.congestion.miss(history.time.nowMs, true));
  await history.time.run(fromMs + 10_000, () => undefined);
  expect(history.messages.filter(({ keys }) => keys.includes("lost"))).toHaveLength(times);
  // One slow answer does not make an object count as overloaded.
  if (pausedAfterMs === 0)
    expect(history.queue.congestion.admits(history.time.nowMs, DEADLINE_MS)).toBe(true);
});

test("before the first answer of any object a message is overdue after 1 s, and then as those to other objects are", async () => {
  const queues = new BatchQueues();
  const near = queues.open("near", 0);
  expect(near?.congestion.overdueMs(0, 5_000)).toBe(1_000);
  near?.congestion.answered(1, 1_000);
  near?.congestion.answered(1, 1_000);
  expect(queues.open("other", 0)?.congestion.overdueMs(0, 1_000)).toBe(1 + STILL_MS);
});

test("an object that answers nothing gets ever fewer messages, and calls do not wait for it after three", async () => {
  const history = new History();
  const fromMs = warm(history, 10);
  const waits: number[] = [];
  for (let atMs = fromMs; atMs < fromMs + 20_000; atMs += 10)
    history.time.at(
      atMs,
      () => void history.call(`at-${atMs}`, () => ({})).then(() => waits.push(history.time.nowMs - atMs)),
    );
  await history.time.run(fromMs + 30_000, () => undefined);
  const after = history.messages.filter(({ atMs }) => atMs >= fromMs);
  // Three until it pauses, then a probe after 1, 2, 4 and 4.5 s, each up to half as long again at first.
  expect(after.length).toBeGreaterThanOrEqual(5);
  expect(after.length).toBeLessThanOrEqual(13);
  expect(waits.filter((ms) => ms === 0).length).toBeGreaterThan(1_900);
});

test("an object that answers again gets all calls at once after one probe", async () => {
  const history = new History();
  const fromMs = warm(history, 10);
  const backMs = () => (history.time.nowMs < fromMs + 1_000 ? {} : { backMs: 10 });
  for (let atMs = fromMs; atMs < fromMs + 4_000; atMs += 10)
    history.time.at(atMs, () => void history.call(`at-${atMs}`, backMs));
  const seen: number[] = [];
  history.time.at(fromMs + 3_000, () => seen.push(history.answered));
  history.time.at(fromMs + 4_000, () => seen.push(history.answered));
  await history.time.run(fromMs + 10_000, () => undefined);
  expect((seen[1] ?? 0) - (seen[0] ?? 0)).toBe(100);
});

test("requests that end while their message is under way do not make the object count as overloaded", async () => {
  const history = new History();
  let atMs = warm(history, 10);
  for (let call = 0; call < 10; call += 1, atMs += 1_000)
    history.time.at(atMs, () => void history.call(`gone-${call}`, () => ({ backMs: 10 }), 5));
  history.time.at(atMs, () => void history.call("last", () => ({ backMs: 10 })));
  const before = history.answered;
  await history.time.run(atMs + 1_000, () => undefined);
  expect(history.answered - before).toBe(21);
});

test("an object that says it is overloaded gets no further call for a while", async () => {
  const queue = new BatchQueue();
  const time = new VirtualTime();
  let messages = 0;
  const sending = {
    time: time.clock({ ms: 0 }),
    deadlineMs: DEADLINE_MS,
    send: async () => {
      messages += 1;
      return { overloaded: true } as const;
    },
    inBackground: () => undefined,
  };
  for (let atMs = 0; atMs < 900; atMs += 100)
    time.at(atMs, async () =>
      expect(await queue.post(callOf("key"), sending)).toMatchObject({ answer: { overloaded: true } }),
    );
  await time.run(2_000, () => undefined);
  expect(messages).toBe(1);
});

test("where an object wants the next message later, calls wait for that and go together, or are answered at once", async () => {
  const history = new History();
  const fromMs = warm(history, 10);
  const paceMs = DEADLINE_MS / 2;
  history.time.at(fromMs, () => history.queue.congestion.follow(paceMs, history.time.nowMs));
  for (let call = 0; call < 10; call += 1)
    history.time.at(fromMs + 1 + call, () => void history.call(`call-${call}`, () => ({ backMs: 10 })));
  await history.time.run(fromMs + 2 * DEADLINE_MS, () => undefined);
  const [first, ...others] = history.messages.filter(({ atMs }) => atMs >= fromMs);
  expect(first?.keys.length).toBe(10);
  expect(others).toEqual([]);
  expect((first?.atMs ?? 0) - fromMs).toBeGreaterThanOrEqual(0.75 * paceMs);
  expect((first?.atMs ?? 0) - fromMs).toBeLessThanOrEqual(1.25 * paceMs + 1);
  const { unanswered } = history;
  const laterMs = fromMs + 2 * DEADLINE_MS;
  history.time.at(laterMs, async () => {
    history.queue.congestion.follow(2 * DEADLINE_MS, laterMs);
    await history.call("late", () => ({ backMs: 10 }));
    expect(history.time.nowMs).toBe(laterMs);
  });
  await history.time.run(laterMs + DEADLINE_MS, () => undefined);
  expect(history.unanswered - unanswered).toBe(1);
});

test("a call wakes up for its own batch, and not for each one that goes before it", async () => {
  const history = new History();
  let timers = 0;
  const calls = 60 * MAX_BATCHED;
  const queue = new BatchQueue();
  const clock = history.time.clock({ ms: 0 });
  const time: Time = {
    nowMs: () => clock.nowMs(),
    after: (ms, work) => {
      timers += 1;
      return clock.after(ms, work);
    },
  };
  const send = (sent: readonly QueuedCall[]): Promise<Answers> =>
    new Promise((done) => clock.after(10, () => done(sent.map(() => ({ rules: [] }) as never))));
  let answered = 0;
  history.time.at(0, () => {
    for (let call = 0; call < calls; call += 1)
      void queue
        .post(callOf(`${call}`), { time, deadlineMs: 10_000, send, inBackground: () => undefined })
        .then(() => (answered += 1));
  });
  await history.time.run(5_000, () => undefined);
  expect(answered).toBe(calls);
  expect(timers).toBeLessThan(4 * calls);
});

test("whose request has ended, or whose deadline is over, is not sent any more", async () => {
  const history = new History();
  // Nobody sends: the first message is under way again and again, and the one who waits dies.
  history.time.at(0, () => void history.call("a", () => ({ backMs: 10 }), 5));
  history.time.at(1, () => void history.call("gone", () => ({ backMs: 10 }), 2));
  history.time.at(1_000, () => void history.call("later", () => ({ backMs: 10 })));
  await history.time.run(2_000, () => undefined);
  expect([...history.sent]).toEqual(["a", "later"]);
});

test("a message has so many calls and characters, and no more", async () => {
  const history = new History();
  const long = "k".repeat(MAX_BATCH_LENGTH / 4);
  history.time.at(0, () => {
    for (let call = 0; call < 8; call += 1) void history.call(`${long}${call}`, () => ({ backMs: 1 }));
  });
  await history.time.run(1_000, () => undefined);
  expect(history.messages.map(({ keys }) => keys.length)).toEqual([3, 3, 2]);
  const many = new History();
  many.time.at(0, () => {
    for (let call = 0; call < MAX_BATCHED + 1; call += 1) void many.call(`${call}`, () => ({ backMs: 1 }));
  });
  await many.time.run(1_000, () => undefined);
  expect(many.messages.map(({ keys }) => keys.length)).toEqual([MAX_BATCHED, 1]);
});

test("queues are forgotten when nobody calls, those of requests that have ended too, and there are so many at most", () => {
  const queues = new BatchQueues();
  expect(queues.open("a", 0)).toBe(queues.open("a", 0));
  queues.release("a", 0);
  expect(queues.size).toBe(0);
  const time = new VirtualTime().clock({ ms: 0 }, () => true);
  const dead = {
    time,
    deadlineMs: DEADLINE_MS,
    send: () => new Promise<undefined>(() => undefined),
    inBackground: () => undefined,
  };
  for (let index = 0; index < 10_000; index += 1) void queues.open(`${index}`, 0)?.post(callOf("key"), dead);
  const most = queues.size;
  expect(queues.open("one more", 0)).toBeUndefined();
  expect(queues.open("one more", 5_000)).toBeDefined();
  expect(queues.size).toBeLessThan(most);
});
