/** Mistakes that limiters have made, a test each, named after the claim that Weir makes instead. */
import { runInDurableObject } from "cloudflare:test";
import { describe, expect, test } from "vitest";
import type { LimiterObject } from "../../durable-objects/limiter-object.ts";
import { acquire, call, freshKey, idIn, limit, release, report, type Called } from "../support/limiter.ts";
import { objectOf } from "../support/objects.ts";
import { at, START_MS } from "../support/virtual-date.ts";

const hold = (policy: string, key: string, units: unknown, fields: object = {}) =>
  call("/v1/holds", { body: { policy, key, units, ...fields } });
const refund = (policy: string, key: string, units: number, idempotencyKey: string) =>
  call("/v1/refund", { body: { policy, key, units, idempotencyKey } });
const figuresOf = ({ body }: Called) =>
  (body["rules"] as { name: string; remaining: number; resetAfterMs: number }[]).map(
    ({ name, remaining, resetAfterMs }) => ({ name, remaining, resetAfterMs }),
  );

/** Ways to be refused: what to do first, and the call that is then denied. */
const DENIED: readonly [
  name: string,
  policy: string,
  first: (key: string) => Promise<unknown>,
  denied: (key: string) => Promise<Called>,
][] = [
  [
    "token bucket",
    "slow",
    (key) => limit("slow", key, { cost: 3 }),
    (key) => limit("slow", key, { cost: 3 }),
  ],
  ["sliding log", "log", (key) => limit("log", key, { cost: 3 }), (key) => limit("log", key, { cost: 3 })],
  ["concurrency", "export", (key) => acquire("export", key), (key) => acquire("export", key, { units: 2 })],
  ["hold", "slow", (key) => hold("slow", key, 3), (key) => hold("slow", key, 3)],
  [
    "a second rule",
    "several",
    (key) => limit("several", key, { cost: { tokens: 99 } }),
    (key) => limit("several", key, { cost: { tokens: 2 } }),
  ],
  [
    "a first rule",
    "several",
    (key) => limit("several", key, { cost: { requests: 4, tokens: 1 } }),
    (key) => limit("several", key, { cost: { requests: 2, tokens: 1 } }),
  ],
  [
    "a rate beside slots",
    "mixed",
    (key) => acquire("mixed", key),
    (key) => acquire("mixed", key, { units: { requests: 3 } }),
  ],
  [
    "slots beside a rate",
    "mixed",
    (key) => acquire("mixed", key),
    (key) => acquire("mixed", key, { units: { "concurrent-requests": 2 } }),
  ],
];

describe("1. a rejected request consumes nothing", () => {
  test.each(DENIED)("%s", async (_, policy, first, denied) => {
    const key = freshKey();
    at(0);
    await first(key);
    const [before, stored] = [figuresOf(await report(policy, key)), await objectOf(policy, key).stored()];
    expect((await denied(key)).body["success"]).toBe(false);
    expect(figuresOf(await report(policy, key))).toEqual(before);
    expect(await objectOf(policy, key).stored()).toEqual(stored);
  });

  test("any member of a call on several keys", async () => {
    const keys = [freshKey(), freshKey(), freshKey()];
    await limit("slow", keys[1] ?? "", { cost: 5 });
    const checks = keys.map((key) => ({ policy: "slow", key }));
    expect((await call("/v1/limit/all", { body: { checks } })).body["success"]).toBe(false);
    const left = await Promise.all(keys.map(async (key) => (await report("slow", key)).body["remaining"]));
    expect(left).toEqual([5, 0, 5]);
  });
});

test("2. a cost above the capacity is told never, and touches nothing, also where denials count", async () => {
  const key = freshKey();
  for (const policy of ["slow", "log", "hammered"]) {
    expect((await limit(policy, key, { cost: 6 })).body).toMatchObject({
      success: false,
      reason: "cost-over-limit",
      retryAfterMs: null,
    });
    expect((await objectOf(policy, key).stored()).tables).toEqual({});
    expect((await limit(policy, key)).body["success"]).toBe(true);
  }
});

test("3. a limit of 1 admits one, and a million a second as many as there are", async () => {
  expect((await limit("constructor", freshKey())).body).toMatchObject({ success: true, remaining: 0 });
  const key = freshKey();
  at(0);
  expect((await limit("fast", key, { cost: 999_999 })).body["remaining"]).toBe(1);
  expect((await limit("fast", key, { cost: 2 })).body).toMatchObject({ success: false, retryAfterMs: 1 });
  at(1);
  expect((await limit("fast", key, { cost: 1_001 })).body["remaining"]).toBe(0);
});

test("4. milliseconds are milliseconds and seconds are seconds, and nothing is kept without an end", async () => {
  const key = freshKey();
  at(0);
  await acquire("export", key, { ttlMs: 1_500 });
  const { body, headers } = await acquire("export", key, { units: 2 });
  expect(body["retryAfterMs"]).toBe(1_500);
  expect([headers.get("retry-after"), headers.get("ratelimit")]).toEqual(["2", '"export";r=1;t=2']);
  const ways: Record<string, (of: string) => Promise<unknown>> = {
    limit: (of) => limit("brief", of),
    hold: (of) => hold("brief", of, 1),
    settle: async (of) => call(`/v1/holds/${idIn(await hold("brief", of, 1))}/settle`, { body: { used: 1 } }),
    refund: (of) => refund("brief", of, 1, "a"),
    all: (of) => call("/v1/limit/all", { body: { checks: [{ policy: "brief", key: of }] } }),
  };
  for (const [name, way] of Object.entries(ways)) {
    const other = freshKey(name);
    await way(other);
    expect({ name, alarm: (await objectOf("brief", other).stored()).alarmAtMs }).toEqual({
      name,
      alarm: expect.any(Number),
    });
  }
  expect((await objectOf("export", key).stored()).alarmAtMs).toEqual(expect.any(Number));
});

describe("5. a refund mints nothing", () => {
  test.each(["slow", "log"])("%s: above the capacity it is cut", async (policy) => {
    const key = freshKey();
    await limit(policy, key, { cost: 2 });
    expect((await refund(policy, key, 1_000, "a")).body["remaining"]).toBe(5);
    expect((await limit(policy, key, { cost: 6 })).body["success"]).toBe(false);
    expect((await limit(policy, key, { cost: 5 })).body["success"]).toBe(true);
  });

  test("what has been refilled meanwhile does not come back twice", async () => {
    const key = freshKey();
    at(0);
    await limit("brief", key, { cost: 1_000 });
    at(600);
    expect((await refund("brief", key, 500, "a")).body["remaining"]).toBe(1_000);
  });

  test("a refund of an expired hold is nothing but what it was charged", async () => {
    const key = freshKey();
    at(0);
    const id = idIn(await hold("slow", key, 3, { ttlMs: 1_000 }));
    at(1_000);
    expect((await call(`/v1/holds/${id}`, { method: "DELETE" })).status).toBe(404);
    expect((await report("slow", key)).body["remaining"]).toBe(2);
    await call(`/v1/holds/${id}/settle`, { body: { used: 0 } });
    expect((await report("slow", key)).body["remaining"]).toBe(2);
  });
});

test("6. a release again, too late, or by somebody else frees nobody's slot", async () => {
  const key = freshKey();
  at(0);
  const [mine, expired] = [
    idIn(await acquire("export", key)),
    idIn(await acquire("export", key, { ttlMs: 10 })),
  ];
  at(10);
  const theirs = idIn(await acquire("export", key));
  expect((await release(expired)).status).toBe(404);
  expect((await release(mine)).status).toBe(204);
  expect((await release(mine)).status).toBe(404);
  expect((await release(theirs.replace(/.{5}$/, "AAAAA"))).status).toBe(404);
  expect((await report("export", key)).body).toMatchObject({ leases: 1, remaining: 1 });
});

test("7. a slot whose holder crashed comes back by itself, renewed or not; and who outlives its lease is told", async () => {
  const key = freshKey();
  at(0);
  const id = idIn(await acquire("export", key, { units: 2, ttlMs: 1_000 }));
  for (let nowMs = 900; nowMs <= 9_000; nowMs += 900) {
    at(nowMs);
    expect((await call(`/v1/leases/${id}/renew`, { body: {} })).status).toBe(200);
    // Denied calls of others make it no longer.
    await acquire("export", key);
  }
  at(10_000);
  expect((await call(`/v1/leases/${id}/renew`, { body: {} })).status).toBe(404);
  expect((await report("export", key)).body).toMatchObject({ leases: 0, remaining: 2, reclaimed: 1 });
});

test("8. no waiter misses its turn, and none is granted a slot that it does not use", async () => {
  const key = freshKey();
  const held = await acquire("export", key, { units: 2 });
  const vain = acquire("export", key, { waitMs: 20 });
  const waiting = [acquire("export", key, { waitMs: 20_000 }), acquire("export", key, { waitMs: 20_000 })];
  expect((await vain).body["reason"]).toBe("wait-timeout");
  while ((await report("export", key)).body["queueLength"] !== 2);
  await release(idIn(held));
  const served = await Promise.all(waiting);
  expect(served.map(({ body }) => body["success"])).toEqual([true, true]);
  for (const each of served) await release(idIn(each));
  expect((await report("export", key)).body).toMatchObject({ leases: 0, queueLength: 0, remaining: 2 });
});

describe("9. many first calls at once see one state, and an eviction in mid-burst keeps it", () => {
  test.each(["slow", "log"])("%s", async (policy) => {
    const key = freshKey();
    const burst = () => Promise.all(Array.from({ length: 20 }, () => limit(policy, key)));
    const admitted = async () => (await burst()).filter(({ body }) => body["success"] === true).length;
    const first = await admitted();
    await objectOf(policy, key).evict();
    expect([first, await admitted()]).toEqual([5, 0]);
  });

  test("leases", async () => {
    const key = freshKey();
    const called = await Promise.all(Array.from({ length: 20 }, () => acquire("export", key)));
    expect(called.filter(({ body }) => body["success"] === true)).toHaveLength(2);
    await objectOf("export", key).evict();
    expect((await acquire("export", key)).body["success"]).toBe(false);
  });
});

describe("11. an object that does not answer is no denial, and a denial is no failure", () => {
  const breakStorage = (policy: string, key: string) =>
    runInDurableObject(objectOf(policy, key).stub, (_: LimiterObject, state) => {
      state.storage.sql.exec("CREATE TABLE journal (broken TEXT)");
    });

  test("what could not be decided says degraded and has no figures", async () => {
    const key = freshKey();
    await breakStorage("broken-export", key);
    const { body } = await acquire("broken-export", key);
    expect(body).toMatchObject({ success: false, reason: "degraded", source: "fallback", rules: [] });
    expect(body).not.toHaveProperty("retryAfterMs");
    expect(
      (await call("/v1/limit/all", { body: { checks: [{ policy: "closed", key: "a" }] } })).body["success"],
    ).toBe(true);
  });

  test("a call on several keys of which one cannot be decided takes nothing of the others", async () => {
    const [key, other] = [freshKey(), freshKey()];
    await breakStorage("closed", key);
    const checks = [
      { policy: "closed", key },
      { policy: "slow", key: other },
    ];
    const { body } = await call("/v1/limit/all", { body: { checks } });
    expect(body).toMatchObject({ success: false, decisions: [{ reason: "degraded" }, { success: true }] });
    expect((await report("slow", other)).body).toMatchObject({ remaining: 5, holds: 0 });
  });

  test("a denial is answered as one, without a degraded anything", async () => {
    const key = freshKey();
    await acquire("export", key, { units: 2 });
    expect((await acquire("export", key)).body).toMatchObject({ reason: "quota", source: "object" });
  });
});

test("12. a retried request is charged once, whatever it does", async () => {
  const key = freshKey();
  at(0);
  const again = async (make: () => Promise<Called>) => {
    const [first, second] = [await make(), await make()];
    expect(second.body).toEqual(first.body);
    return first;
  };
  const idempotencyKey = freshKey();
  await again(() => limit("slow", key, { idempotencyKey: `limit ${idempotencyKey}` }));
  await again(() => refund("slow", key, 1, `refund ${idempotencyKey}`));
  const held = await again(() => hold("slow", key, 2, { idempotencyKey: `hold ${idempotencyKey}` }));
  await again(() => call(`/v1/holds/${idIn(held)}/settle`, { body: { used: 1 } }));
  const checks = [{ policy: "slow", key }];
  await again(() => call("/v1/limit/all", { body: { checks, idempotencyKey } }));
  await again(() => acquire("export", key, { idempotencyKey }));
  expect((await report("slow", key)).body["remaining"]).toBe(5 - 1 + 1 - 1 - 1);
  expect((await report("export", key)).body["leases"]).toBe(1);
});

let hosts = 0;

test("13. an IPv6 host is one key, whichever of its addresses it comes from", async () => {
  const prefix = `2001:db8:${Math.floor(START_MS % 65_536).toString(16)}:7`;
  await limit("address", `${prefix}::1`, { cost: 4 });
  const { body } = await limit("address", `${prefix}:ffff:ffff:ffff:ffff`);
  expect(body).toMatchObject({ key: `${prefix}::/64`, remaining: 0 });
});

test.each([
  ["a look", { cost: 0 }],
  ["an idempotency key", { idempotencyKey: "once" }],
  ["a priority", { priority: "low" }],
  ["a charge", { refundable: true }],
  ["a wait", { waitMs: 10 }],
  ["force", { force: true }],
])("13. an IPv6 host is one key for a call with %s too", async (_, fields) => {
  hosts += 1;
  const prefix = `2001:db8:1:${hosts.toString(16)}`;
  await limit("address", `${prefix}::1`, { cost: 2 });
  const took = (fields as { cost?: number }).cost ?? 1;
  const { body } = await limit("address", `${prefix}::ffff`, fields);
  expect(body).toMatchObject({ key: `${prefix}::/64`, success: true });
  expect((await report("address", encodeURIComponent(`${prefix}::/64`))).body["remaining"]).toBe(
    5 - 2 - took,
  );
  if (took === 0) expect(body["remaining"]).toBe(3);
});

test("15. who comes back after the promised wait is admitted, and a millisecond sooner is not", async () => {
  for (const policy of ["api", "log", "several"]) {
    const key = freshKey(policy);
    at(0);
    await limit(policy, key, { cost: policy === "api" ? 500 : 5 });
    const waitMs = (await limit(policy, key, { cost: 2 })).body["retryAfterMs"] as number;
    at(waitMs - 1);
    expect((await limit(policy, key, { cost: 2 })).body["success"]).toBe(false);
    at(waitMs);
    expect((await limit(policy, key, { cost: 2 })).body["success"]).toBe(true);
  }
});

test("16. keys come back when their own units do, not all at one edge of the clock", async () => {
  const waits = new Set<number>();
  for (let index = 0; index < 10; index += 1) {
    const key = freshKey();
    at(index * 37);
    await limit("log", key, { cost: 5 });
    at(10_000);
    waits.add((await limit("log", key)).body["retryAfterMs"] as number);
  }
  expect(waits.size).toBe(10);
});

describe("17. names mean nothing but themselves", () => {
  test.each([
    "__proto__",
    "constructor",
    "toString",
    "a/b",
    "a%2Fb",
    "é",
    "e\u0301",
    "key with spaces",
    "\u0000",
  ])("a key %j has a count of its own", async (key) => {
    for (const policy of ["shared", "slow", "log"]) {
      const { body } = await limit(policy, key, { cost: 2 });
      expect(body).toMatchObject({ key, success: true, remaining: 3 });
    }
    const lease = await acquire("export", key);
    expect(lease.body).toMatchObject({ key, remaining: 1 });
    expect((await release(idIn(lease))).status).toBe(204);
    const held = await hold("slow", key, 1);
    expect((await call(`/v1/holds/${idIn(held)}`, { method: "DELETE" })).status).toBe(204);
  });

  test("policy and key do not run together: constructor/a and another policy's key are two", async () => {
    const key = freshKey();
    await limit("constructor", key);
    expect((await limit("slow", key)).body["remaining"]).toBe(4);
    expect((await limit("__proto__", key)).status).toBe(404);
    expect((await acquire("toString", key)).status).toBe(404);
  });
});
