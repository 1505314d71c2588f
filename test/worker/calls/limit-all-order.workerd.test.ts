/** Calls on several keys that get in each other's way: their messages are delayed on purpose, everything else is real. */
import { env } from "cloudflare:workers";
import fc from "fast-check";
import { expect, test } from "vitest";
import { LimiterClient } from "../../../client/objects/limiter-client.ts";
import { Objects, type LimiterNamespace, type LimiterStub } from "../../../client/transports/objects.ts";
import { SYSTEM_TIME } from "../../../core/clock.ts";
import { DEFAULT_BOUNDS } from "../../../core/policies/policy.ts";
import type { HoldCall } from "../../../core/protocol/calls.ts";
import { Problem } from "../../../core/protocol/problems.ts";
import { regionalPolicies } from "../../../durable-objects/deployment.ts";
import { callLimitSeveral } from "../../../worker/calls/limit-all.ts";
import { depth } from "../../support/depth.ts";
import { eventually } from "../../support/eventually.ts";
import { call, freshKey, limit, report } from "../../support/limiter.ts";

const { OBJECTS } = env as unknown as { OBJECTS: LimiterNamespace };
const CALLER = { title: "a test", id: '"test"', scopes: ["limit"], bounds: DEFAULT_BOUNDS } as const;

/** A client whose holds wait for this before they are sent. */
function clientDelayedBy(delay: (held: HoldCall) => Promise<void>): LimiterClient {
  const namespace: LimiterNamespace = {
    getByName: (name) => {
      const stub = OBJECTS.getByName(name);
      return {
        hold: async (held: HoldCall) => {
          await delay(held);
          return await stub.hold(held);
        },
        limit: (...args: Parameters<LimiterStub["limit"]>) => stub.limit(...args),
        settle: (...args: Parameters<LimiterStub["settle"]>) => stub.settle(...args),
        cancel: (...args: Parameters<LimiterStub["cancel"]>) => stub.cancel(...args),
      } as unknown as LimiterStub;
    },
  };
  return new LimiterClient({
    objects: new Objects(namespace, SYSTEM_TIME),
    policies: regionalPolicies,
    time: SYSTEM_TIME,
    inBackground: () => undefined,
  });
}

async function limitAll(client: LimiterClient, keys: readonly string[], cost: number): Promise<boolean> {
  const checks = keys.map((key) => ({ policy: "slow", key, cost }));
  const answer = await callLimitSeveral({ client, principal: CALLER }, { checks });
  if (answer instanceof Problem) throw answer.toError();
  return answer.success;
}

const remaining = async (key: string) => (await report("slow", key)).body["remaining"];

test("each has what the other lacks: both are denied at first, and in the end one passes, not none", async () => {
  for (let round = 0; round < 10; round += 1) {
    const [one, other] = [freshKey(), freshKey()];
    let [placed, goOn]: [number, () => void] = [0, () => undefined];
    const bothHaveOne = new Promise<void>((resolve) => (goOn = resolve));
    /** Asks for its first key at once, and for its second when both have their first. */
    const crossing = (first: string) => {
      let calls = 0;
      return clientDelayedBy(async ({ key }) => {
        calls += 1;
        if (calls > 2) return;
        if (key !== first) return await bothHaveOne;
        placed += 1;
        // The message of the first has been sent when this one's turn comes again.
        if (placed === 2) setTimeout(goOn, 20);
      });
    };
    const passed = await Promise.all([
      limitAll(crossing(one), [one, other], 3),
      limitAll(crossing(other), [other, one], 3),
    ]);
    expect(passed.filter(Boolean)).toHaveLength(1);
    expect([await remaining(one), await remaining(other)]).toEqual([2, 2]);
  }
});

test("a plain call is not denied for what a call on several keys gives back: it waits for that", async () => {
  let told = 0;
  for (let round = 0; told < 5 && round < 50; round += 1) {
    const [key, empty] = [freshKey(), freshKey()];
    await limit("slow", empty, { cost: 5 });
    let goOn: () => void = () => undefined;
    const mayGoOn = new Promise<void>((resolve) => (goOn = resolve));
    // The other key's check is going to be denied, when it may.
    const client = clientDelayedBy(({ key: of }) => (of === empty ? mayGoOn : Promise.resolve()));
    const all = limitAll(client, [key, empty], 5);
    await eventually(async () =>
      expect((await report("slow", key)).body).toMatchObject({ holds: 1, outstanding: 5 }),
    );
    // After the calls that follow have come.
    const sinceMs = performance.now();
    setTimeout(goOn, 60);
    // Each of them twice at once, as when a client is impatient: one charge.
    const held = { policy: "slow", key, units: 2, idempotencyKey: "hold" };
    const plain = await Promise.all([
      limit("slow", key, { cost: 2, idempotencyKey: "limit" }),
      limit("slow", key, { cost: 2, idempotencyKey: "limit" }),
      call("/v1/holds", { body: held }),
      call("/v1/holds", { body: held }),
    ]);
    const isPassed = plain.every(({ body }) => body["success"] === true);
    expect(await all).toBe(false);
    // They wait for a quarter of a second: where the machine stood still meanwhile, a denial says nothing.
    if (!isPassed && performance.now() - sinceMs > 200) continue;
    expect(isPassed).toBe(true);
    expect((await report("slow", key)).body).toMatchObject({ remaining: 1, holds: 1 });
    told += 1;
  }
  expect(told).toBeGreaterThan(0);
});

test("a check that only met what others had apart is not named among those that denied", async () => {
  const [key, empty] = [freshKey(), freshKey()];
  await limit("slow", empty, { cost: 5 });
  let goOn: () => void = () => undefined;
  const mayGoOn = new Promise<void>((resolve) => (goOn = resolve));
  const slow = clientDelayedBy(({ key: of }) => (of === empty ? mayGoOn : Promise.resolve()));
  const other = limitAll(slow, [key, empty], 5);
  await eventually(async () => expect((await report("slow", key)).body).toMatchObject({ holds: 1 }));
  setTimeout(goOn, 100);
  const checks = [key, empty].map((of) => ({ policy: "slow", key: of, cost: 5 }));
  const { body } = await call("/v1/limit/all", { body: { checks } });
  expect(body).toMatchObject({
    success: false,
    decisions: [{ success: true }, { success: false, reason: "quota" }],
  });
  expect(await other).toBe(false);
});

test("however their messages are delayed, all ends, nothing is lost, and whoever could have passed has", async () => {
  const calls = fc.array(
    fc.record({
      keys: fc.shuffledSubarray([0, 1, 2], { minLength: 2 }),
      delaysMs: fc.array(fc.nat(4), { minLength: 6, maxLength: 6 }),
    }),
    { minLength: 2, maxLength: 5 },
  );
  await fc.assert(
    fc.asyncProperty(calls, async (made) => {
      const names = [freshKey(), freshKey(), freshKey()];
      const passed = await Promise.all(
        made.map(({ keys, delaysMs }) => {
          let message = 0;
          const client = clientDelayedBy(async () => {
            message += 1;
            await new Promise((done) => setTimeout(done, delaysMs[message % 6]));
          });
          return limitAll(
            client,
            keys.map((key) => names[key] ?? ""),
            3,
          );
        }),
      );
      // Each key has room for one. A call that was denied lost one of its keys to a call that passed.
      const won = made.filter((_, index) => passed[index]).flatMap(({ keys }) => keys);
      expect(new Set(won).size).toBe(won.length);
      for (const [index, { keys }] of made.entries())
        if (passed[index] !== true) expect(keys.some((key) => won.includes(key))).toBe(true);
      const left = await Promise.all(names.map(remaining));
      expect(left).toEqual(names.map((_, key) => (won.includes(key) ? 2 : 5)));
    }),
    { numRuns: depth(6, 60) },
  );
});
