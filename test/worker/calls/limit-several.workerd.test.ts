/** Several checks in one call, each decided by itself: `atomic: false`. */
import { env, runInDurableObject } from "cloudflare:test";
import { exports } from "cloudflare:workers";
import { expect, test } from "vitest";
import { LimiterClient } from "../../../client/objects/limiter-client.ts";
import { Objects, type LimiterNamespace, type LimiterStub } from "../../../client/transports/objects.ts";
import { SYSTEM_TIME } from "../../../core/clock.ts";
import { Problem } from "../../../core/protocol/problems.ts";
import { regionalPolicies } from "../../../durable-objects/deployment.ts";
import type { LimiterObject } from "../../../durable-objects/limiter-object.ts";
import { callLimitSeveral } from "../../../worker/calls/limit-all.ts";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, limit, report, type Called } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

interface Check {
  readonly policy: string;
  readonly key: string;
  readonly cost?: unknown;
}

const limitEach = (checks: readonly Check[], fields: object = {}, query = "") =>
  call(`/v1/limit/all${query}`, { body: { checks, atomic: false, ...fields } });
const decisionsOf = ({ body }: Called) => body["decisions"] as Record<string, unknown>[];
const successes = (called: Called) => decisionsOf(called).map(({ success }) => success);
const remaining = async (policy: string, key: string) => (await report(policy, key)).body["remaining"];

test("each check that passes is taken, whatever the others say, and holds nothing", async () => {
  const [one, other] = [freshKey(), freshKey()];
  await limit("log", other, { cost: 4 });
  const called = await limitEach([
    { policy: "slow", key: one, cost: 2 },
    { policy: "log", key: other, cost: 3 },
    { policy: "several", key: one, cost: { tokens: 9 } },
    { policy: "slow", key: one, cost: 6 },
  ]);
  expect(called.status).toBe(200);
  expect(called.body["success"]).toBe(false);
  expect(successes(called)).toEqual([true, false, true, false]);
  expect(decisionsOf(called)[3]).toMatchObject({ reason: "cost-over-limit", retryAfterMs: null });
  expect((await report("slow", one)).body).toMatchObject({ remaining: 3, holds: 0, outstanding: 0 });
  expect((await report("log", other)).body).toMatchObject({ remaining: 1, holds: 0, outstanding: 0 });
});

test("all pass: the call has succeeded, and decisions are in the order of the checks", async () => {
  const keys = Array.from({ length: 100 }, () => freshKey());
  const called = await limitEach(keys.map((key, index) => ({ policy: "log", key, cost: index % 5 })));
  expect(called.body["success"]).toBe(true);
  expect(decisionsOf(called).map(({ key }) => key)).toEqual(keys);
  expect(decisionsOf(called).map(({ remaining: left }) => left)).toEqual(
    keys.map((_, index) => 5 - (index % 5)),
  );
});

test("a key that is checked ten times is taken as often as it has units", async () => {
  const key = freshKey();
  const called = await limitEach(Array.from({ length: 10 }, () => ({ policy: "slow", key })));
  expect(successes(called).filter(Boolean)).toHaveLength(5);
  expect(await remaining("slow", key)).toBe(0);
});

test("a check decides as a plain limit does: the isolate decides a hot key", async () => {
  const key = freshKey();
  for (let calls = 0; calls < 5; calls += 1) await limit("hot", key);
  const [decision] = decisionsOf(await limitEach([{ policy: "hot", key }]));
  expect(decision).toMatchObject({ success: true, source: "isolate" });
});

test("at most 20 checks of a call ask objects at once, and all of them are asked", async () => {
  let [now, most, all] = [0, 0, 0];
  const { OBJECTS } = env as unknown as { OBJECTS: LimiterNamespace };
  const counted = async (answer: () => Promise<string>) => {
    [now, all] = [now + 1, all + 1];
    most = Math.max(most, now);
    await new Promise((done) => setTimeout(done, 2));
    const text = await answer();
    now -= 1;
    return text;
  };
  const namespace: LimiterNamespace = {
    getByName: (name) => {
      const stub = OBJECTS.getByName(name);
      return {
        limit: (...args: Parameters<LimiterStub["limit"]>) => counted(() => stub.limit(...args)),
      } as unknown as LimiterStub;
    },
  };
  const client = new LimiterClient({
    objects: new Objects(namespace, SYSTEM_TIME),
    policies: regionalPolicies,
    time: SYSTEM_TIME,
    inBackground: () => undefined,
  });
  const caller = { title: "a test", id: '"test"', scopes: ["limit"], bounds: NARROW } as const;
  const checks = Array.from({ length: 100 }, () => ({ policy: "slow", key: freshKey() }));
  const answer = await callLimitSeveral(
    { client, principal: caller },
    { checks, atomic: false, idempotencyKey: "a" },
  );
  if (answer instanceof Problem) throw answer.toError();
  expect([most, all, answer.success]).toEqual([20, 100, true]);
});
const NARROW = { maxCallsAtOnce: 1_000, maxNewKeysPerSecond: 1_000 };

test("the same call again is charged once, and what was denied is decided anew", async () => {
  const [one, other] = [freshKey(), freshKey()];
  await limit("slow", other, { cost: 5, idempotencyKey: "x" });
  const checks = [
    { policy: "slow", key: one, cost: 2 },
    { policy: "slow", key: other },
    { policy: "slow", key: one, cost: 2 },
  ];
  const first = await limitEach(checks, { idempotencyKey: "a" });
  expect(successes(first)).toEqual([true, false, true]);
  await call("/v1/refund", { body: { policy: "slow", key: other, units: 5, idempotencyKey: "r" } });
  const again = await limitEach(checks, { idempotencyKey: "a" });
  expect(again.body["success"]).toBe(true);
  expect([decisionsOf(again)[0], decisionsOf(again)[2]]).toEqual([
    decisionsOf(first)[0],
    decisionsOf(first)[2],
  ]);
  expect([await remaining("slow", one), await remaining("slow", other)]).toEqual([1, 4]);
});

test("some of the checks, in another order, or a plain limit are the same calls", async () => {
  const [one, other] = [freshKey(), freshKey()];
  const checks = [
    { policy: "slow", key: one, cost: 2 },
    { policy: "log", key: other },
  ];
  const first = await limitEach(checks, { idempotencyKey: "a" });
  const turned = await limitEach(checks.toReversed(), { idempotencyKey: "a" });
  expect(decisionsOf(turned)).toEqual(decisionsOf(first).toReversed());
  expect((await limit("slow", one, { cost: 2, idempotencyKey: "a" })).body).toEqual(decisionsOf(first)[0]);
  expect([await remaining("slow", one), await remaining("log", other)]).toEqual([3, 4]);
});

test("a check whose idempotency key was used for something else is refused, and the others are made", async () => {
  const [one, other] = [freshKey(), freshKey()];
  await limit("slow", one, { cost: 2, idempotencyKey: "a" });
  const checks = [
    { policy: "slow", key: one, cost: 3 },
    { policy: "slow", key: other },
  ];
  const called = await limitEach(checks, { idempotencyKey: "a" });
  expect(called.status).toBe(200);
  expect(called.body).toMatchObject({
    success: false,
    decisions: [
      {
        success: false,
        policy: "slow",
        key: one,
        limit: 5,
        reason: "refused",
        rules: [],
        problem: {
          status: 409,
          code: "idempotency-key-reused",
          detail: expect.stringContaining("was used for a limit of 2"),
        },
      },
      { success: true, remaining: 4 },
    ],
  });
  expect(await remaining("slow", one)).toBe(3);
  const denied = await limitEach(checks.slice(0, 1), { idempotencyKey: "a" }, "?deny=429");
  expect(denied.status).toBe(429);
  expect(denied.body["detail"]).toContain("was used for a limit of 2");
});

test("a check that cannot be decided is one decision among the others, as onFailure says", async () => {
  const [closed, open, fine] = [freshKey(), freshKey(), freshKey()];
  for (const [policy, key] of [
    ["closed", closed],
    ["open", open],
  ] as const) {
    const object = objectOf(policy, key);
    await runInDurableObject(object.stub, (_: LimiterObject, state) => {
      state.storage.sql.exec("CREATE TABLE keys (broken TEXT)");
    });
    // The object finds the table when it starts.
    await object.evict();
  }
  const checks = [
    { policy: "closed", key: closed },
    { policy: "open", key: open },
    { policy: "slow", key: fine },
  ];
  const called = await limitEach(checks);
  expect(called.body["success"]).toBe(false);
  expect(decisionsOf(called).map(({ success, reason }) => ({ success, reason }))).toEqual([
    { success: false, reason: "degraded" },
    { success: true, reason: "degraded" },
    { success: true, reason: "ok" },
  ]);
  expect(await remaining("slow", fine)).toBe(4);
  expect((await limitEach(checks, {}, "?deny=429")).status).toBe(503);
});

test("with ?deny=429 a denial is a 429 with all decisions, and the longest wait", async () => {
  const [one, other] = [freshKey(), freshKey()];
  await limit("slow", one, { cost: 5 });
  const checks = [
    { policy: "slow", key: other },
    { policy: "slow", key: one, cost: 2 },
  ];
  const { status, headers, body } = await limitEach(checks, {}, "?deny=429");
  expect(status).toBe(429);
  expect(body["violated-policies"]).toEqual(["slow"]);
  const [, denied] = body["decisions"] as { retryAfterMs: number }[];
  expect(headers.get("retry-after")).toBe(String(Math.ceil((denied?.retryAfterMs ?? 0) / 1_000)));
  expect(await remaining("slow", other)).toBe(4);
});

test("a policy or key that is not allowed refuses the whole call before anything is taken", async () => {
  const key = freshKey();
  const fine = { policy: "slow", key };
  const pointers = async (checks: unknown, fields: object = {}) => {
    const called = await call("/v1/limit/all", { body: { checks, atomic: false, ...fields } });
    expect(called.status).toBe(called.body["errors"] === undefined ? 0 : called.status);
    return (called.body["errors"] as { pointer: string }[]).map(({ pointer }) => pointer);
  };
  expect(await pointers([fine, { policy: "nowhere", key: "a" }])).toEqual(["/checks/1/policy"]);
  expect(await pointers([fine, { policy: "slow", key: "" }])).toEqual(["/checks/1/key"]);
  expect(await pointers([fine, { ...fine, cost: { words: 1 } }])).toEqual(["/checks/1/cost/words"]);
  // As for `limit`: what is leased has to be acquired.
  expect(await pointers([fine, { policy: "export", key }])).toEqual(["/checks/1/policy"]);
  expect(await pointers([fine], { atomic: "no" })).toEqual(["/atomic"]);
  expect(await pointers([])).toEqual(["/checks"]);
  expect(await pointers(Array.from({ length: 101 }, () => fine))).toEqual(["/checks"]);
  expect(
    await pointers(
      Array.from({ length: 17 }, () => fine),
      { atomic: true },
    ),
  ).toEqual(["/checks"]);
  const token = TOKENS.tenant;
  const allowed = `tenant-a:${key}`;
  const mixed = [
    { policy: "api", key: allowed },
    { policy: "api", key: "tenant-b:1" },
  ];
  expect((await call("/v1/limit/all", { body: { checks: mixed, atomic: false }, token })).status).toBe(403);
  expect(await remaining("slow", key)).toBe(5);
  expect(await remaining("api", allowed)).toBe(500);
});

test("a look at what is leased is a check like others", async () => {
  const key = freshKey();
  const called = await limitEach([{ policy: "export", key, cost: 0 }]);
  expect(called.body).toMatchObject({ success: true, decisions: [{ remaining: 2 }] });
});

test("over the binding limitAll takes atomic too, with the policy of the props", async () => {
  const limiter = (exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> }).Limiter({
    props: { policy: "slow" },
  });
  const keys = Array.from({ length: 100 }, () => freshKey());
  const checks = keys.map((key, index) => ({ key, cost: index === 7 ? 6 : 1 }));
  const answer = await limiter.limitAll({ checks, atomic: false });
  expect(answer.success).toBe(false);
  expect(answer.decisions.filter(({ success }) => !success)).toMatchObject([{ key: keys[7] }]);
  expect(await limiter.peek({ key: keys[99] ?? "" })).toMatchObject({ remaining: 4 });
});
