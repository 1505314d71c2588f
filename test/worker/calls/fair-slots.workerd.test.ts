/** Groups that share a key's slots, as callers see them. The laws are in test/core/algorithms/fair-slots.test.ts. */
import { abortAllDurableObjects, SELF } from "cloudflare:test";
import { expect, test } from "vitest";
import { createLimiter } from "../../../package/client.ts";
import { eventually } from "../../support/eventually.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, report } from "../../support/limiter.ts";

const POLICY = "fair-slots";
const acquire = (key: string, group: string, fields = {}) =>
  call("/v1/leases", { body: { policy: POLICY, key, group, ...fields } });
const idIn = ({ body }: { body: Record<string, unknown> }) => (body["lease"] as { id: string }).id;
const release = (id: string) => call(`/v1/leases/${id}`, { method: "DELETE" });

/** A flood has all slots. */
async function flooded(key: string): Promise<string[]> {
  const granted = [];
  for (let lease = 0; lease < 4; lease += 1) granted.push(await acquire(key, "flood"));
  return granted.map(idIn);
}

test("decisions say the group and its part, and a denial how long to wait", async () => {
  const key = freshKey();
  expect((await acquire(key, "a")).body).toMatchObject({
    success: true,
    group: "a",
    share: { limit: 4, remaining: 3 },
  });
  expect((await acquire(key, "gold:b", { units: 3 })).body).toMatchObject({
    success: true,
    remaining: 0,
    share: { limit: 3, remaining: 0 },
  });
  const denied = (await acquire(key, "a")).body;
  expect(denied).toMatchObject({ success: false, reason: "quota", share: { limit: 1, remaining: 0 } });
  expect(denied["sureAfterMs"]).toBeGreaterThanOrEqual(denied["retryAfterMs"] as number);
  expect((await acquire(key, "a", { units: 2 })).body).toMatchObject({ success: false, sureAfterMs: null });
});

test("the next slot is that of the group that was denied, at any isolate's calls and after a restart", async () => {
  const key = freshKey();
  const ids = await flooded(key);
  expect((await acquire(key, "small")).body).toMatchObject({ success: false });
  await release(ids.pop() as string);
  expect((await acquire(key, "flood")).body).toMatchObject({ success: false });
  expect((await acquire(key, "small")).body).toMatchObject({ success: true });
  await abortAllDurableObjects();
  // Leases and their groups are stored.
  const share = async (group: string) => (await acquire(key, group, { units: 4 })).body["share"];
  expect(await share("flood")).toEqual({ limit: 2, remaining: 0 });
  expect(await share("small")).toEqual({ limit: 2, remaining: 1 });
  // A peek has them too, those that hold most first.
  const flood = { group: "flood", limit: 2, remaining: 0 };
  const busiest = [flood, { group: "small", limit: 2, remaining: 1 }];
  expect((await report(POLICY, key)).body).toMatchObject({ groups: { active: 2, busiest } });
  expect((await call(`/v1/leases/${ids[0] ?? ""}/renew`, { body: {} })).status).toBe(200);
  for (const id of ids) expect((await release(id)).status).toBe(204);
  expect(await share("flood")).toEqual({ limit: 2, remaining: 2 });
});

test("a waiting group within its part is served before a flood that waits longer", async () => {
  const key = freshKey();
  const ids = await flooded(key);
  const waiting = acquire(key, "flood", { waitMs: 15_000 });
  await eventually(async () => expect((await report(POLICY, key)).body["queueLength"]).toBe(1));
  const small = acquire(key, "small", { waitMs: 15_000 });
  await eventually(async () => expect((await report(POLICY, key)).body["queueLength"]).toBe(2));
  await release(ids[0] ?? "");
  expect((await small).body).toMatchObject({ success: true, group: "small" });
  expect((await report(POLICY, key)).body["queueLength"]).toBe(1);
  await release(ids[1] ?? "");
  expect((await waiting).body).toMatchObject({ success: true, group: "flood" });
});

test("an idempotency key is for one group", async () => {
  const key = freshKey();
  const once = { idempotencyKey: "once" };
  const first = await acquire(key, "a", once);
  expect(idIn(await acquire(key, "a", once))).toBe(idIn(first));
  expect((await acquire(key, "b", once)).status).toBe(409);
  expect((await report(POLICY, key)).body["leases"]).toBe(1);
});

test("a socket and a client name groups, and may not leave them out", async () => {
  const key = freshKey();
  const address = (group: string) =>
    `https://weir.test/v1/leases/socket?policy=${POLICY}&key=${encodeURIComponent(key)}${group}`;
  const headers = { authorization: `Bearer ${TOKENS.limit}`, upgrade: "websocket" };
  const response = await SELF.fetch(address("&group=a"), { headers });
  const socket = response.webSocket;
  if (socket === null) throw new Error(`no socket: ${await response.text()}`);
  const first = new Promise<string>((resolve) =>
    socket.addEventListener("message", ({ data }) => resolve(String(data))),
  );
  socket.accept();
  expect(JSON.parse(await first)).toMatchObject({ success: true, group: "a" });
  expect((await SELF.fetch(address(""), { headers })).status).toBe(422);
  const limiter = createLimiter({
    url: "https://weir.test",
    token: TOKENS.reserve,
    policy: POLICY,
    fetch: (input, init) => SELF.fetch(input, init),
  });
  const grant = await limiter.acquire({ key, group: "b" });
  expect(grant).toMatchObject({
    success: true,
    group: "b",
    source: "object",
    share: { limit: 2, remaining: 1 },
  });
  await limiter.release({ id: grant.lease?.id ?? "" });
  await expect(limiter.acquire({ key })).rejects.toThrow("group is missing");
  socket.close();
  await eventually(async () => expect((await report(POLICY, key)).body["leases"]).toBe(0));
  await limiter.close();
});
