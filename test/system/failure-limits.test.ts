/** `onFailure = { limit, window }` on plain workerd, while objects answer nothing, and in a process whose limiter was killed. */
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { createLimiter } from "../../package/client.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const HOUR_MS = 3_600_000;
const onFailure = { limit: 3, window: "1h" };
const FAST = { deadlineMs: 500, onFailure };
const policies = {
  guarded: { algorithm: "token-bucket", limit: 1_000, window: "30d", ...FAST },
  counted: { algorithm: "sliding-log", limit: 1_000, window: "30d", reservation: "off", ...FAST },
  slots: { algorithm: "concurrency", limit: 5, ...FAST },
};

const state = makeState();
let serving: Serving;
let client: HttpClient;
beforeAll(async () => {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const main = join(import.meta.dirname, "..", "support", "absent-object.mjs");
  serving = await serveBundle(state, policies, { main });
  client = new HttpClient(serving.url, 8);
});
afterAll(async () => {
  client.close();
  await serving.stop("SIGKILL");
  removeState(state);
});

const ask = async (policy: string, key: string, fields: object = {}) =>
  (await client.limit(policy, key, { ...fields })).body;
const isKnown = async (policy: string, key: string) =>
  await eventually(async () => expect(await ask(policy, key)).toMatchObject({ reason: "ok" }));
const ADMITTED = {
  success: true,
  limit: 3,
  retryAfterMs: 0,
  reason: "degraded",
  source: "fallback",
  rules: [],
};
const DENIED = { success: false, limit: 3, remaining: 0, reason: "degraded", source: "fallback", rules: [] };

/** Five calls: three are admitted, the others are told when the next third of an hour is over. */
async function expectLimit(call: () => Promise<object>): Promise<void> {
  for (const remaining of [2, 1, 0]) expect(await call()).toMatchObject({ ...ADMITTED, remaining });
  for (let late = 0; late < 2; late += 1) {
    const denied = (await call()) as { readonly retryAfterMs?: number };
    expect(denied).toMatchObject(DENIED);
    expect(denied.retryAfterMs).toBeGreaterThan(0);
    expect(denied.retryAfterMs).toBeLessThanOrEqual(HOUR_MS / 3);
  }
}

test("while objects are away an isolate admits so much of each key by itself, and then they decide again", async () => {
  for (const policy of ["guarded", "counted"]) await isKnown(policy, "a");
  await fetch(`${serving.url}/away`);
  for (const policy of ["guarded", "counted"]) {
    await expectLimit(() => ask(policy, "a"));
    expect(await ask(policy, "b", { cost: 4 })).toMatchObject({
      success: false,
      retryAfterMs: null,
      remaining: 3,
    });
    expect(await ask(policy, "b", { waitMs: 10, cost: 3 })).toMatchObject(ADMITTED);
  }
  expect(await ask("guarded", "c", { idempotencyKey: "one" })).toMatchObject(ADMITTED);
  const inOrder = ["guarded", "counted"].map((policy) => ({ policy, key: "e", cost: 2 }));
  for (const more of [{}, { idempotencyKey: "any" }]) {
    const path = "/v1/limit/any";
    const any = await client.call("POST", path, {
      checks: inOrder.map((check) => ({ ...check, cost: 1 })),
      ...more,
    });
    expect(any.body).toMatchObject({ chosen: 0, decisions: [ADMITTED] });
  }
  const alone = await client.call("POST", "/v1/limit/all", { checks: inOrder, atomic: false });
  const [denied, admitted] = alone.body["decisions"] as readonly object[];
  expect([denied, admitted]).toMatchObject([{ ...DENIED, remaining: 1 }, ADMITTED]);
  // These are closed.
  const hold = await client.call("POST", "/v1/holds", { policy: "guarded", key: "d", units: 1 });
  const lease = await client.call("POST", "/v1/leases", { policy: "slots", key: "d" });
  const checks = [
    { policy: "guarded", key: "d" },
    { policy: "counted", key: "d" },
  ];
  const all = await client.call("POST", "/v1/limit/all", { checks });
  expect([hold, lease].map(({ body }) => [body["success"], body["reason"]])).toEqual([
    [false, "degraded"],
    [false, "degraded"],
  ]);
  expect(all.body).toMatchObject({ success: false });
  await fetch(`${serving.url}/back`);
  await isKnown("guarded", "a");
});

test("the policy says so, and a process of its own admits so much when its limiter was killed", async () => {
  const listed = await client.call("GET", "/v1/policies");
  const shown = { onFailure: "closed", failureLimit: { limit: 3, windowMs: HOUR_MS } };
  expect(listed.body["policies"]).toContainEqual(expect.objectContaining({ name: "guarded", ...shown }));
  await using limiter = createLimiter({ url: serving.url, token: TOKENS.full });
  for (const policy of ["guarded", "counted"])
    await eventually(async () =>
      expect(await limiter.limit({ policy, key: "p" })).toMatchObject({ reason: "ok" }),
    );
  await serving.stop("SIGKILL");
  for (const policy of ["guarded", "counted"]) await expectLimit(() => limiter.limit({ policy, key: "q" }));
  expect(await limiter.acquire({ policy: "slots", key: "q" })).toMatchObject({ success: false });
  expect(await limiter.limit({ policy: "guarded", key: "r", cost: -5 })).toMatchObject({ success: false });
  await expectLimit(() => limiter.limit({ policy: "guarded", key: "r" }));
});
