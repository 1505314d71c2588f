import { runInDurableObject } from "cloudflare:test";
import { expect, test, vi } from "vitest";
import { LimiterObject } from "../../durable-objects/limiter-object.ts";
import { call, freshKey, idIn, limit } from "../support/limiter.ts";
import { objectOf } from "../support/objects.ts";

/** What objects do that die when they are asked. */
const deaths = new Map<unknown, () => void>();
const methods = LimiterObject.prototype as unknown as Record<string, (...args: unknown[]) => unknown>;
for (const name of Object.getOwnPropertyNames(methods).filter((each) => each !== "constructor")) {
  const answer = methods[name];
  vi.spyOn(methods, name).mockImplementation(async function (this: unknown, ...args) {
    const die = deaths.get(this);
    if (die === undefined) return await answer?.apply(this, args);
    die();
    return await new Promise(() => undefined);
  });
}

/** The object answers no call from now on, and dies a moment after the first, with all that have come by then. */
async function dieWhenAsked(policy: string, key: string): Promise<void> {
  await runInDurableObject(objectOf(policy, key).stub, (instance, state) => {
    deaths.set(instance, () => setTimeout(() => state.abort("it went"), 50));
  });
}

const peek = (policy: string, key: string) => call(`/v1/policies/${policy}/keys/${key}`);

test("settling, looking and idempotent calls are repeated when their object dies, and take effect once", async () => {
  const key = freshKey();
  const policy = "slow";
  const held = await call("/v1/holds", { body: { policy, key, units: 2 } });
  const other = await call("/v1/holds", { body: { policy, key, units: 1 } });
  await dieWhenAsked(policy, key);
  const answers = await Promise.all([
    call(`/v1/holds/${idIn(held)}/settle`, { body: { used: 1 } }),
    call(`/v1/holds/${idIn(other)}`, { method: "DELETE" }),
    peek(policy, key),
    limit(policy, key, { cost: 0 }),
    limit(policy, key, { cost: 1, idempotencyKey: "once" }),
  ]);
  expect(answers.map(({ status }) => status)).toEqual([200, 204, 200, 200, 200]);
  expect(answers.slice(3).map(({ body }) => body["reason"])).toEqual(["ok", "ok"]);
  const { body } = await limit(policy, key, { cost: 1, idempotencyKey: "once" });
  expect(body["success"]).toBe(true);
  expect((await limit(policy, key, { cost: 0 })).body["remaining"]).toBe(Number(body["limit"]) - 2);
});

test("a lease is renewed and released by an object that has just started again", async () => {
  const key = freshKey();
  const lease = await call("/v1/leases", { body: { policy: "export", key } });
  await dieWhenAsked("export", key);
  expect((await call(`/v1/leases/${idIn(lease)}/renew`, { body: {} })).status).toBe(200);
  await dieWhenAsked("export", key);
  expect((await call(`/v1/leases/${idIn(lease)}`, { method: "DELETE" })).status).toBe(204);
});

test("a cost that may have been taken is not taken again", async () => {
  const key = freshKey();
  await limit("slow", key);
  await dieWhenAsked("slow", key);
  expect((await limit("slow", key)).body).toMatchObject({ success: false, reason: "degraded" });
});
