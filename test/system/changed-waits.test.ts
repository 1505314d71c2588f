/** Calls that wait while their policy changes at run time, and nobody else calls. */
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const DEADLINE = { deadlineMs: 10_000 };
const SLOTS = { algorithm: "concurrency", limit: 1, ttl: "5m", maxWait: "2m", ...DEADLINE };
const RATE = { algorithm: "sliding-log", limit: 2, window: "1h", ...DEADLINE };
const NEVER = { success: false, reason: "cost-over-limit", retryAfterMs: null };
const state = makeState();
let serving: Serving;
beforeAll(async () => {
  const names = ["changing", "more"];
  serving = await serveBundle(state, Object.fromEntries(names.map((name) => [name, SLOTS])), { isolates: 2 });
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

async function call(isolate: number, method: string, path: string, body?: object) {
  const response = await fetch(`${serving.urls[isolate] ?? ""}/v1/${path}`, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    ...(body && { body: JSON.stringify(body) }),
  });
  return (await response.json()) as Record<string, unknown>;
}
const acquire = (isolate: number, policy: string, waitMs = 0) =>
  call(isolate, "POST", "leases", { policy, key: "key", waitMs });
const inLine = (policy: string, count: number) =>
  eventually(async () =>
    expect(await call(0, "GET", `policies/${policy}/keys/key`)).toMatchObject({ queueLength: count }),
  );

test.concurrent("who waits for a slot has it soon after there are more", async () => {
  expect(await acquire(0, "more")).toMatchObject({ success: true });
  // The other isolate waits, and nobody else calls for this key from now on.
  const waiting = acquire(1, "more", 120_000);
  await inLine("more", 1);
  await call(0, "PUT", "policies/more", { ...SLOTS, limit: 2 });
  const answer = await waiting;
  expect(answer).toMatchObject({ success: true, reason: "ok", limit: 2 });
  expect(answer["lease"]).toBeDefined();
});

test.concurrent("who waits for a slot that becomes a rate is denied, and takes nothing", async () => {
  const first = await acquire(0, "changing");
  const waiting = Array.from({ length: 6 }, () => acquire(1, "changing", 120_000));
  await inLine("changing", 6);
  await call(0, "PUT", "policies/changing", RATE);
  const { id } = first["lease"] as { id: string };
  const released = await fetch(`${serving.url}/v1/leases/${id}`, {
    method: "DELETE",
    headers: { authorization: `Bearer ${TOKENS.full}` },
  });
  expect(released.status).toBe(204);
  for (const answer of await Promise.all(waiting)) expect(answer).toMatchObject(NEVER);
  // All that the rate has is there, and no more.
  const ask = () => call(0, "POST", "limit", { policy: "changing", key: "key" });
  const admitted = [await ask(), await ask(), await ask()].map(({ success }) => success);
  expect(admitted).toEqual([true, true, false]);
});
