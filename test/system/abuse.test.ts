/** Attacks on the served limiter by a caller with a token of the scope `limit`, beside callers who mind their own. */
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import {
  beside,
  byStatus,
  HttpCaller,
  idOf,
  manyTimes,
  memoryOf,
  storedIn,
  tokenEntry,
  tokenOf,
} from "../support/callers.ts";
import { depth, inDeepRuns } from "../support/depth.ts";
import { HttpClient, type TimedAnswer } from "../support/http-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const RULES = {
  requests: { algorithm: "token-bucket", limit: 1_000, window: "30d" },
  tokens: { algorithm: "token-bucket", limit: 1_000_000, window: "30d", unit: "tokens" },
};
const PATIENT = { deadlineMs: 30_000 };
const LEASED = { algorithm: "concurrency", ttl: "1h", maxWait: "5m", ...PATIENT };
const policies = {
  /** All keys in one object. */
  shared: { rules: RULES, objects: 1, ...PATIENT },
  crowded: { rules: RULES, objects: 1, ...PATIENT },
  apart: { rules: RULES, ...PATIENT },
  slots: { ...LEASED, limit: 20_000, objects: 1 },
  queue: { ...LEASED, limit: 2, maxWaiters: 100, objects: 1 },
};
/** Of a token that may do little at once. */
const BOUNDS = { maxCallsAtOnce: 2, maxNewKeysPerSecond: 1 };
const NAMES = ["attacker", "accomplice", "victim", "bounded"] as const;
const tokens = NAMES.map((name) => tokenEntry(name, name === "bounded" ? BOUNDS : {}));
const CLAIMS_OF_KEY = 10_000;
const CLAIMS_OF_CALLER = 10_000;
const CLAIMS_OF_OBJECT = 20_000;
const WATCHERS_OF_KEY = policies.queue.maxWaiters;
const WAITS_OF_CALLER = 1_000;
const WAITS_OF_OBJECT = 2_000;
/** A claim costs the more the more its key has: 10,000 of one key take a minute. Over many keys the bounds are the same. */
const IS_LONG = depth(false, true);
/** After this an object that nobody asked has left memory. */
const IDLE_MS = 13_000;
/** A hold that one of the two rules does not see. */
const UNSEEN = { units: { requests: 0, tokens: 1 }, ttlMs: 3_600_000 };

const state = makeState();
let serving: Serving;
/** A client for each of the callers. */
let by: Record<(typeof NAMES)[number], HttpCaller>;

async function start(): Promise<void> {
  serving = await serveBundle(state, policies, { tokens });
  const caller = (name: string) => new HttpCaller(serving.url, name);
  by = {
    attacker: caller("attacker"),
    accomplice: caller("accomplice"),
    victim: caller("victim"),
    bounded: caller("bounded"),
  };
}
async function stop(): Promise<void> {
  for (const caller of Object.values(by)) caller.close();
  await serving.stop("SIGKILL");
}
beforeAll(start);
afterAll(async () => {
  await stop();
  removeState(state);
});

/** An answer that refuses a call at this bound. */
const refusedAt = (bound: string) =>
  expect.objectContaining({
    status: 429,
    body: expect.objectContaining({
      type: "urn:weir:problem:bound-reached",
      detail: expect.stringContaining(bound),
    }),
  });
const OF_KEY = `${CLAIMS_OF_KEY} holds and leases of one key`;
const OF_CALLER = `${CLAIMS_OF_CALLER} holds and leases of one caller in one object`;
const OF_OBJECT = `${CLAIMS_OF_OBJECT} holds and leases in one object`;
const granted = expect.objectContaining({ status: 200, body: expect.objectContaining({ success: true }) });

/** Of answers that are all expected to grant a claim: their ids. */
function idsIn(answers: readonly TimedAnswer[]): string[] {
  expect(byStatus(answers)).toEqual({ 200: answers.length });
  return answers.map(idOf);
}

describe("holds and leases without number", () => {
  /** Exactly one more may be made when one has ended, also by whoever comes first after a crash. */
  async function holdsBound(
    make: () => Promise<TimedAnswer>,
    end: (id: string) => Promise<TimedAnswer>,
    ids: string[],
    bound: string,
  ) {
    const endOne = async () => expect((await end(ids.pop() ?? "")).status).toBe(204);
    expect(await make()).toEqual(refusedAt(bound));
    await endOne();
    ids.push(idOf(await make()));
    expect(await make()).toEqual(refusedAt(bound));
    await stop();
    await start();
    expect(await make()).toEqual(refusedAt(bound));
    await endOne();
    expect(await make()).toEqual(granted);
    expect(await make()).toEqual(refusedAt(bound));
  }

  inDeepRuns(
    "a caller has at most 10,000 in an object, exactly, through crashes, and others are answered as ever",
    async () => {
      const before = { memory: memoryOf(serving), stored: storedIn(state) };
      const holds = await beside(by.victim, "shared", () =>
        manyTimes(CLAIMS_OF_CALLER, 64, (index) => by.attacker.hold("shared", `held-${index % 100}`, UNSEEN)),
      );
      const ids = idsIn(holds);
      expect(await by.attacker.hold("shared", "another", UNSEEN)).toEqual(refusedAt(OF_CALLER));
      expect(await by.attacker.limit("shared", "held-0")).toEqual(granted);
      expect(await by.victim.hold("shared", "held-0")).toEqual(granted);
      expect(memoryOf(serving) - before.memory).toBeLessThan(300);
      expect(storedIn(state) - before.stored).toBeLessThan(30);
      const make = () => by.attacker.hold("shared", "held-0", UNSEEN);
      await holdsBound(make, (id) => by.attacker.cancel(id), ids, OF_CALLER);
      const settled = idOf(await by.victim.hold("shared", "held-0"));
      expect((await by.victim.settle(settled, 1)).status).toBe(200);
    },
  );

  inDeepRuns("one key has at most 10,000 holds and its object 20,000, whoever makes them", async () => {
    const ids = idsIn(await manyTimes(CLAIMS_OF_KEY, 64, () => by.attacker.hold("crowded", "one", UNSEEN)));
    expect(await by.accomplice.hold("crowded", "one", UNSEEN)).toEqual(refusedAt(OF_KEY));
    expect(await by.accomplice.limit("crowded", "one")).toEqual(granted);
    const others = CLAIMS_OF_OBJECT - CLAIMS_OF_KEY;
    const crowd = (index: number) => by.accomplice.hold("crowded", `held-${index % 100}`, UNSEEN);
    idsIn(await beside(by.victim, "apart", () => manyTimes(others, 64, crowd)));
    expect(await by.victim.limit("crowded", "own")).toEqual(granted);
    const make = () => by.victim.hold("crowded", "own", UNSEEN);
    await holdsBound(make, (id) => by.attacker.cancel(id), ids, OF_OBJECT);
  });

  inDeepRuns("one key has at most 10,000 leases, though its limit is higher", async () => {
    const acquire = () => by.attacker.acquire("slots", "one");
    const ids = idsIn(await manyTimes(CLAIMS_OF_KEY, 64, acquire));
    expect(await by.attacker.acquire("slots", "another")).toEqual(refusedAt(OF_CALLER));
    expect(await by.victim.acquire("slots", "another")).toEqual(granted);
    await holdsBound(
      () => by.victim.acquire("slots", "one"),
      (id) => by.attacker.release(id),
      ids,
      OF_KEY,
    );
  });
});

test("forged ids of thousands of keys are each a 404, and the memory that they take comes back", async () => {
  const calls = depth(300, 2_000);
  const forge = (index: number) => {
    const place = Buffer.from(`${index % 2 === 0 ? "apart" : "queue"}/${randomBytes(8).toString("hex")}`);
    const id = `${place.toString("base64url")}.${randomBytes(16).toString("base64url")}`;
    if (index % 4 === 0) return by.attacker.settle(`hold_${id}`, 1);
    if (index % 4 === 1) return by.attacker.renew(`lease_${id}`);
    return index % 4 === 2 ? by.attacker.cancel(`hold_${id}`) : by.attacker.release(`lease_${id}`);
  };
  const flood = async () => {
    const answers = await beside(by.victim, "shared", () => manyTimes(calls, 64, forge));
    expect(byStatus(answers)).toEqual({ 404: calls });
    return memoryOf(serving);
  };
  const before = memoryOf(serving);
  const once = await flood();
  if (!IS_LONG) return;
  // An object that nobody asks leaves memory after 10 s, and the next flood takes what the first one gave back.
  await sleep(IDLE_MS);
  expect((await flood()) - once).toBeLessThan((once - before) / 2);
});

describe.runIf(IS_LONG)("calls that wait", () => {
  const watch = (caller: HttpCaller, key: string) =>
    caller.call("GET", `/v1/policies/queue/keys/${key}?waitFor=idle&waitMs=300000`);
  /** Begins calls of which some are refused at once and the others wait. Returns those that were refused. */
  async function begun(count: number, waiting: number, call: (index: number) => Promise<TimedAnswer>) {
    const refused: TimedAnswer[] = [];
    for (let index = 0; index < count; index += 1)
      void call(index).then(
        (answer) => refused.push(answer),
        () => undefined,
      );
    await vi.waitFor(() => expect(refused.length).toBeGreaterThanOrEqual(count - waiting), {
      timeout: 60_000,
      interval: 50,
    });
    return refused;
  }
  const crowd = (name: string) => new HttpCaller(serving.url, name, 4_000);

  test("of 3,000 that wait for a key to be idle as many wait as the policy says, and its slots are still given out", async () => {
    const flood = crowd("attacker");
    const lease = idOf(await by.attacker.acquire("queue", "watched"));
    const refused = await beside(by.victim, "shared", () =>
      begun(3_000, WATCHERS_OF_KEY, () => watch(flood, "watched")),
    );
    expect(refused).toHaveLength(3_000 - WATCHERS_OF_KEY);
    for (const answer of refused)
      expect(answer).toEqual(refusedAt(`${WATCHERS_OF_KEY} calls that wait for one key`));
    const slot = await by.victim.acquire("queue", "watched", { waitMs: 5_000 });
    expect(slot).toEqual(granted);
    expect((await by.victim.release(idOf(slot))).status).toBe(204);
    expect((await by.attacker.release(lease)).status).toBe(204);
    flood.close();
  });

  test("a caller has 1,000 in an object and all have 2,000; who does not wait is served", async () => {
    const [one, other] = [crowd("attacker"), crowd("accomplice")];
    const keys = Array.from({ length: 30 }, (_, index) => `waited-${index}`);
    const leases = await Promise.all(keys.map((key) => by.victim.acquire("queue", key, { units: 2 })));
    const keyOf = (index: number) => keys[index % keys.length] ?? "";
    const wait = (caller: HttpCaller) => (index: number) =>
      index % 2 === 0
        ? watch(caller, keyOf(index))
        : caller.acquire("queue", keyOf(index), { waitMs: 300_000 });
    const first = await begun(WAITS_OF_CALLER + 100, WAITS_OF_CALLER, wait(one));
    for (const answer of first)
      expect(answer).toEqual(refusedAt(`${WAITS_OF_CALLER} calls of one caller that wait`));
    const slot = await by.victim.acquire("queue", "free", { waitMs: 1_000 });
    expect(slot).toEqual(granted);
    const second = await begun(
      WAITS_OF_OBJECT - WAITS_OF_CALLER + 50,
      WAITS_OF_OBJECT - WAITS_OF_CALLER,
      wait(other),
    );
    const ofObject = refusedAt(`${WAITS_OF_OBJECT} calls that wait in one object`);
    for (const answer of second) expect(answer).toEqual(ofObject);
    expect(await by.victim.acquire("queue", keyOf(0), { waitMs: 1_000 })).toEqual(ofObject);
    expect(await by.victim.acquire("queue", "free")).toEqual(granted);
    one.close();
    other.close();
    for (const lease of leases) expect((await by.victim.release(idOf(lease))).status).toBe(204);
  });
});

describe("a small request has a small answer", () => {
  const deep = (levels: number) => "[".repeat(levels) + "]".repeat(levels);
  const many = (count: number, each: (index: number) => string) =>
    Array.from({ length: count }, (_, index) => each(index)).join();
  test.each([
    ["5,450 empty checks", "limit/all", `{"checks":[${many(5_450, () => "{}")}]}`, 422],
    [
      "16 checks that each lack everything",
      "limit/all",
      `{"checks":[${many(16, () => `{"a":{"b":[]}}`)}]}`,
      422,
    ],
    ["1,500 unknown fields", "limit", `{${many(1_500, (index) => `"f${index}":0`)}}`, 422],
    [
      "a cost by 1,300 units that there are not",
      "limit",
      `{"policy":"shared","key":"k","cost":{${many(1_300, (index) => `"u${index}":1`)}}}`,
      422,
    ],
    [
      "an array of 8,000 as a cost",
      "limit",
      `{"policy":"shared","key":"k","cost":[${many(8_000, () => "0")}]}`,
      422,
    ],
    ["8,000 levels of arrays", "limit", `{"policy":"shared","key":"k","cost":${deep(8_000)}}`, 422],
    ["a key of 16 KB", "limit", `{"policy":"shared","key":"${"k".repeat(16_000)}"}`, 422],
    ["a policy of 16 KB", "holds", `{"policy":"${"p".repeat(16_000)}","key":"k","units":1}`, 404],
    ["17 KB of anything", "limit", `{"policy":"shared","key":"${"k".repeat(17_000)}"}`, 413],
  ])("%s", async (_, path, text, status) => {
    const response = await fetch(`${serving.url}/v1/${path}`, {
      method: "POST",
      headers: { authorization: `Bearer ${tokenOf("attacker")}`, "content-type": "application/json" },
      body: text,
    });
    const answer = await response.text();
    expect(response.status).toBe(status);
    expect(answer.length).toBeLessThan(8_192);
    const { errors = [] } = JSON.parse(answer) as { errors?: unknown[] };
    expect(errors.length).toBeLessThanOrEqual(20);
  });
});

inDeepRuns("a token that is spelled in thousands of ways is remembered in one", async () => {
  const spellings = 5_000;
  const spelled = async (index: number) => {
    const bearer = Array.from("bearer")
      .map((letter, place) => ((index >> place) % 2 === 0 ? letter : letter.toUpperCase()))
      .join("");
    const authorization = `${bearer}${" ".repeat(100_000 + index)}${tokenOf("attacker")}`;
    const client = new HttpClient(serving.url, 1, { authorization });
    const answer = await client.call("GET", "/v1/policies");
    client.close();
    return answer;
  };
  await manyTimes(200, 8, (index) => spelled(index + spellings));
  const before = memoryOf(serving);
  const answers = await beside(by.victim, "shared", () => manyTimes(spellings, 8, spelled));
  expect(byStatus(answers)).toEqual({ 200: spellings });
  // All spellings together have at least 500 MB.
  expect(memoryOf(serving) - before).toBeLessThan(200);
});

describe("a caller with bounds of its own", () => {
  test("calls beyond what it may have at once are refused, and others are all answered", async () => {
    const take = (index: number) => by.bounded.limit("shared", "bounded", { idempotencyKey: `${index}` });
    // After a crash a new key presumes for a while that a unit of it was given out before.
    const left = async () => Number((await by.victim.peek("shared", "bounded")).body["remaining"]);
    const before = await left();
    const answers = await beside(by.victim, "shared", () => manyTimes(200, 50, take));
    const refused = answers.filter(({ status }) => status !== 200);
    expect(refused.length).toBeGreaterThan(0);
    for (const answer of refused)
      expect(answer).toEqual(refusedAt("2 calls at once of one caller to one object"));
    expect(await left()).toBe(before - (200 - refused.length));
  });

  test("a call on several keys that is denied takes nothing, whatever the caller does at once", async () => {
    await by.victim.limit("apart", "full", { cost: { requests: 1_000, tokens: 0 } });
    const check = (key: string) => ({ policy: "apart", key });
    const both = { checks: [check("half"), check("full")] };
    const answers = await manyTimes(60, 60, () => by.bounded.post("limit/all", both));
    expect(answers.filter(({ body }) => body["success"] === true)).toEqual([]);
    expect((await by.victim.peek("apart", "half")).body).toMatchObject({ remaining: 1_000, outstanding: 0 });
  });

  test("new keys beyond its bound are refused, and those that it uses go on", async () => {
    const sinceMs = Date.now();
    const answers = await beside(by.victim, "shared", () =>
      manyTimes(60, 1, (index) => by.bounded.limit("shared", `new-${index}`)),
    );
    const refused = answers.filter(({ status }) => status !== 200);
    expect(answers.length - refused.length).toBeLessThanOrEqual(
      10 + Math.ceil((Date.now() - sinceMs) / 1_000),
    );
    for (const answer of refused) expect(answer).toEqual(refusedAt("1 new keys a second of one caller"));
    expect(await by.bounded.limit("shared", "bounded")).toEqual(granted);
  });
});
