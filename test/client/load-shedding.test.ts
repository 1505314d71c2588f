/** What a client does with what it knows of how much is shed, and without. */
import { expect, test } from "vitest";
import { CallGate } from "../../client/call-gate.ts";
import { LoadShedding, REFRESH_MS, USABLE_MS } from "../../client/objects/load-shedding.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { SheddingCall } from "../../core/protocol/calls.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

const policy = parsePolicies({ fleet: { algorithm: "unlimited", shed: true } }).get("fleet") as Policy;
const BACK_MS = 20;
const TOLD = { level: 0, troubleMs: 5, utilization: 0.9, reportedAgoMs: 10, sinceMs: 7 };

/** A client, and an object that sheds `level` priorities, or does not answer. */
function start(level: number) {
  const time = new VirtualTime();
  const object = { level, answers: true, asked: [] as SheddingCall[] };
  const shedding = (call: SheddingCall) => {
    object.asked.push(call);
    return new Promise<string>((resolve) => {
      const answer = JSON.stringify({ ...TOLD, level: object.level });
      if (object.answers) time.at(time.nowMs + BACK_MS, () => resolve(answer));
    });
  };
  const namespace = { getByName: () => ({ shedding }) } as unknown as LimiterNamespace;
  const clock = time.clock({ ms: 1_000_000 });
  const caller = { objects: new Objects(namespace, clock), time: clock, inBackground: () => undefined };
  const client = new LoadShedding(() => 0.5);
  const roll = (priority = "low", key = "key") =>
    client.sampleShedding(caller, policy, key, { cost: 1, priority });
  const go = (ms: number) => time.run(time.nowMs + ms, () => undefined).then(() => (time.nowMs += 0));
  const wait = async (ms: number) => {
    const untilMs = time.nowMs + ms;
    await go(ms);
    time.nowMs = untilMs;
  };
  return { client, caller, object, roll, wait };
}

test("the first call waits until it is known how much is shed; the next ones roll at once", async () => {
  const { object, roll, wait } = start(0.6);
  const first = [roll(), roll()].map(async (rolled) => await rolled);
  await wait(BACK_MS);
  expect(await Promise.all(first)).toEqual([{ restoredInMs: 72_000 }, { restoredInMs: 72_000 }]);
  expect(roll()).toEqual({ restoredInMs: 72_000 });
  expect(roll("normal")).toBeUndefined();
  expect(object.asked.length).toBe(1);
});

test("it asks once a second while there are calls, and tells what it was told and what was reported", async () => {
  const { client, caller, object, roll, wait } = start(0.4);
  void roll();
  await wait(BACK_MS);
  for (let call = 0; call < 95; call += 1) {
    client.report(caller, policy, "key", 0.5);
    expect(roll()).toBeUndefined();
    await wait(100);
  }
  expect(object.asked.length).toBe(1 + 9);
  expect(object.asked[0]).not.toHaveProperty("known");
  const known = { ...TOLD, level: 0.4, agoMs: REFRESH_MS };
  expect(object.asked[3]).toMatchObject({
    policy: "fleet",
    key: "key",
    reports: { sum: 5, count: 10 },
    known,
  });
});

test("what is known is used for a while without an answer; then nothing is shed, and nobody waits", async () => {
  const { object, roll, wait } = start(1);
  void roll();
  await wait(BACK_MS);
  object.answers = false;
  for (let ms = BACK_MS; ms < USABLE_MS; ms += 500) {
    expect(roll()).toBeDefined();
    await wait(500);
  }
  await wait(500);
  expect(roll()).toBeUndefined();
  object.answers = true;
  await wait(REFRESH_MS);
  expect(roll()).toBeUndefined();
  await wait(BACK_MS);
  expect(roll()).toBeDefined();
});

test("a client that never had an answer waits for half the deadline, once", async () => {
  const { object, roll, wait } = start(1);
  object.answers = false;
  const first = roll();
  await wait(policy.deadlineMs / 2);
  expect(await first).toBeUndefined();
  await wait(policy.deadlineMs);
  expect(roll()).toBeUndefined();
});

test("keys are apart, a reset forgets, and the key that was used least lately goes first", async () => {
  const { client, object, roll, wait } = start(1);
  void roll("low", "one");
  await wait(BACK_MS);
  expect(roll("low", "one")).toBeDefined();
  client.forget(policy, "one");
  object.level = 0;
  const anew = roll("low", "one");
  await wait(BACK_MS);
  expect(await anew).toBeUndefined();
  object.level = 1;
  for (let key = 0; key < 1_000; key += 1) void roll("low", `key-${key}`);
  await wait(BACK_MS);
  expect(roll("low", "key-999")).toBeDefined();
  expect(roll("low", "one")).toBeInstanceOf(Promise);
});

test("the last report is told too, within a second, and one that could not be told is dropped", async () => {
  const { client, caller, object, wait } = start(0);
  client.report(caller, policy, "key", 0);
  await wait(100);
  client.report(caller, policy, "key", 1);
  await wait(2 * REFRESH_MS);
  expect(object.asked.map(({ reports }) => reports)).toEqual([
    { sum: 0, count: 1 },
    { sum: 1, count: 1 },
  ]);
  const silent = { ...caller, time: { ...caller.time, after: () => () => undefined } };
  client.report(silent, policy, "other", 0);
  client.report(silent, policy, "other", 1);
  await wait(60_000);
  void client.sampleShedding(caller, policy, "other", { cost: 1 });
  expect(object.asked.at(-1)?.reports).toEqual({ sum: 0, count: 0 });
});

test("one draw is for all calls that pass together", async () => {
  const { caller, roll, wait } = start(0.6);
  void roll();
  await wait(BACK_MS);
  const calls = Array.from({ length: 16 }, () => ({ policy, key: "key", cost: 1, priority: "low" }));
  const draws = [0.5, 0.7];
  let drawn = 0;
  const together = new LoadShedding(() => draws[drawn++] ?? 1);
  const begun = together.sampleTogether(caller, calls);
  await wait(BACK_MS);
  expect(await begun).toEqual(calls.map(() => ({ restoredInMs: 72_000 })));
  expect(await together.sampleTogether(caller, calls)).toEqual(calls.map(() => undefined));
  expect(drawn).toBe(2);
});

test("a cost that can never pass is not shed: it is told so", () => {
  const { caller } = start(1);
  const shut = parsePolicies({ shut: { algorithm: "token-bucket", limit: 5, window: "1s", shed: true } }).get(
    "shut",
  ) as Policy;
  expect(new LoadShedding(() => 0).sampleShedding(caller, shut, "key", { cost: 6 })).toBeUndefined();
});

test("a caller at its bounds keeps nobody else from asking, and its reports are told all the same", async () => {
  const { client, caller, object, roll, wait } = start(1);
  const gate = new CallGate({ maxCallsAtOnce: 1, maxNewKeysPerSecond: 1_000 });
  gate.enter(policy, "key", caller.time.nowMs(), "ask");
  for (let call = 0; call < 3; call += 1) client.report({ ...caller, gate }, policy, "key", 1);
  await wait(1);
  expect(object.asked).toEqual([]);
  const other = roll();
  await wait(BACK_MS);
  expect(await other).toBeDefined();
  expect(object.asked.map(({ reports }) => reports)).toEqual([{ sum: 3, count: 3 }]);
});
