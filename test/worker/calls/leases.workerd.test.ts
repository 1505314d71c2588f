import { expect, test } from "vitest";
import { TOKENS } from "../../support/fixtures.ts";
import { acquire, call, freshKey, idIn, release, report } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";
import { at } from "../../support/virtual-date.ts";

test("a lease has an id, a token and a life, and the answer says how long it waited", async () => {
  const { status, body, headers } = await acquire("export", freshKey(), { ttlMs: 5_000 });
  expect(status).toBe(200);
  expect(body).toMatchObject({ success: true, limit: 2, remaining: 1, reason: "ok", waitedMs: 0 });
  expect(body["lease"]).toEqual({
    id: expect.stringMatching(/^lease_[\w-]+\.[\w-]{22}$/),
    fencingToken: expect.any(Number),
    expiresAfterMs: 5_000,
  });
  expect(headers.get("ratelimit-policy")).toBe('"export";q=2;qu="concurrent-requests"');
  expect(headers.get("ratelimit")).toBe('"export";r=1;t=5');
});

test("never more than the limit is held, and a release makes room for one", async () => {
  const key = freshKey();
  const [first] = [await acquire("export", key), await acquire("export", key)];
  expect((await acquire("export", key)).body).toMatchObject({
    success: false,
    reason: "quota",
    remaining: 0,
  });
  expect((await release(idIn(first))).status).toBe(204);
  expect((await acquire("export", key)).body["success"]).toBe(true);
  expect((await acquire("export", key)).body["success"]).toBe(false);
});

test("the promised wait is until enough leases have expired", async () => {
  const key = freshKey();
  at(0);
  await acquire("export", key, { ttlMs: 3_000 });
  await acquire("export", key, { ttlMs: 9_000 });
  expect((await acquire("export", key)).body["retryAfterMs"]).toBe(3_000);
  expect((await acquire("export", key, { units: 2 })).body["retryAfterMs"]).toBe(9_000);
  at(2_999);
  expect((await acquire("export", key)).body["success"]).toBe(false);
  at(3_000);
  expect((await acquire("export", key)).body["success"]).toBe(true);
});

test("more than the limit is never granted, and says so", async () => {
  const { body } = await acquire("export", freshKey(), { units: 3, waitMs: 10_000 });
  expect(body).toMatchObject({ success: false, reason: "cost-over-limit", retryAfterMs: null, waitedMs: 0 });
});

test("a renewal before the end extends, after it fails, and frees nobody else's slot", async () => {
  const key = freshKey();
  at(0);
  const id = idIn(await acquire("export", key, { ttlMs: 1_000 }));
  at(900);
  const renewed = await call(`/v1/leases/${id}/renew`, { body: { ttlMs: 2_000 } });
  expect(renewed).toMatchObject({ status: 200, body: { id, expiresAfterMs: 2_000 } });
  at(2_899);
  // As long as it was asked for at first.
  expect((await call(`/v1/leases/${id}/renew`, { body: {} })).body["expiresAfterMs"]).toBe(1_000);
  expect((await call(`/v1/leases/${id}/renew`, { method: "POST" })).body["expiresAfterMs"]).toBe(1_000);
  at(3_899);
  await acquire("export", key);
  expect((await call(`/v1/leases/${id}/renew`, { body: {} })).status).toBe(404);
  expect((await release(id)).status).toBe(404);
  expect((await report("export", key)).body).toMatchObject({ leases: 1, reclaimed: 1, outstanding: 1 });
});

test("a release a second time is a 404", async () => {
  const key = freshKey();
  const [id] = [idIn(await acquire("export", key)), await acquire("export", key)];
  expect((await release(id)).status).toBe(204);
  const again = await release(id);
  expect(again).toMatchObject({ status: 404, body: { type: "urn:weir:problem:lease-not-found" } });
  expect((await report("export", key)).body["leases"]).toBe(1);
});

test("a forged id, one of another key, and a hold's are no leases", async () => {
  const [key, other] = [freshKey(), freshKey()];
  const id = idIn(await acquire("export", key));
  const foreign = idIn(await acquire("export", other));
  const [place] = id.split(".");
  const forged = [
    `${place}.${"A".repeat(22)}`,
    `${foreign.split(".")[0]}.${id.split(".")[1]}`,
    id.replace("lease_", "hold_"),
    id.slice(0, -1),
    "lease_",
    "x",
    `lease_${btoa("nowhere/a")}.${"A".repeat(22)}`,
    `lease_____.${"A".repeat(22)}`,
  ];
  for (const each of forged) {
    expect((await release(each)).status).toBe(404);
    expect((await call(`/v1/leases/${each}/renew`, { body: {} })).status).toBe(404);
  }
  for (const each of [key, other]) expect((await report("export", each)).body["leases"]).toBe(1);
});

test("a token that may not use the key knows nothing of its leases", async () => {
  const id = idIn(await acquire("export", freshKey()));
  const called = await call(`/v1/leases/${id}`, { method: "DELETE", token: TOKENS.tenant });
  expect(called.status).toBe(404);
  expect((await release(id)).status).toBe(204);
});

test("fencing tokens rise with every grant of a key, also over crashes and resets", async () => {
  const key = freshKey();
  const object = objectOf("export", key);
  const tokens: number[] = [];
  const grant = async () => {
    const called = await acquire("export", key);
    tokens.push((called.body["lease"] as { fencingToken: number }).fencingToken);
    await release(idIn(called));
  };
  at(1_000);
  await grant();
  await grant();
  await object.crash();
  await grant();
  // The clock of the host that takes over may be behind.
  at(500);
  await object.crash();
  await grant();
  at(2_000);
  await object.reset();
  await grant();
  expect(tokens).toEqual([...new Set(tokens)].toSorted((a, b) => a - b));
});

test("an acknowledged lease survives a crash, and the limit holds across it", async () => {
  const key = freshKey();
  const ids = [idIn(await acquire("export", key)), idIn(await acquire("export", key))];
  await objectOf("export", key).crash();
  expect((await acquire("export", key)).body["success"]).toBe(false);
  expect((await call(`/v1/leases/${ids[0]}/renew`, { body: {} })).status).toBe(200);
  for (const id of ids) expect((await release(id)).status).toBe(204);
});

test("the same call again is given the same lease, with how long it still lasts", async () => {
  const key = freshKey();
  at(0);
  const first = await acquire("export", key, { idempotencyKey: "a", ttlMs: 9_000 });
  at(4_000);
  const again = await acquire("export", key, { idempotencyKey: "a", ttlMs: 9_000 });
  const lease = first.body["lease"] as object;
  expect(again.body).toEqual({ ...first.body, lease: { ...lease, expiresAfterMs: 5_000 } });
  expect((await report("export", key)).body["leases"]).toBe(1);
  expect((await acquire("export", key, { idempotencyKey: "a", units: 2, ttlMs: 9_000 })).status).toBe(409);
  expect((await acquire("export", key, { idempotencyKey: "a", ttlMs: 7 })).status).toBe(409);
});

test.each(["expired", "was released"])(
  "the same call again when its lease %s is never told that it has it",
  async (how) => {
    const key = freshKey();
    at(0);
    const fields = { units: 2, idempotencyKey: "a", ttlMs: 1_000 };
    const first = await acquire("export", key, fields);
    if (how === "expired") at(1_000);
    else await release(idIn(first));
    const other = await acquire("export", key, { units: 2 });
    expect((await acquire("export", key, fields)).body).toMatchObject({ success: false, reason: "quota" });
    await release(idIn(other));
    const anew = await acquire("export", key, fields);
    expect(idIn(anew)).not.toBe(idIn(first));
  },
);

test("the same call again while the first waits is given the same lease", async () => {
  const key = freshKey();
  const held = await acquire("export", key, { units: 2 });
  const fields = { idempotencyKey: "a", waitMs: 20_000 };
  const waiting = [acquire("export", key, fields), acquire("export", key, fields)];
  await queue(key, 2);
  await release(idIn(held));
  const [first, second] = await Promise.all(waiting);
  expect(first?.body["lease"]).toEqual(second?.body["lease"]);
  expect((await report("export", key)).body["leases"]).toBe(1);
});

/** Resolves when so many wait. */
async function queue(key: string, length: number): Promise<void> {
  while ((await report("export", key)).body["queueLength"] !== length) {
    // Asking takes long enough.
  }
}

test("waiters are served in their order; a smaller request does not pass", async () => {
  const key = freshKey();
  const [first, second] = [await acquire("export", key), await acquire("export", key)];
  const order: string[] = [];
  const wait = async (name: string, fields: object) => {
    const called = await acquire("export", key, { waitMs: 20_000, ...fields });
    order.push(name);
    return called;
  };
  const both = wait("both", { units: 2 });
  await queue(key, 1);
  const one = wait("one", {});
  await queue(key, 2);
  await release(idIn(first));
  // One unit is free, and still nobody passes who waits for two.
  expect((await acquire("export", key)).body).toMatchObject({
    success: false,
    reason: "quota",
    remaining: 0,
  });
  expect((await report("export", key)).body).toMatchObject({ leases: 1, queueLength: 2, remaining: 0 });
  await release(idIn(second));
  const granted = await both;
  expect(granted.body["waitedMs"]).toBeGreaterThan(0);
  await release(idIn(granted));
  await one;
  expect(order).toEqual(["both", "one"]);
});

test.each([true, false])(
  "who has waited is told the override under which it was served, begun meanwhile: %s",
  async (begins) => {
    const key = freshKey();
    const path = `/v1/policies/export/overrides/${encodeURIComponent(key)}`;
    const override = () => call(path, { method: "PUT", body: { limit: 4 } });
    if (!begins) await override();
    const held = [];
    for (let each = 0; each < (begins ? 2 : 4); each += 1) held.push(idIn(await acquire("export", key)));
    const waiting = acquire("export", key, { waitMs: 20_000 });
    await queue(key, 1);
    if (begins) await override();
    else await call(path, { method: "DELETE" });
    await acquire("export", key);
    if (!begins) for (const id of held.slice(1)) await release(id);
    const { body, headers } = await waiting;
    expect(body).toMatchObject({ success: true, limit: begins ? 4 : 2 });
    expect(body["override"]).toBe(begins ? key : undefined);
    expect(headers.get("ratelimit-policy")).toContain(`q=${begins ? 4 : 2}`);
  },
);

test("who waits in vain is told so, and leaves no trace", async () => {
  const key = freshKey();
  await acquire("export", key, { units: 2 });
  const called = await acquire("export", key, { waitMs: 30 });
  expect(called.body).toMatchObject({ success: false, reason: "wait-timeout", violated: ["export"] });
  expect(called.body).not.toHaveProperty("lease");
  expect(called.body["waitedMs"]).toBeGreaterThanOrEqual(30);
  expect((await report("export", key)).body).toMatchObject({ queueLength: 0, leases: 1 });
});

test("the next in the queue gets a slot when a lease expires, without anybody calling", async () => {
  const key = freshKey();
  await acquire("export", key, { units: 2, ttlMs: 100 });
  const waited = await acquire("export", key, { waitMs: 20_000 });
  expect(waited.body).toMatchObject({ success: true });
  expect((await report("export", key)).body["reclaimed"]).toBe(1);
});

test("at most maxWaiters wait, and the wait promised to the next counts them all", async () => {
  const key = freshKey();
  const held = await acquire("export", key, { units: 2, ttlMs: 10_000 });
  const waiting = [1, 2, 3].map(() => acquire("export", key, { units: 2, waitMs: 20_000, ttlMs: 60_000 }));
  await queue(key, 3);
  const full = await acquire("export", key, { waitMs: 1 });
  expect(full.body).toMatchObject({ success: false, reason: "queue-full", waitedMs: 0 });
  // The first gets its 60 s in 10 s at most; the others have left by then.
  expect(full.body["retryAfterMs"]).toBeGreaterThan(60_000);
  expect(full.body["retryAfterMs"]).toBeLessThanOrEqual(70_000);
  await release(idIn(held));
  for (let served = 0; served < 3; served += 1) {
    const next = await Promise.race(waiting);
    void waiting.splice(await indexOfSettled(waiting), 1);
    await release(idIn(next));
  }
});

async function indexOfSettled(promises: readonly Promise<unknown>[]): Promise<number> {
  return Promise.race(promises.map((promise, index) => promise.then(() => index)));
}

test("what is asked beyond the policy's terms is refused by name", async () => {
  const refused = async (fields: object) =>
    (await acquire("export", freshKey(), { ...fields })).body["errors"];
  expect(await refused({ ttlMs: 600_001 })).toEqual([
    {
      pointer: "/ttlMs",
      detail: "ttlMs is 600001: must be an integer from 1 to 600000, the policy's maxTtl",
    },
  ]);
  expect(await refused({ waitMs: 20_001 })).toEqual([
    {
      pointer: "/waitMs",
      detail: "waitMs is 20001: must be an integer from 0 to 20000, the policy's maxWait",
    },
  ]);
  expect(await refused({ units: 0 })).toEqual([
    { pointer: "/units", detail: expect.stringContaining("units is 0") },
  ]);
  const id = idIn(await acquire("export", freshKey()));
  expect((await call(`/v1/leases/${id}/renew`, { body: { ttlMs: 600_001 } })).status).toBe(422);
});

test("a policy without concurrency has no leases, and one with it is not limited, only acquired from", async () => {
  const key = freshKey();
  expect((await acquire("slow", key)).body["errors"]).toEqual([
    { pointer: "/policy", detail: expect.stringContaining("must be a policy with a concurrency rule") },
  ]);
  const limited = await call("/v1/limit", { body: { policy: "export", key } });
  expect(limited.body["errors"]).toEqual([
    { pointer: "/policy", detail: expect.stringContaining("POST /v1/leases") },
  ]);
  const look = await call("/v1/limit", { body: { policy: "export", key, cost: 0 } });
  expect(look.body).toMatchObject({ success: true, remaining: 2 });
});

test("a reset gives all slots back, and its old leases are no more", async () => {
  const key = freshKey();
  const id = idIn(await acquire("export", key, { units: 2 }));
  const waiting = acquire("export", key, { waitMs: 20_000 });
  await queue(key, 1);
  expect((await call(`/v1/policies/export/keys/${key}`, { method: "DELETE" })).status).toBe(204);
  expect((await waiting).body["success"]).toBe(true);
  expect((await release(id)).status).toBe(404);
});

test("in shadow nobody is denied and nobody waits", async () => {
  const key = freshKey();
  await acquire("shadow-export", key);
  const { body } = await acquire("shadow-export", key, { waitMs: 5_000 });
  expect(body).toMatchObject({ success: true, reason: "shadow", waitedMs: 0, violated: ["shadow-export"] });
  expect(body).not.toHaveProperty("lease");
});

test("waiting until a key has no leases ends with the last of them, or with the time", async () => {
  const key = freshKey();
  const path = `/v1/policies/export/keys/${key}?waitFor=idle`;
  expect((await call(`${path}&waitMs=20000`)).body).toMatchObject({ leases: 0 });
  const ids = [idIn(await acquire("export", key)), idIn(await acquire("export", key))];
  expect((await call(`${path}&waitMs=30`)).body).toMatchObject({ leases: 2 });
  const idle = call(`${path}&waitMs=20000`);
  for (const id of ids) await release(id);
  expect((await idle).body).toMatchObject({ leases: 0, remaining: 2 });
  await acquire("export", key, { ttlMs: 50 });
  expect((await call(`${path}&waitMs=20000`)).body).toMatchObject({ leases: 0, reclaimed: 1 });
});

test.each([
  "waitFor=never&waitMs=1",
  "waitMs=5",
  "waitFor=idle&waitMs=x",
  "waitFor=idle&waitMs=20001",
  "waitFor=idle&waitFor=idle",
  "__proto__=1",
  "wait=1",
])("waiting with %s is refused", async (query) => {
  expect((await call(`/v1/policies/export/keys/a?${query}`)).status).toBe(422);
});
