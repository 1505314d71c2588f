/** `limit` with `waitMs`, as callers see it over HTTP. Who is served when is tested in turns.test.ts. */
import { expect, test } from "vitest";
import { eventually } from "../../support/eventually.ts";
import { call, freshKey, limit, report } from "../../support/limiter.ts";

test("a call that need not wait says so, and one that does not ask to wait says nothing of it", async () => {
  const key = freshKey();
  expect((await limit("slow", key, { waitMs: 30_000 })).body).toMatchObject({
    success: true,
    remaining: 4,
    waitedMs: 0,
  });
  expect((await limit("slow", key)).body).not.toHaveProperty("waitedMs");
  expect((await limit("slow", key, { waitMs: 0 })).body).not.toHaveProperty("waitedMs");
});

test("a wait over the policy's maxWait is refused, and takes nothing", async () => {
  const key = freshKey();
  const { status, body } = await limit("slow", key, { waitMs: 30_001 });
  expect(status).toBe(422);
  const detail = "waitMs is 30001: must be an integer from 0 to 30000, the policy's maxWait";
  expect(body["errors"]).toEqual([{ pointer: "/waitMs", detail }]);
  expect((await report("slow", key)).body).toMatchObject({ remaining: 5 });
});

test.each([-1, 1.5, "5", null])("a wait of %j is refused", async (waitMs) => {
  const { status, body } = await limit("slow", freshKey(), { waitMs });
  expect(status).toBe(422);
  expect(body["errors"]).toMatchObject([{ pointer: "/waitMs" }]);
});

test("a look never waits, also of a policy that leases", async () => {
  const key = freshKey();
  await limit("slow", key, { cost: 5 });
  expect((await limit("slow", key, { cost: 0, waitMs: 20_000 })).body).toMatchObject({ success: true });
  expect((await limit("export", key, { cost: 0, waitMs: 20_000 })).body).toMatchObject({ success: true });
  expect((await limit("export", key, { waitMs: 20_000 })).status).toBe(422);
});

test("what was taken after a wait is a charge like any other", async () => {
  const key = freshKey();
  const { body } = await call("/v1/holds", { body: { policy: "slow", key, units: 5 } });
  const waiting = limit("slow", key, { cost: 2, waitMs: 20_000, refundable: true });
  await eventually(async () => expect((await report("slow", key)).body).toMatchObject({ queueLength: 1 }));
  const { id } = body["hold"] as { id: string };
  // A settling serves those who wait, as a cancelled hold does.
  await call(`/v1/holds/${id}/settle`, { body: { used: 3 } });
  const decision = (await waiting).body;
  expect(decision).toMatchObject({ success: true, remaining: 0 });
  const refund = { policy: "slow", key, units: 2, charge: decision["charge"], idempotencyKey: "r" };
  expect((await call("/v1/refund", { body: refund })).body).toMatchObject({ remaining: 2 });
});

test("a reset serves those who wait", async () => {
  const key = freshKey();
  await call("/v1/holds", { body: { policy: "slow", key, units: 5 } });
  const waiting = limit("slow", key, { waitMs: 20_000 });
  await eventually(async () => expect((await report("slow", key)).body).toMatchObject({ queueLength: 1 }));
  await call(`/v1/policies/slow/keys/${key}`, { method: "DELETE" });
  expect((await waiting).body).toMatchObject({ success: true, remaining: 4 });
});

test("a hold and a call on several keys do not pass those who wait", async () => {
  const key = freshKey();
  await call("/v1/holds", { body: { policy: "slow", key, units: 3 } });
  const waiting = limit("slow", key, { cost: 4, waitMs: 20_000 });
  await eventually(async () => expect((await report("slow", key)).body).toMatchObject({ queueLength: 1 }));
  const denied = { success: false, reason: "quota" };
  expect((await call("/v1/holds", { body: { policy: "slow", key, units: 1 } })).body).toMatchObject(denied);
  const all = {
    checks: [
      { policy: "slow", key },
      { policy: "slow", key: freshKey() },
    ],
  };
  expect((await call("/v1/limit/all", { body: all })).body).toMatchObject({
    success: false,
    decisions: [denied, {}],
  });
  await call(`/v1/policies/slow/keys/${key}`, { method: "DELETE" });
  expect((await waiting).body).toMatchObject({ success: true });
});

test("plain workerd has no jurisdictions: a policy that names one is decided all the same, and is listed without", async () => {
  expect((await limit("european", freshKey())).body).toMatchObject({ success: true, source: "object" });
  const { body } = await call("/v1/policies");
  const policies = body["policies"] as readonly { readonly name: string }[];
  expect(policies.find(({ name }) => name === "european")).not.toHaveProperty("jurisdiction");
});
