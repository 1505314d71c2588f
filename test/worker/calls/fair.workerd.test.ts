/** Groups that share a key, as callers see them. The laws are in test/core/algorithms/fair.test.ts. */
import { abortAllDurableObjects, SELF } from "cloudflare:test";
import { expect, test } from "vitest";
import { createLimiter } from "../../../package/client.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, limit, report } from "../../support/limiter.ts";

const of = (group: string, cost = 1) => ({ group, cost });

test("a group that floods leaves the others their parts, and the total is exact", async () => {
  const key = freshKey();
  const first = await limit("fair", key, of("b"));
  expect(first.body).toMatchObject({ success: true, group: "b", share: { limit: 100, remaining: 49 } });
  let flood = 0;
  for (let number = 0; number < 30; number += 1)
    if ((await limit("fair", key, of("a", 5))).body["success"] === true) flood += 5;
  // The common half and its own part.
  expect(flood).toBe(70);
  const denied = (await limit("fair", key, of("a", 5))).body;
  expect(denied).toMatchObject({ success: false, reason: "quota", share: { limit: 50, remaining: 0 } });
  expect(denied["sureAfterMs"]).toBeGreaterThanOrEqual(denied["retryAfterMs"] as number);
  expect((await limit("fair", key, of("b", 24))).body).toMatchObject({ success: true, remaining: 0 });
  expect((await report("fair", key)).body).toMatchObject({ limit: 100, remaining: 5 });
});

test("what groups owe outlasts the object", async () => {
  const key = freshKey();
  for (const group of ["a", "b"]) await limit("fair", key, of(group, 20));
  const share = async () => (await limit("fair", key, of("a", 0))).body["share"];
  const before = await share();
  expect(before).toEqual({ limit: 50, remaining: 5 });
  await abortAllDurableObjects();
  expect(await share()).toEqual(before);
});

test("weights, holds, refunds, joint checks and idempotency keys know the group", async () => {
  const key = freshKey();
  await limit("fair", key, of("a"));
  expect((await limit("fair", key, of("gold:x", 0))).body).toMatchObject({ share: { limit: 75 } });
  const held = await call("/v1/holds", { body: { policy: "fair", key, group: "gold:x", units: 30 } });
  expect(held.body).toMatchObject({ success: true, group: "gold:x" });
  expect((await limit("fair", key, of("gold:x", 0))).body).toMatchObject({ share: { remaining: 7 } });
  const { id } = held.body["hold"] as { id: string };
  const settled = await call(`/v1/holds/${id}/settle`, { body: { used: 10 } });
  expect(settled.body).toMatchObject({ group: "gold:x", share: { remaining: 27 } });
  const once = { ...of("gold:x", 5), idempotencyKey: "once", refundable: true };
  expect((await limit("fair", key, once)).body).toMatchObject({ success: true, charge: "once" });
  expect((await limit("fair", key, { ...once, group: "a" })).status).toBe(409);
  expect((await limit("fair", key, once)).body).toMatchObject({ share: { remaining: 22 } });
  const refund = { policy: "fair", key, units: 5, charge: "once", idempotencyKey: "back" };
  expect((await call("/v1/refund", { body: refund })).status).toBe(200);
  expect((await limit("fair", key, of("gold:x", 0))).body).toMatchObject({ share: { remaining: 27 } });
  const checks = [{ policy: "fair", key, group: "a", cost: 2 }];
  const both = [...checks, { policy: "planned", key: freshKey() }];
  const together = await call("/v1/limit/all", { body: { checks: both } });
  expect(together.body).toMatchObject({
    success: true,
    decisions: [{ group: "a", share: { limit: 25 } }, {}],
  });
  const any = await call("/v1/limit/any", { body: { checks } });
  expect(any.body).toMatchObject({ success: true, chosen: 0, decisions: [{ group: "a" }] });
});

test.each(["all", "any"])(
  "limit/%s under an idempotency key is for the groups of its checks",
  async (how) => {
    const [key, other] = [freshKey(), freshKey()];
    const made = (...groups: string[]) => {
      const checks = groups.map((group, index) => ({
        policy: "fair",
        key: index === 0 ? key : other,
        group,
      }));
      return call(`/v1/limit/${how}`, { body: { checks, idempotencyKey: "once" } });
    };
    const first = await made("a", "b");
    expect(first.body).toMatchObject({ success: true });
    expect((await made("a", "b")).body).toEqual(first.body);
    for (const groups of [
      ["b", "b"],
      ["a", "a"],
      ["b", "a"],
    ])
      expect((await made(...groups)).status).toBe(409);
  },
);

test("a peek has the active groups, and of a group that it names the part", async () => {
  const key = freshKey();
  for (let number = 1; number <= 30; number += 1)
    await limit("fair", key, of(`g${number}`, number === 7 ? 3 : 1));
  const peeked = (await report("fair", key)).body;
  const { active, busiest } = peeked["groups"] as { active: number; busiest: object[] };
  expect([active, busiest.length]).toEqual([30, 20]);
  // 100 a window, and 50 at once, in 30 parts.
  expect(busiest[0]).toEqual({ group: "g7", limit: 3, remaining: 0 });
  expect(busiest).toContainEqual({ group: "g30", limit: 3, remaining: 0 });
  expect(peeked["share"]).toBeUndefined();
  const ofGroup = (await report("fair", `${key}?group=g7`)).body;
  expect(ofGroup).toMatchObject({ group: "g7", share: { limit: 3, remaining: 0 }, groups: { active: 30 } });
  // A look makes no group active.
  expect((await report("fair", `${key}?group=other`)).body).toMatchObject({ group: "other", success: true });
  expect((await report("fair", key)).body).toMatchObject({ groups: { active: 30 } });
  expect((await report("fair", freshKey())).body).toMatchObject({ groups: { active: 0, busiest: [] } });
  // Nor does it need one, if it names a plan.
  expect((await report("fair", `${key}?plan=`)).body).toMatchObject({ groups: { active: 30 } });
});

test("who else calls is for the scope admin", async () => {
  const key = freshKey();
  await limit("fair", key, of("secret"));
  const { body } = await call(`/v1/policies/fair/keys/${key}`, { token: TOKENS.limit });
  expect(body["groups"]).toEqual({ active: 1 });
});

test("groups that one token names count together as 16 beside a group of another token, also after a restart", async () => {
  const key = freshKey();
  for (let number = 0; number < 40; number += 1) await limit("fair", key, of(`g${number}`));
  const other = async (cost: number) => {
    const body = { policy: "fair", key, group: "other", cost };
    return (await call("/v1/limit", { token: TOKENS.limit, body })).body["share"];
  };
  await other(1);
  expect(await other(0)).toEqual({ limit: Math.floor(100 / 17), remaining: 1 });
  await abortAllDurableObjects();
  expect(await other(0)).toEqual({ limit: Math.floor(100 / 17), remaining: 1 });
});

test.each([
  ["fair", {}, "/group", "group is missing: must be 1 to 128 bytes of UTF-8: whose call it is"],
  ["fair", { group: "" }, "/group", 'group is "": must be 1 to 128 bytes of UTF-8'],
  ["fair", { group: "x".repeat(129) }, "/group", "must be 1 to 128 bytes of UTF-8"],
  ["fair", { group: 5 }, "/group", "group is 5: must be 1 to 128 bytes of UTF-8"],
  ["fair", { group: "a", waitMs: 30_001 }, "/waitMs", "waitMs is 30001: must be an integer from 0 to 30000"],
  ["fair", { waitMs: 10 }, "/group", "group is missing"],
  ["slow", { group: "a" }, "/group", "left out: this policy has no fair = true"],
])("under %s %j is refused", async (policy, fields, pointer, detail) => {
  const { status, body } = await limit(policy, freshKey(), fields);
  expect(status).toBe(422);
  expect(body["errors"]).toEqual([{ pointer, detail: expect.stringContaining(detail) }]);
});

test("a client in its caller's process names groups in its messages, and may not leave them out", async () => {
  const key = freshKey();
  const limiter = createLimiter({
    url: "https://weir.test",
    token: TOKENS.reserve,
    policy: "fair",
    fetch: (input, init) => SELF.fetch(input, init),
  });
  for (let number = 1; number <= 20; number += 1) {
    const decision = await limiter.limit({ key, group: "a" });
    expect(decision).toMatchObject({ success: true, group: "a", remaining: 100 - number, source: "object" });
  }
  await expect(limiter.limit({ key })).rejects.toThrow("group is missing");
  expect(await limiter.peek({ key, group: "a" })).toMatchObject({ group: "a", groups: { active: 1 } });
  await expect(limiter.peek({ key, group: "" })).rejects.toThrow(
    'group is "": must be 1 to 128 bytes of UTF-8',
  );
  await limiter.close();
});

test("a client decides calls of a hot group by itself, from units of that group's part alone", async () => {
  const key = freshKey();
  const clients = ["one", "other"].map(() =>
    createLimiter({
      url: "https://weir.test",
      token: TOKENS.reserve,
      policy: "fair-hot",
      fetch: (input, init) => SELF.fetch(input, init),
    }),
  );
  const decided: Record<string, number> = {};
  for (let round = 0; round < 60; round += 1)
    for (const [index, client] of clients.entries())
      for (const { success, source, group, share } of await Promise.all(
        Array.from({ length: 10 }, () => client.limit({ key, group: `group ${index}` })),
      )) {
        expect([success, group]).toEqual([true, `group ${index}`]);
        expect(share?.limit).toBeGreaterThanOrEqual(50_000);
        decided[source] = (decided[source] ?? 0) + 1;
      }
  expect(decided["isolate"]).toBeGreaterThan(600);
  await Promise.all(clients.map((client) => client.close()));
  // What each did not use is back, and what it used is its own group's.
  const peeked = await clients[0]?.peek({ key, group: "group 0" });
  expect(peeked).toMatchObject({ group: "group 0", groups: { active: 2 } });
});
