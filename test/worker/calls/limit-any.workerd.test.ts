import { expect, test } from "vitest";
import { TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, limit, report, type Called } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

interface Check {
  readonly policy: string;
  readonly key: string;
  readonly cost?: unknown;
  readonly group?: string;
}

const limitAny = (checks: readonly Check[], fields: object = {}, query = "") =>
  call(`/v1/limit/any${query}`, { body: { checks, ...fields } });
/** Makes a key as if nothing was used: what it has answered stays. */
const refill = (policy: string, key: string) =>
  call(`/v1/policies/${policy}/keys/${key}`, { method: "PUT", body: { used: 0 } });
const remaining = async (policy: string, key: string) => (await report(policy, key)).body["remaining"];
const last = ({ body }: Called) => (body["decisions"] as Record<string, unknown>[]).at(-1) ?? {};

/** Two keys of one name, of which the first has nothing left. */
async function spent(policy = "slow"): Promise<[Check, Check]> {
  const key = freshKey();
  await limit(policy, key, { cost: 5 });
  return [
    { policy, key },
    { policy: "log", key },
  ];
}

test("the first check that admits is charged, and no other: not even tried", async () => {
  const key = freshKey();
  const checks = [
    { policy: "slow", key, cost: 2 },
    { policy: "log", key, cost: 3 },
  ];
  const called = await limitAny(checks);
  expect(called.body).toMatchObject({
    success: true,
    chosen: 0,
    decisions: [{ success: true, policy: "slow", key, remaining: 3 }],
  });
  expect(called.body["decisions"]).toHaveLength(1);
  expect([await remaining("slow", key), await remaining("log", key)]).toEqual([3, 5]);
});

test("a check that denies changes nothing, and the next one is charged, whose headers the answer has", async () => {
  const [quota, bought] = await spent();
  const before = await objectOf("slow", quota.key).stored();
  const called = await limitAny([quota, bought]);
  expect(called.body).toMatchObject({
    success: true,
    chosen: 1,
    decisions: [
      { success: false, policy: "slow", violated: ["slow"] },
      { success: true, policy: "log" },
    ],
  });
  expect(called.headers.get("ratelimit")).toMatch(/^"log";r=4;t=\d+$/);
  expect(called.headers.get("ratelimit-policy")).toBe('"log";q=5;w=2592000');
  expect(called.headers.get("retry-after")).toBe(null);
  expect((await objectOf("slow", quota.key).stored()).tables).toEqual(before.tables);
  expect([await remaining("slow", quota.key), await remaining("log", bought.key)]).toEqual([0, 4]);
});

test("when all deny nothing is charged, and the headers are those of the shortest wait", async () => {
  const key = freshKey();
  await limit("slow", key, { cost: 5 });
  for (let time = 0; time < 4; time += 1) await limit("leaky", key);
  const checks = [
    { policy: "slow", key },
    { policy: "leaky", key },
    { policy: "log", key, cost: 6 },
  ];
  const called = await limitAny(checks);
  expect(called.body).toMatchObject({ success: false, chosen: null });
  expect(called.body["decisions"]).toHaveLength(3);
  expect(called.headers.get("ratelimit")).toMatch(/^"leaky"/);
  expect(Number(called.headers.get("retry-after"))).toBeLessThanOrEqual(3_600);
  const asked = await limitAny(checks, {}, "?deny=429");
  expect(asked).toMatchObject({
    status: 429,
    body: { "violated-policies": ["slow", "leaky", "log"], decision: { policy: "leaky" } },
  });
  expect(asked.body["decisions"]).toHaveLength(3);
  expect(asked.headers.get("ratelimit")).toMatch(/^"leaky"/);
  const never = await limitAny([{ policy: "log", key, cost: 6 }]);
  expect(never.headers.get("retry-after")).toBe(null);
});

test("the charge of the chosen check is named, and is given back where it was taken", async () => {
  const [quota, bought] = await spent();
  const { charge } = last(await limitAny([quota, { ...bought, cost: 2 }], { refundable: true }));
  const refund = { ...bought, units: 2, charge, idempotencyKey: "back" };
  expect((await call("/v1/refund", { body: refund })).body).toMatchObject({ remaining: 5 });
  const named = await limitAny([quota, { ...bought, cost: 2 }], { refundable: true, idempotencyKey: "k" });
  expect(last(named)).toMatchObject({ charge: "k" });
  const other = { ...quota, units: 2, charge: "k", idempotencyKey: "other" };
  expect((await call("/v1/refund", { body: other })).status).toBe(404);
  const back = { ...bought, units: 2, charge: "k", idempotencyKey: "again" };
  expect((await call("/v1/refund", { body: back })).body).toMatchObject({ remaining: 5 });
});

test("the same call again is answered alike, though the check that had denied would admit now", async () => {
  const [quota, bought] = await spent();
  const fields = { idempotencyKey: "once" };
  const first = await limitAny([quota, bought], fields);
  await refill("slow", quota.key);
  expect(await remaining("slow", quota.key)).toBe(5);
  for (let time = 0; time < 3; time += 1) {
    expect((await limitAny([quota, bought], fields)).body).toEqual(first.body);
    expect([await remaining("slow", quota.key), await remaining("log", bought.key)]).toEqual([5, 4]);
  }
  // Another call is charged where there are units.
  expect((await limitAny([quota, bought], { idempotencyKey: "new" })).body["chosen"]).toBe(0);
});

test.each([0, 1])(
  "a call that all have denied is decided anew: check %s has units again",
  async (refilled) => {
    const checks = await spent();
    await limit("log", checks[1].key, { cost: 5 });
    const fields = { idempotencyKey: "once" };
    for (let time = 0; time < 3; time += 1)
      expect((await limitAny(checks, fields)).body).toMatchObject({ success: false, chosen: null });
    const [one, other] = refilled === 0 ? checks : checks.toReversed();
    await refill(one?.policy ?? "", one?.key ?? "");
    const charged = await limitAny(checks, fields);
    expect(charged.body).toMatchObject({ success: true, chosen: refilled });
    await refill(other?.policy ?? "", other?.key ?? "");
    expect((await limitAny(checks, fields)).body).toEqual(charged.body);
    const left = refilled === 0 ? [4, 5] : [5, 4];
    expect([await remaining("slow", checks[0].key), await remaining("log", checks[1].key)]).toEqual(left);
  },
);

test("another call under its idempotency key is a conflict, and charges nothing", async () => {
  const [quota, bought] = await spent();
  const fields = { idempotencyKey: "once" };
  await limitAny([quota, bought], fields);
  expect((await limitAny([quota, { ...bought, cost: 2 }], fields)).status).toBe(409);
  expect((await limitAny([bought, quota], fields)).status).toBe(409);
  expect((await limit("log", bought.key, fields)).status).toBe(409);
  expect([await remaining("slow", quota.key), await remaining("log", bought.key)]).toEqual([0, 4]);
});

test("a call of one check and a plain limit are different calls: one under the other's key is a conflict", async () => {
  const one = { policy: "slow", key: freshKey() };
  const any = (idempotencyKey: string) => limitAny([one], { idempotencyKey });
  const plain = (idempotencyKey: string) => limit(one.policy, one.key, { idempotencyKey });
  const first = await any("any");
  expect(first.body).toMatchObject({ chosen: 0, decisions: [{ remaining: 4 }] });
  expect((await plain("any")).status).toBe(409);
  expect((await any("any")).body).toEqual(first.body);
  expect((await plain("limit")).body).toMatchObject({ remaining: 3 });
  expect((await any("limit")).status).toBe(409);
  expect(await remaining(one.policy, one.key)).toBe(3);
});

test("a call of one check that was denied is decided anew, and once it is charged it is answered alike", async () => {
  const [quota] = await spent();
  const fields = { idempotencyKey: "once" };
  for (let time = 0; time < 3; time += 1)
    expect((await limitAny([quota], fields)).body).toMatchObject({ success: false, chosen: null });
  await refill(quota.policy, quota.key);
  const charged = await limitAny([quota], fields);
  expect(charged.body).toMatchObject({ success: true, chosen: 0 });
  expect((await limitAny([quota], fields)).body).toEqual(charged.body);
  expect(await remaining(quota.policy, quota.key)).toBe(4);
});

test("the group is a part of a call of one check", async () => {
  const check = { policy: "fair", key: freshKey(), group: "a" };
  const fields = { idempotencyKey: "once" };
  expect((await limitAny([check], fields)).status).toBe(200);
  expect((await limitAny([check], fields)).status).toBe(200);
  expect((await limitAny([{ ...check, group: "b" }], fields)).status).toBe(409);
});

test("a key may be tried with several costs, each under the idempotency key", async () => {
  const key = freshKey();
  await limit("slow", key, { cost: 2 });
  const checks = [4, 3, 1].map((cost) => ({ policy: "slow", key, cost }));
  const fields = { idempotencyKey: "once", refundable: true };
  const first = await limitAny(checks, fields);
  expect(first.body).toMatchObject({ chosen: 1, decisions: [{ success: false }, { charge: "once (2)" }] });
  expect((await limitAny(checks, fields)).body).toEqual(first.body);
  expect(await remaining("slow", key)).toBe(0);
});

test("a policy in shadow admits, an unlimited one too, and a cost of 0 looks", async () => {
  const key = freshKey();
  await limit("shadow", key, { cost: 2 });
  const shadow = await limitAny([
    { policy: "shadow", key },
    { policy: "log", key },
  ]);
  expect(shadow.body).toMatchObject({ chosen: 0, decisions: [{ reason: "shadow" }] });
  expect(
    (
      await limitAny([
        { policy: "free", key },
        { policy: "log", key },
      ])
    ).body["chosen"],
  ).toBe(0);
  expect(
    (
      await limitAny([
        { policy: "shut", key },
        { policy: "log", key },
      ])
    ).body["chosen"],
  ).toBe(1);
  for (const fields of [{}, { idempotencyKey: "k" }])
    expect((await limitAny([{ policy: "slow", key, cost: 0 }], fields)).body["chosen"]).toBe(0);
  expect([await remaining("slow", key), await remaining("log", key)]).toEqual([5, 4]);
});

test("a policy whose denials count is refused by name, and so is one whose units are leased", async () => {
  const fine = { policy: "slow", key: freshKey() };
  const errors = async (checks: unknown, fields: object = {}) =>
    (await call("/v1/limit/any", { body: { checks, ...fields } })).body["errors"] as { pointer: string }[];
  const pointers = async (checks: unknown) => (await errors(checks)).map(({ pointer }) => pointer);
  for (const policy of ["hammered", "penal", "export"])
    expect(await pointers([fine, { policy, key: "a" }])).toEqual(["/checks/1/policy"]);
  expect(await errors([{ policy: "hammered", key: "a" }])).toMatchObject([
    { detail: expect.stringContaining('"hammered": must be a policy without countDenied') as string },
  ]);
  expect(await pointers([fine, { policy: "nowhere", key: "a" }])).toEqual(["/checks/1/policy"]);
  expect(await pointers([fine, { policy: "slow", key: "" }])).toEqual(["/checks/1/key"]);
  expect(await pointers([fine, { ...fine, cost: { words: 1 } }])).toEqual(["/checks/1/cost/words"]);
  expect(await pointers([fine, { ...fine, cots: 1 }])).toEqual(["/checks/1/cots"]);
  expect(await pointers([])).toEqual(["/checks"]);
  expect(await pointers(Array.from({ length: 17 }, () => fine))).toEqual(["/checks"]);
  expect(await errors([fine], { atomic: false })).toMatchObject([{ pointer: "/atomic" }]);
  expect(await errors([fine], { priority: "utmost" })).toMatchObject([{ pointer: "/priority" }]);
  // The first check would admit: all are read before any is tried.
  expect(await remaining("slow", fine.key)).toBe(5);
});

test("a token has to be allowed every key, also those that would not be tried", async () => {
  const checks = [
    { policy: "api", key: "tenant-a:1" },
    { policy: "api", key: "tenant-b:1" },
  ];
  expect((await call("/v1/limit/any", { body: { checks }, token: TOKENS.tenant })).status).toBe(403);
  const own = checks.slice(0, 1);
  expect((await call("/v1/limit/any", { body: { checks: own }, token: TOKENS.tenant })).status).toBe(200);
});

test("many calls at once over a quota and bought units charge exactly what there is, one check each", async () => {
  const key = freshKey();
  const checks = [
    { policy: "slow", key },
    { policy: "log", key },
  ];
  const fields = (index: number) => (index % 2 === 0 ? {} : { idempotencyKey: `call ${index}` });
  const called = await Promise.all(Array.from({ length: 24 }, (_, index) => limitAny(checks, fields(index))));
  const chosen = called.map(({ body }) => body["chosen"]);
  expect([0, 1, null].map((place) => chosen.filter((each) => each === place).length)).toEqual([5, 5, 14]);
  expect([await remaining("slow", key), await remaining("log", key)]).toEqual([0, 0]);
});

test("attempts of one call at once charge one check between them", async () => {
  for (let round = 0; round < 20; round += 1) {
    const [quota, bought] = await spent();
    const fields = { idempotencyKey: "once" };
    const attempts = () => Array.from({ length: 3 }, () => limitAny([quota, bought], fields));
    const called = await Promise.all([...attempts(), refill("slow", quota.key), ...attempts()]);
    const chosen = new Set(called.filter(({ body }) => "chosen" in body).map(({ body }) => body["chosen"]));
    expect(chosen.size).toBe(1);
    const left = [await remaining("slow", quota.key), await remaining("log", bought.key)];
    // The refill comes before a charge of the quota or after it: then that is wiped out.
    expect(left).toEqual(chosen.has(1) ? [5, 4] : [expect.any(Number), 5]);
  }
});
