import { expect, test } from "vitest";
import type { Decided } from "../../../core/protocol/answers.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { acquire, call, freshKey, idIn, limit, release, report, type Called } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";
import { at } from "../../support/virtual-date.ts";

interface Check {
  readonly policy: string;
  readonly key: string;
  readonly cost?: unknown;
}

const limitAll = (checks: readonly Check[], fields: object = {}, query = "") =>
  call(`/v1/limit/all${query}`, { body: { checks, ...fields } });
const successes = ({ body }: Called) =>
  (body["decisions"] as { success: boolean }[]).map(({ success }) => success);
const remaining = async (policy: string, key: string) => (await report(policy, key)).body["remaining"];

/** The lease of a call's first check. */
function leaseIn({ body }: Called) {
  const [{ lease }] = body["decisions"] as [{ lease: { id: string; expiresAfterMs: number } }];
  return lease;
}

test("all pass: all are taken, and every decision is there in order", async () => {
  const [one, other] = [freshKey(), freshKey()];
  const called = await limitAll([
    { policy: "slow", key: one, cost: 2 },
    { policy: "log", key: other, cost: 3 },
    { policy: "several", key: one, cost: { tokens: 9 } },
  ]);
  expect(called.body).toMatchObject({
    success: true,
    decisions: [
      { success: true, policy: "slow", key: one, remaining: 3 },
      { success: true, policy: "log", key: other, remaining: 2 },
      { success: true, policy: "several", key: one },
    ],
  });
  expect(await remaining("slow", one)).toBe(3);
  expect(await remaining("log", other)).toBe(2);
});

test("checks of one key that are together over its limit never pass, and say so", async () => {
  const key = freshKey();
  const { headers, body } = await limitAll([
    { policy: "log", key, cost: 3 },
    { policy: "log", key: freshKey(), cost: 1 },
    { policy: "log", key, cost: 3 },
  ]);
  expect(body).toMatchObject({
    success: false,
    decisions: [
      { success: false, reason: "cost-over-limit", retryAfterMs: null },
      { success: true },
      { success: false, reason: "cost-over-limit", retryAfterMs: null },
    ],
  });
  expect(headers.get("retry-after")).toBe(null);
  expect(await remaining("log", key)).toBe(5);
});

test("one denial: nothing is taken anywhere, nothing is left behind, and it is named", async () => {
  const [one, other] = [freshKey(), freshKey()];
  await limit("log", other, { cost: 4 });
  const called = await limitAll([
    { policy: "slow", key: one, cost: 2 },
    { policy: "log", key: other, cost: 3 },
  ]);
  expect(called.body).toMatchObject({
    success: false,
    decisions: [
      { success: true, remaining: 5 },
      { success: false, remaining: 1, violated: ["log"] },
    ],
  });
  expect((await report("slow", one)).body).toMatchObject({ remaining: 5, holds: 0, outstanding: 0 });
  expect((await report("log", other)).body).toMatchObject({ remaining: 1, holds: 0, outstanding: 0 });
});

test("the same key twice is counted twice", async () => {
  const key = freshKey();
  const check = { policy: "slow", key, cost: 2 };
  expect(successes(await limitAll([check, check]))).toEqual([true, true]);
  expect(await remaining("slow", key)).toBe(1);
  expect(
    (
      await limitAll([
        { ...check, cost: 1 },
        { ...check, cost: 1 },
      ])
    ).body["success"],
  ).toBe(false);
  expect(await remaining("slow", key)).toBe(1);
});

test("a key that several checks name has the figures after all of them, and the wait for all of them", async () => {
  const key = freshKey();
  const checks = [2, 0, 1].map((cost) => ({ policy: "log", key, cost }));
  const { body } = await limitAll([...checks, { policy: "slow", key, cost: 1 }]);
  const after = { success: true, reason: "ok", remaining: 2 };
  expect(body).toMatchObject({
    success: true,
    decisions: [after, after, after, { policy: "slow", remaining: 4 }],
  });
  for (const decision of body["decisions"] as Called["body"][])
    expect(decision["resetAfterMs"]).toBeLessThanOrEqual(30 * 86_400_000);
  expect((await report("log", key)).body).toMatchObject({ remaining: 2, outstanding: 0 });
  const denied = await limitAll([1, 1, 1].map((cost) => ({ policy: "log", key, cost })));
  expect(denied.body).toMatchObject({
    success: false,
    decisions: [1, 2, 3].map(() => ({ success: false, reason: "quota", remaining: 2 })),
  });
  expect(await remaining("log", key)).toBe(2);
});

test("costs by unit of one key are added, and the same call again is charged once", async () => {
  const key = freshKey();
  const checks = [{ tokens: 9 }, { tokens: 1 }].map((cost) => ({ policy: "several", key, cost }));
  const fields = { idempotencyKey: "once" };
  const first = await limitAll(checks, fields);
  const again = await limitAll(checks, fields);
  expect(first.body["success"]).toBe(true);
  expect(again.body).toEqual(first.body);
  const used = (rules: unknown) =>
    (rules as { limit: number; remaining: number }[]).map(({ limit: most, remaining: left }) => most - left);
  expect(used((await report("several", key)).body["rules"])).toEqual([2, 10]);
});

test("each check of one key leases a slot of its own", async () => {
  const key = freshKey();
  const check = { policy: "export", key };
  const { body } = await limitAll([check, check]);
  const leases = (body["decisions"] as { lease: { id: string } }[]).map(({ lease }) => lease.id);
  expect(new Set(leases).size).toBe(2);
  expect((await report("export", key)).body).toMatchObject({ leases: 2, remaining: 0 });
});

test("a slot is leased if all pass, and free again if not", async () => {
  const [key, other] = [freshKey(), freshKey()];
  const checks = [
    { policy: "export", key },
    { policy: "slow", key: other, cost: 3 },
  ];
  const called = await limitAll(checks);
  const [{ lease }] = called.body["decisions"] as [{ lease: { id: string } }];
  expect((await report("export", key)).body).toMatchObject({ leases: 1, holds: 0 });
  const denied = await limitAll(checks);
  expect(successes(denied)).toEqual([true, false]);
  expect(JSON.stringify(denied.body)).not.toContain("lease_");
  expect((await report("export", key)).body).toMatchObject({ leases: 1, holds: 0 });
  expect((await release(lease.id)).status).toBe(204);
  expect((await report("export", key)).body).toMatchObject({ leases: 0, remaining: 2 });
});

test("a slot of an unlimited key is leased too, and none of a blocked one", async () => {
  const key = freshKey();
  const override = (body: object) =>
    call(`/v1/policies/export/overrides/${encodeURIComponent(key)}`, { method: "PUT", body });
  const checks = [
    { policy: "export", key, cost: 2 },
    { policy: "slow", key: freshKey() },
  ];
  await override({ unlimited: true });
  for (const held of [1, 2]) {
    const called = await limitAll(checks);
    expect(called.body).toMatchObject({ success: true, decisions: [{ override: key }, {}] });
    expect(leaseIn(called)).toMatchObject({ id: expect.stringContaining("lease_") });
    expect((await report("export", key)).body).toMatchObject({ leases: held, holds: 0 });
  }
  await override({ blocked: true });
  const blocked = { success: false, decisions: [{ reason: "blocked" }, { success: true }] };
  expect((await limitAll(checks)).body).toMatchObject(blocked);
});

test("a look among the checks takes nothing", async () => {
  const [one, other] = [freshKey(), freshKey()];
  await limitAll([
    { policy: "slow", key: one, cost: 0 },
    { policy: "slow", key: other },
  ]);
  expect([await remaining("slow", one), await remaining("slow", other)]).toEqual([5, 4]);
});

test("the same call again is charged once, also when the object crashed in between", async () => {
  const [one, other] = [freshKey(), freshKey()];
  const checks = [
    { policy: "slow", key: one, cost: 2 },
    { policy: "slow", key: other },
  ];
  const first = await limitAll(checks, { idempotencyKey: "a" });
  expect((await limitAll(checks, { idempotencyKey: "a" })).body).toEqual(first.body);
  await objectOf("slow", one).crash();
  expect((await limitAll(checks, { idempotencyKey: "a" })).body).toEqual(first.body);
  expect([await remaining("slow", one), await remaining("slow", other)]).toEqual([3, 4]);
});

test("the same call again is given the same lease, with how long it still lasts", async () => {
  const [key, other] = [freshKey(), freshKey()];
  const checks = [
    { policy: "export", key },
    { policy: "slow", key: other },
  ];
  at(0);
  const first = leaseIn(await limitAll(checks, { idempotencyKey: "a" }));
  at(4_000);
  const again = leaseIn(await limitAll(checks, { idempotencyKey: "a" }));
  expect(again).toEqual({ ...first, expiresAfterMs: first.expiresAfterMs - 4_000 });
  await call(`/v1/leases/${first.id}/renew`, { body: { ttlMs: 10_000 } });
  expect(leaseIn(await limitAll(checks, { idempotencyKey: "a" })).expiresAfterMs).toBe(10_000);
});

test.each(["expired", "was released"])(
  "the same call again when its lease %s acquires it anew, and charges no other check again",
  async (how) => {
    const [key, other] = [freshKey(), freshKey()];
    const checks = [
      { policy: "export", key, cost: 2 },
      { policy: "log", key: other, cost: 2 },
    ];
    at(0);
    const first = leaseIn(await limitAll(checks, { idempotencyKey: "a" }));
    if (how === "expired") at(first.expiresAfterMs);
    else await release(first.id);
    const taken = idIn(await acquire("export", key, { units: 2 }));
    const denied = await limitAll(checks, { idempotencyKey: "a" });
    expect([denied.body["success"], ...successes(denied)]).toEqual([false, false, true]);
    expect((await report("export", key)).body).toMatchObject({ leases: 1, holds: 0 });
    await release(taken);
    const anew = leaseIn(await limitAll(checks, { idempotencyKey: "a" }));
    expect(anew.id).not.toBe(first.id);
    expect(leaseIn(await limitAll(checks, { idempotencyKey: "a" }))).toEqual(anew);
    expect((await report("export", key)).body).toMatchObject({ leases: 1, holds: 0 });
    expect(await remaining("log", other)).toBe(3);
  },
);

test("a lease's time left is that of the answer, however long the holds of the other checks took", async () => {
  const key = freshKey();
  const { stub } = objectOf("export", key);
  const provisional = { waitMs: 0, request: "a call" };
  at(0);
  const held = await stub.hold({ policy: "export", key, cost: 1, ttlMs: 15_000, provisional });
  const { hold, lease } = JSON.parse(held) as Decided;
  at(400);
  const settled = await stub.settle("export", key, hold?.id ?? "", 1);
  expect(JSON.parse(settled)).toMatchObject({
    lease: { ...lease, expiresAfterMs: (lease?.expiresAfterMs ?? 0) - 400 },
  });
});

test("the same checks in another order are the same call", async () => {
  const key = freshKey();
  const checks = [
    { policy: "slow", key, cost: 2 },
    { policy: "several", key, cost: { tokens: 3, requests: 1 } },
  ];
  const first = await limitAll(checks, { idempotencyKey: "a" });
  const same = [{ policy: "several", key, cost: { requests: 1, tokens: 3 } }, checks[0] as Check];
  const again = await limitAll(same, { idempotencyKey: "a" });
  expect(again.body["decisions"]).toEqual((first.body["decisions"] as unknown[]).toReversed());
  expect(await remaining("slow", key)).toBe(3);
});

test("some of the checks, more of them, or one of them by itself are another call", async () => {
  const key = freshKey();
  const checks = [
    { policy: "slow", key },
    { policy: "log", key },
  ];
  await limitAll(checks, { idempotencyKey: "a" });
  const fewer = await limitAll(checks.slice(0, 1), { idempotencyKey: "a" });
  expect(fewer.status).toBe(409);
  expect(fewer.body["errors"]).toEqual([
    { pointer: "/idempotencyKey", detail: expect.stringContaining("was used for a call on 2 checks: use") },
  ]);
  const more = [...checks, { policy: "slow", key: freshKey() }];
  expect((await limitAll(more, { idempotencyKey: "a" })).status).toBe(409);
  expect((await limit("slow", key, { idempotencyKey: "a" })).status).toBe(409);
  expect([await remaining("slow", key), await remaining("log", key)]).toEqual([4, 4]);
});

test("a check that can never pass holds nothing of the others", async () => {
  const key = freshKey();
  const checks = [
    { policy: "slow", key, cost: 5 },
    { policy: "log", key, cost: 6 },
  ];
  const called = await limitAll(checks);
  expect(called.body).toMatchObject({
    success: false,
    decisions: [
      { success: true, remaining: 5 },
      { success: false, reason: "cost-over-limit", retryAfterMs: null },
    ],
  });
  expect((await objectOf("slow", key).stored()).tables).toEqual({});
});

test("beside a check that can never pass each other one has the answer that a call by itself has", async () => {
  const never = { policy: "slow", key: freshKey(), cost: 6 };
  for (const used of [0, 1, 3, 4, 5]) {
    const key = freshKey();
    await Promise.all([limit("log", key, { cost: used }), limit("slow", key, { cost: used })]);
    const checks = [{ policy: "log", key, cost: 2 }, never, { policy: "slow", key, cost: 2 }];
    const { body } = await limitAll(checks, { idempotencyKey: "a" });
    const wait = used > 3 ? expect.any(Number) : 0;
    const own = {
      success: used <= 3,
      reason: used > 3 ? "quota" : "ok",
      remaining: 5 - used,
      retryAfterMs: wait,
    };
    expect(body).toMatchObject({ success: false, decisions: [own, { reason: "cost-over-limit" }, own] });
    const [log, , slow] = body["decisions"] as { retryAfterMs: number }[];
    const [alone, other] = [await limit("log", key, { cost: 2 }), await limit("slow", key, { cost: 2 })];
    for (const [told, { body: after }] of [
      [log, alone],
      [slow, other],
    ] as const) {
      expect(after["success"]).toBe(own.success);
      expect(Number(after["retryAfterMs"])).toBeLessThanOrEqual(told?.retryAfterMs ?? 0);
    }
  }
});

test("another call under its idempotency key is a conflict, and takes nothing", async () => {
  const [one, other] = [freshKey(), freshKey()];
  await limitAll([{ policy: "slow", key: one, cost: 2 }], { idempotencyKey: "a" });
  const called = await limitAll(
    [
      { policy: "slow", key: one, cost: 3 },
      { policy: "slow", key: other },
    ],
    { idempotencyKey: "a" },
  );
  expect(called.status).toBe(409);
  expect((await report("slow", other)).body).toMatchObject({ remaining: 5, holds: 0 });
});

test("a call that was denied is decided anew under the same idempotency key", async () => {
  const [one, other] = [freshKey(), freshKey()];
  await limit("slow", other, { cost: 5, idempotencyKey: "x" });
  const checks = [
    { policy: "slow", key: one },
    { policy: "slow", key: other },
  ];
  expect((await limitAll(checks, { idempotencyKey: "a" })).body["success"]).toBe(false);
  await call("/v1/refund", { body: { policy: "slow", key: other, units: 5, idempotencyKey: "r" } });
  expect((await limitAll(checks, { idempotencyKey: "a" })).body["success"]).toBe(true);
  expect([await remaining("slow", one), await remaining("slow", other)]).toEqual([4, 4]);
});

test("who wants the same keys in another order neither deadlocks nor loses what is there", async () => {
  // Enough for one call each time: of two that come at once exactly one passes, never both, never none.
  for (let round = 0; round < 25; round += 1) {
    const keys = [freshKey(), freshKey(), freshKey()];
    const checks = keys.map((key) => ({ policy: "slow", key, cost: 3 }));
    const called = await Promise.all([limitAll(checks), limitAll(checks.toReversed())]);
    expect(called.filter(({ body }) => body["success"] === true)).toHaveLength(1);
    for (const key of keys) expect(await remaining("slow", key)).toBe(2);
  }
});

test("many calls over a few keys take exactly what there is", async () => {
  const keys = Array.from({ length: 4 }, () => freshKey());
  const pairs = Array.from(
    { length: 40 },
    (_, index) => [keys[index % 4], keys[(index * 3 + 1) % 4]] as const,
  );
  const called = await Promise.all(
    pairs.map((pair) => limitAll(pair.map((key = "") => ({ policy: "slow", key })))),
  );
  const taken = new Map(keys.map((key) => [key, 0]));
  for (const [index, { body }] of called.entries()) {
    if (body["success"] !== true) continue;
    for (const key of pairs[index] ?? []) taken.set(key ?? "", (taken.get(key ?? "") ?? 0) + 1);
  }
  for (const key of keys) {
    expect(await remaining("slow", key)).toBe(5 - (taken.get(key) ?? 0));
    expect((await report("slow", key)).body).toMatchObject({ holds: 0, outstanding: 0 });
  }
  // Each key has room for five; as long as one has any, calls on it and another with room pass.
  expect([...taken.values()].toSorted((a, b) => a - b)[2]).toBe(5);
});

test("a waiter for a lease is not passed by a call on several keys", async () => {
  const [key, other] = [freshKey(), freshKey()];
  const held = await acquire("export", key);
  const waiting = acquire("export", key, { units: 2, waitMs: 20_000 });
  while ((await report("export", key)).body["queueLength"] !== 1);
  const called = await limitAll([
    { policy: "export", key },
    { policy: "slow", key: other },
  ]);
  expect(successes(called)[0]).toBe(false);
  await release((held.body["lease"] as { id: string }).id);
  expect((await waiting).body["success"]).toBe(true);
});

test("errors name the check and the field", async () => {
  const fine = { policy: "slow", key: "a" };
  const errors = async (checks: unknown) =>
    (await call("/v1/limit/all", { body: { checks } })).body["errors"] as { pointer: string }[];
  const pointers = async (checks: unknown) => (await errors(checks)).map(({ pointer }) => pointer);
  expect(await pointers([fine, { policy: "nowhere", key: "a" }])).toEqual(["/checks/1/policy"]);
  expect(await pointers([fine, { policy: "slow", key: "" }])).toEqual(["/checks/1/key"]);
  expect(await pointers([{ policy: "address", key: "x" }])).toEqual(["/checks/0/key"]);
  expect(await pointers([fine, { ...fine, cost: { words: 1 } }])).toEqual(["/checks/1/cost/words"]);
  expect(await pointers([])).toEqual(["/checks"]);
  expect(await pointers(Array.from({ length: 17 }, () => fine))).toEqual(["/checks"]);
  expect((await errors("x"))[0]).toEqual({
    pointer: "/checks",
    detail:
      'checks is "x": must be a list of 1 to 16 checks { policy, key, cost }, with atomic false of up to 100',
  });
});

test("a token has to be allowed every key", async () => {
  const checks = [
    { policy: "api", key: "tenant-a:1" },
    { policy: "api", key: "tenant-b:1" },
  ];
  const called = await call("/v1/limit/all", { body: { checks }, token: TOKENS.tenant });
  expect(called.status).toBe(403);
});

test("with ?deny=429 a denial has that status, names who denied, and has all decisions", async () => {
  const key = freshKey();
  await limit("slow", key, { cost: 5 });
  const called = await limitAll([{ policy: "slow", key }], {}, "?deny=429");
  expect(Number(called.headers.get("retry-after"))).toBeGreaterThan(500_000);
  expect(called).toMatchObject({
    status: 429,
    body: { "violated-policies": ["slow"], decisions: [{ success: false }] },
  });
});
