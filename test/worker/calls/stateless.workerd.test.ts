import { expect, test } from "vitest";
import { acquire, call, freshKey, idIn, limit, report } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const MAX = 1_000_000_000;

test("an unlimited policy admits in the isolate, and nothing is stored", async () => {
  const key = freshKey();
  for (const cost of [undefined, 0, MAX, { requests: 3 }])
    expect((await limit("free", key, cost === undefined ? {} : { cost })).body).toEqual({
      success: true,
      policy: "free",
      key,
      limit: MAX,
      remaining: MAX,
      resetAfterMs: 0,
      retryAfterMs: 0,
      reason: "ok",
      source: "isolate",
      rules: [
        {
          name: "free",
          success: true,
          limit: MAX,
          remaining: MAX,
          resetAfterMs: 0,
          retryAfterMs: 0,
          reason: "ok",
        },
      ],
    });
  const { headers } = await limit("free", key);
  expect(headers.get("ratelimit-policy")).toBe('"free";q=1000000000');
  expect(headers.get("ratelimit")).toBe('"free";r=1000000000;t=0');
  expect((await objectOf("free", key).stored()).tables).toEqual({});
});

test("a policy with a limit of 0 denies in the isolate, for ever", async () => {
  const key = freshKey();
  const { status, headers, body } = await call("/v1/limit?deny=429", { body: { policy: "shut", key } });
  expect({ status, body }).toMatchObject({
    status: 429,
    body: {
      decision: { reason: "cost-over-limit", retryAfterMs: null, limit: 0, remaining: 0, source: "isolate" },
    },
  });
  expect(headers.get("ratelimit-policy")).toBe('"shut";q=0;w=1');
  expect(headers.get("ratelimit")).toBe('"shut";r=0');
  expect(headers.has("retry-after")).toBe(false);
  expect((await limit("shut", key, { cost: 0 })).body).toMatchObject({ success: true, remaining: 0 });
});

test("idempotency keys, charges, force and sets work on both", async () => {
  const key = freshKey();
  const first = await limit("free", key, { idempotencyKey: "a", refundable: true });
  expect(first.body).toMatchObject({ success: true, source: "object", charge: "a" });
  expect((await limit("free", key, { idempotencyKey: "a", cost: 2 })).status).toBe(409);
  const body = { policy: "free", key, units: 1, charge: "a", idempotencyKey: "b" };
  expect((await call("/v1/refund", { body })).body).toMatchObject({ remaining: MAX });
  for (const policy of ["free", "shut"]) {
    const left = policy === "free" ? MAX : 0;
    expect((await limit(policy, key, { force: true, cost: 9 })).body).toMatchObject({
      success: true,
      remaining: left,
    });
    const set = await call(`/v1/policies/${policy}/keys/${key}`, { method: "PUT", body: { used: 9 } });
    expect(set.body).toMatchObject({ success: policy === "free", remaining: left });
    expect((await call(`/v1/policies/${policy}/keys/${key}`, { method: "DELETE" })).status).toBe(204);
  }
});

test("looks, holds and calls on several keys work with both", async () => {
  const key = freshKey();
  expect((await report("free", key)).body).toMatchObject({ success: true, remaining: MAX, outstanding: 0 });
  expect((await report("shut", key)).body).toMatchObject({ success: false, reason: "cost-over-limit" });
  const held = await call("/v1/holds", { body: { policy: "free", key, units: MAX } });
  expect((await report("free", key)).body).toMatchObject({ holds: 1, remaining: MAX, outstanding: MAX });
  const settled = await call(`/v1/holds/${idIn(held)}/settle`, { body: { used: MAX } });
  expect(settled.body).toMatchObject({ success: true, remaining: MAX });
  const hold = await call("/v1/holds", { body: { policy: "shut", key, units: 1 } });
  expect(hold.body).toMatchObject({ success: false, reason: "cost-over-limit" });
  const all = (...policies: string[]) =>
    call("/v1/limit/all", { body: { checks: policies.map((policy) => ({ policy, key })) } });
  expect((await all("free", "slow")).body).toMatchObject({ success: true });
  expect((await all("free", "slow", "shut")).body).toMatchObject({ success: false });
  expect((await report("slow", key)).body).toMatchObject({ remaining: 4 });
});

test("slots with a limit of 0 are refused at once, whoever would wait", async () => {
  const denied = await acquire("shut-slots", freshKey(), { waitMs: 15_000 });
  expect(denied.body).toMatchObject({
    success: false,
    reason: "cost-over-limit",
    retryAfterMs: null,
    limit: 0,
  });
});

test("the list of policies has them as they were written", async () => {
  const { policies } = (await call("/v1/policies")).body as { policies: { name: string; rules: object[] }[] };
  const rules = (name: string) => policies.find((policy) => policy.name === name)?.rules;
  expect(rules("free")).toEqual([
    { name: "free", algorithm: "unlimited", unit: "requests", capacity: 1_000_000_000 },
  ]);
  const shut = {
    name: "shut",
    algorithm: "token-bucket",
    unit: "requests",
    capacity: 0,
    limit: 0,
    windowMs: 1_000,
  };
  expect(rules("shut")).toEqual([shut]);
});
