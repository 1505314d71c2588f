/** Calls that go alone to an object that did not answer for a while. */
import { expect, test, vi } from "vitest";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { type LimiterStub, Objects } from "../../client/transports/objects.ts";
import { returnUnits } from "../../client/transports/send-batch.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Batch } from "../../core/protocol/messages.ts";
import { Tally } from "../../core/stats/tally.ts";
import { manualClock } from "../../package/testing.ts";

const policies = parsePolicies({
  jobs: { algorithm: "concurrency", limit: 5 },
  api: { algorithm: "token-bucket", limit: 5, window: "1s" },
});

test("an object that answers calls that may wait gets all of them again, after one probe", async () => {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const clock = manualClock();
  let isAway = true;
  const fetch = () =>
    isAway ? new Promise<never>(() => undefined) : Promise.resolve(Response.json({ rules: [] }));
  const stub = { fetch } as unknown as LimiterStub;
  const together = { queues: new BatchQueues(), inBackground: () => undefined };
  const objects = new Objects({ getByName: () => stub }, clock, together);
  const policy = policies.get("jobs");
  if (policy === undefined) throw new Error("there is no policy");
  const acquire = async () => {
    const call = { policy: "jobs", key: "a", cost: 1, ttlMs: 1_000, waitMs: 0, id: "a" };
    return (
      (await objects.wait(policy, "a", "acquire", call, JSON.parse, { signal: undefined })) !== undefined
    );
  };
  const missed = [acquire(), acquire(), acquire()];
  await clock.advance(policy.deadlineMs);
  expect(await Promise.all(missed)).toEqual([false, false, false]);
  expect(await acquire()).toBe(false);
  isAway = false;
  await clock.advance(1_500);
  expect(await acquire()).toBe(true);
  expect(await Promise.all([acquire(), acquire(), acquire()])).toEqual([true, true, true]);
  vi.restoreAllMocks();
});

test("an answer with a pace is counted, and how long the pace is", async () => {
  const clock = manualClock();
  let paceMs: number | undefined = 800;
  const reserve = () => {
    const answers = [{ rules: [] }, { rules: [] }];
    return Promise.resolve(JSON.stringify(paceMs === undefined ? answers : { paceMs, answers }));
  };
  const together = { queues: new BatchQueues(), inBackground: () => undefined };
  const counter = new Tally();
  const namespace = { getByName: () => ({ reserve }) as unknown as LimiterStub };
  const objects = new Objects(namespace, clock, together, { counter });
  const policy = policies.get("api");
  if (policy === undefined) throw new Error("there is no policy");
  const two = async () => {
    const limit = { policy: "api", key: "a", cost: 1 };
    const made = [objects.call(policy, "a", { limit }), objects.call(policy, "a", { limit })];
    await clock.advance(policy.deadlineMs);
    expect(await Promise.all(made)).toEqual([{ answer: { rules: [] } }, { answer: { rules: [] } }]);
  };
  const paces = () =>
    Object.entries(counter.take()?.counts ?? {}).filter(([series]) => series.startsWith("object_pace"));
  await two();
  expect(paces()).toEqual([
    ["object_pace_seconds api 1000", 1],
    ["object_pace_seconds api sum", 800],
  ]);
  paceMs = undefined;
  await clock.advance(1_000);
  await two();
  expect(paces()).toEqual([]);
});

test("units go back to an object that is behind, though it wants them later than a call waits", async () => {
  const clock = manualClock();
  const policy = policies.get("api");
  if (policy === undefined) throw new Error("there is no policy");
  const paceMs = policy.deadlineMs + 1_000;
  const given: unknown[] = [];
  const stub = {
    reserve: () => Promise.resolve(JSON.stringify({ paceMs, answers: [{ rules: [] }, { rules: [] }] })),
    giveBack: (_: string, returned: readonly unknown[]) => Promise.resolve(void given.push(...returned)),
  } as unknown as LimiterStub;
  const together = { queues: new BatchQueues(), inBackground: () => undefined };
  const objects = new Objects({ getByName: () => stub }, clock, together);
  const limit = { policy: "api", key: "a", cost: 1 };
  const made = [objects.call(policy, "a", { limit }), objects.call(policy, "a", { limit })];
  await clock.advance(10);
  await Promise.all(made);
  const returned = { key: "a", holder: "h", turn: 1, used: { api: 1 } };
  const sent = returnUnits(objects, [{ policy, returned }]);
  // A pace is spread by a quarter of it.
  await clock.advance(paceMs / 2);
  expect(given).toEqual([]);
  await clock.advance(paceMs);
  expect(given).toEqual([returned]);
  await sent;
});

test("a request that only gives back sends none of the calls that come meanwhile", async () => {
  const queues = new BatchQueues();
  const policy = policies.get("api");
  if (policy === undefined) throw new Error("there is no policy");
  const clock = manualClock();
  /** A request of the isolate, and how many messages it has sent. */
  const request = () => {
    const sent = { messages: 0 };
    const answer = (text: string) => async () => {
      sent.messages += 1;
      await new Promise<void>((done) => clock.after(10, done));
      return text;
    };
    const [decided, both] = [JSON.stringify({ rules: [] }), JSON.stringify([{ rules: [] }, { rules: [] }])];
    const stub = { giveBack: answer("null"), limit: answer(decided), reserve: answer(both) };
    const namespace = { getByName: () => stub as unknown as LimiterStub };
    return { sent, objects: new Objects(namespace, clock, { queues, inBackground: () => undefined }) };
  };
  const [giver, ...callers] = [request(), request(), request()] as const;
  const returned = [{ key: "a", holder: "one", turn: 1, used: {} }];
  const given = giver.objects.call(policy, "a", { giveBack: { policy: "api", returned } });
  await clock.advance(5);
  const limit = { policy: "api", key: "a", cost: 1 };
  const decided = callers.map(({ objects }) => objects.call(policy, "a", { limit }));
  await clock.advance(policy.deadlineMs);
  expect(await Promise.all(decided)).toEqual([{ answer: { rules: [] } }, { answer: { rules: [] } }]);
  expect(await given).toEqual({ answer: null });
  expect(giver.sent.messages).toBe(1);
});

const jobs = policies.get("jobs");
if (jobs === undefined) throw new Error("there is no policy");
const RELEASE = { op: "release", policy: "jobs", key: "a", id: "l" } as const;

test("operations made at once go in one message", async () => {
  const batches: string[] = [];
  const reserve = ({ calls }: Batch) => {
    batches.push(calls);
    return Promise.resolve(JSON.stringify((JSON.parse(calls) as unknown[]).map(() => ({ released: true }))));
  };
  const namespace = { getByName: () => ({ reserve }) as unknown as LimiterStub };
  const together = { queues: new BatchQueues(), inBackground: () => undefined };
  const objects = new Objects(namespace, manualClock(), together);
  const made = Array.from({ length: 20 }, () => objects.call(jobs, "a", { operation: RELEASE }));
  expect(await Promise.all(made)).toEqual(made.map(() => ({ answer: { released: true } })));
  expect(batches).toHaveLength(1);
});

test("a request that makes an operation sends those that come meanwhile too", async () => {
  const [queues, clock] = [new BatchQueues(), manualClock()];
  const request = () => {
    const sent: number[] = [];
    const reserve = async ({ calls }: Batch) => {
      const all = JSON.parse(calls) as unknown[];
      sent.push(all.length);
      await new Promise<void>((done) => clock.after(10, done));
      return JSON.stringify(all.map(() => ({ released: true })));
    };
    const namespace = { getByName: () => ({ reserve }) as unknown as LimiterStub };
    return { sent, objects: new Objects(namespace, clock, { queues, inBackground: () => undefined }) };
  };
  const [first, ...others] = [request(), request(), request()] as const;
  const made = [first.objects.call(jobs, "a", { operation: RELEASE })];
  await clock.advance(5);
  for (const { objects } of others) made.push(objects.call(jobs, "a", { operation: RELEASE }));
  await clock.advance(50);
  expect(await Promise.all(made)).toEqual(made.map(() => ({ answer: { released: true } })));
  expect([first, ...others].map(({ sent }) => sent)).toEqual([[1, 2], [], []]);
});

test.each([
  ["that does not know it", { unsupported: { protocol: 1 } }],
  ["that only takes back the units that come with it", null],
])("to an object of a version %s an operation is made alone", async (_, answer) => {
  const released: unknown[] = [];
  const stub = {
    reserve: () => Promise.resolve(JSON.stringify([answer])),
    giveBack: () => Promise.resolve(),
    release: (...call: readonly unknown[]) => {
      released.push(call);
      return Promise.resolve(true);
    },
  } as unknown as LimiterStub;
  const together = { queues: new BatchQueues(), inBackground: () => undefined };
  const objects = new Objects({ getByName: () => stub }, manualClock(), together);
  const giveBack = { policy: "jobs", returned: [] };
  const call = { giveBack, operation: RELEASE };
  expect(await objects.call(jobs, "a", call)).toEqual({ answer: { released: true } });
  expect(released).toEqual([["jobs", "a", "l"]]);
});

test("what ends a claim goes to an object that is overloaded, and no other operation", async () => {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const overloaded = () => Promise.reject(Object.assign(new Error("overloaded"), { overloaded: true }));
  let alone = 0;
  const release = () => {
    alone += 1;
    return Promise.resolve(true);
  };
  const stub = { reserve: overloaded, release } as unknown as LimiterStub;
  const together = { queues: new BatchQueues(), inBackground: () => undefined };
  const objects = new Objects({ getByName: () => stub }, manualClock(), together);
  const hold = { op: "hold", policy: "jobs", key: "a", cost: 1, ttlMs: 1_000 } as const;
  // What the object has refused is not sent again.
  const refused = Array.from({ length: 50 }, () => objects.call(jobs, "a", { operation: RELEASE }));
  expect(await Promise.all(refused)).toEqual(refused.map(() => undefined));
  expect(alone).toBe(0);
  expect(await objects.call(jobs, "a", { operation: hold })).toBe(undefined);
  expect(await objects.call(jobs, "a", { operation: RELEASE })).toEqual({ answer: { released: true } });
  vi.restoreAllMocks();
});
