/** Adaptive concurrency over HTTP and over the service binding. */
import { exports } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { eventually } from "../../support/eventually.ts";
import { acquire, call, freshKey, idIn, release, report } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";
import { at } from "../../support/virtual-date.ts";

const releaseAs = (id: string, body?: unknown) =>
  call(`/v1/leases/${id}/release`, body === undefined ? { method: "POST" } : { body });

/** The ids of so many leases of a key. */
async function take(key: string, count: number): Promise<string[]> {
  const ids: string[] = [];
  for (let taken = 0; taken < count; taken += 1) ids.push(idIn(await acquire("adaptive", key)));
  return ids;
}

const limitOf = async (key: string) => (await report("adaptive", key)).body["limit"];

test("a drop lowers the limit and takes no lease away; a decision says today's limit", async () => {
  const key = freshKey();
  const [first = "", second = "", third = ""] = await take(key, 4);
  expect((await acquire("adaptive", key)).body).toMatchObject({ success: false, limit: 4, remaining: 0 });
  expect((await releaseAs(first, { outcome: "dropped" })).status).toBe(204);
  expect((await acquire("adaptive", key)).body).toMatchObject({ success: false, limit: 3, remaining: 0 });
  expect((await report("adaptive", key)).body).toMatchObject({ leases: 3, limit: 3 });
  expect((await releaseAs(second, { outcome: "ok", durationMs: 12.5 })).status).toBe(204);
  expect((await acquire("adaptive", key)).body).toMatchObject({ success: true, limit: 4, remaining: 1 });
  expect((await releaseAs(second, { outcome: "ok" })).status).toBe(404);
  expect((await releaseAs(third, { outcome: "ignore" })).status).toBe(204);
  expect(await limitOf(key)).toBe(4);
});

test("DELETE, and a release without a report, mean ok", async () => {
  const key = freshKey();
  const [first = "", second = ""] = await take(key, 4);
  expect((await release(first)).status).toBe(204);
  expect(await limitOf(key)).toBe(5);
  expect((await releaseAs(second)).status).toBe(204);
  expect(await limitOf(key)).toBe(6);
});

test("without durationMs the time since the grant counts, and what the caller says counts before it", async () => {
  const key = freshKey();
  at(0);
  const [slow = "", quick = ""] = await take(key, 4);
  at(5_001);
  await release(slow);
  expect(await limitOf(key)).toBe(3);
  await releaseAs(quick, { durationMs: 20 });
  expect(await limitOf(key)).toBe(4);
});

test("a limit that rises serves two waiters with one release", async () => {
  const key = freshKey();
  const [first = ""] = await take(key, 4);
  const waiting: ReturnType<typeof acquire>[] = [];
  // One after the other: calls that are made at once may come in any order.
  for (const place of [1, 2, 3]) {
    waiting.push(acquire("adaptive", key, { waitMs: 20_000 }));
    await eventually(async () => expect((await report("adaptive", key)).body["queueLength"]).toBe(place));
  }
  await releaseAs(first, { durationMs: 10 });
  const [one, two] = await Promise.all(waiting.slice(0, 2));
  expect([one?.body["success"], two?.body["success"]]).toEqual([true, true]);
  expect((await report("adaptive", key)).body).toMatchObject({ queueLength: 1, leases: 5, limit: 5 });
  await release(idIn(await acquire("adaptive", freshKey())));
  if (one !== undefined) await release(idIn(one));
  expect((await waiting[2])?.body["success"]).toBe(true);
});

test("a caller that leaves the queue or loses its lease teaches nothing; what was learned outlasts an eviction", async () => {
  const key = freshKey();
  at(0);
  const [first = ""] = await take(key, 1);
  await releaseAs(first, { outcome: "dropped" });
  await acquire("adaptive", key, { ttlMs: 1_000 });
  at(1_000);
  expect((await report("adaptive", key)).body).toMatchObject({ limit: 3, leases: 0, reclaimed: 1 });
  await objectOf("adaptive", key).evict();
  expect(await limitOf(key)).toBe(3);
  at(599_999);
  await objectOf("adaptive", key).runAlarm();
  expect(await limitOf(key)).toBe(3);
  at(600_000);
  expect(await limitOf(key)).toBe(4);
  at(620_000);
  await objectOf("adaptive", key).runAlarm();
  expect((await objectOf("adaptive", key).stored()).tables).toEqual({});
});

test("a reset makes the limit what it is at first", async () => {
  const key = freshKey();
  const [first = ""] = await take(key, 1);
  await releaseAs(first, { outcome: "dropped" });
  expect(await limitOf(key)).toBe(3);
  await call(`/v1/policies/adaptive/keys/${key}`, { method: "DELETE" });
  expect(await limitOf(key)).toBe(4);
});

test("a report under a plain concurrency policy is accepted and ignored", async () => {
  const key = freshKey();
  const id = idIn(await acquire("export", key));
  expect((await releaseAs(id, { outcome: "dropped", durationMs: 3 })).status).toBe(204);
  expect((await report("export", key)).body).toMatchObject({ leases: 0, limit: 2 });
});

test("a bad report names the field, the value and what is allowed", async () => {
  const id = idIn(await acquire("adaptive", freshKey()));
  const bad = await releaseAs(id, { outcome: "bad", durationMs: -1, cost: 1 });
  expect(bad.status).toBe(422);
  expect(bad.body["errors"]).toEqual([
    { pointer: "/outcome", detail: 'outcome is "bad": must be one of "ok", "ignore", "dropped"' },
    { pointer: "/durationMs", detail: "durationMs is -1: must be a number from 0 to 2147483647" },
    { pointer: "/cost", detail: "cost is not a field: there are outcome, durationMs" },
  ]);
  expect((await call(`/v1/leases/${id}/release`)).headers.get("allow")).toBe("POST");
  expect((await releaseAs(id, { id })).status).toBe(422);
  expect((await release(id)).status).toBe(204);
});

/** The entrypoint as a service binding would have it: over RPC. */
const limiter = (exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> }).Limiter({});

test("over the binding: release with a report, and a grant that reports", async () => {
  const key = freshKey();
  const asked = { policy: "adaptive", key };
  await take(key, 2);
  const detached = await limiter.acquire({ ...asked, detached: true });
  const grant = await limiter.acquire(asked);
  await limiter.release({ id: detached.lease?.id ?? "", outcome: "dropped", durationMs: 3 });
  expect(await limitOf(key)).toBe(3);
  const thrown: unknown = await grant.release?.({ outcome: "no" as "ok" }).catch((error: unknown) => error);
  expect(thrown).toMatchObject({ name: "LimiterError", status: 422, errors: [{ pointer: "/outcome" }] });
  await grant.release?.({ outcome: "ok", durationMs: 9 });
  expect(await limitOf(key)).toBe(4);
  const last = await limiter.acquire(asked);
  last[Symbol.dispose]();
  await eventually(async () => expect((await report("adaptive", key)).body["leases"]).toBe(2));
  expect(await limitOf(key)).toBe(5);
});
