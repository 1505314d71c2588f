/** Plans and limits in the call, as callers see them over HTTP. */
import { SELF } from "cloudflare:test";
import { expect, test } from "vitest";
import { createLimiter } from "../../../package/client.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, limit, report } from "../../support/limiter.ts";

test("a call is decided by the plan that it names, and says so", async () => {
  const key = freshKey();
  const { body, headers } = await limit("planned", key, { plan: "pro", cost: 30 });
  expect(body).toMatchObject({ success: true, plan: "pro", limit: 40, remaining: 10 });
  expect(headers.get("ratelimit-policy")).toBe('"planned";q=40;w=2592000;plan="pro"');
  const own = await limit("planned", key);
  expect(own.body).toMatchObject({ success: false, limit: 10, reason: "quota" });
  expect(own.body).not.toHaveProperty("plan");
  expect((await limit("planned", key, { plan: "pro", cost: 10 })).body).toMatchObject({ success: true });
});

test("a key keeps its plan while nobody names another, and a peek shows it", async () => {
  const key = freshKey();
  await limit("planned", key, { plan: "pro", cost: 5 });
  expect((await report("planned", key)).body).toMatchObject({ plan: "pro", limit: 40, remaining: 35 });
  const named = await call(`/v1/policies/planned/keys/${key}?plan=pro`, { method: "GET" });
  expect(named.body).toMatchObject({ plan: "pro", remaining: 35 });
  const looked = await call(`/v1/policies/planned/keys/${key}?plan=max`, { method: "GET" });
  expect(looked.body).toMatchObject({ plan: "max", limit: 100_000, remaining: 99_995 });
  expect((await limit("planned", key, { cost: 0 })).body).toMatchObject({ limit: 10, remaining: 5 });
  expect((await report("planned", key)).body).toMatchObject({ plan: "pro", limit: 40, remaining: 35 });
  await call(`/v1/policies/planned/keys/${key}`, { method: "DELETE" });
  expect((await limit("planned", key, { plan: "pro" })).body).toMatchObject({ remaining: 39 });
});

test("a hot key with a plan is decided without its object", async () => {
  const key = freshKey();
  const sources = new Set<unknown>();
  for (let number = 0; number < 30; number += 1) {
    const { body } = await limit("planned", key, { plan: "max" });
    expect({ number, ...body }).toMatchObject({ number, success: true, plan: "max", limit: 100_000 });
    sources.add(body["source"]);
  }
  expect(sources).toContain("isolate");
  expect((await limit("planned", key, { plan: "pro" })).body).toMatchObject({ plan: "pro", remaining: 9 });
});

test("two callers that disagree are exact", async () => {
  const key = freshKey();
  const admitted = { pro: 0, own: 0 };
  for (let number = 0; number < 60; number += 1) {
    const isPro = number % 2 === 0;
    const { body } = await limit("planned", key, isPro ? { plan: "pro" } : {});
    if (body["success"] === true) admitted[isPro ? "pro" : "own"] += 1;
  }
  expect(admitted.pro).toBe(30);
  expect(admitted.own).toBe(5);
});

test("limits in the call count instead of the plan's", async () => {
  const key = freshKey();
  const own = { limits: { requests: 500 } };
  expect((await limit("planned", key, own)).body).toMatchObject({ limit: 500, remaining: 499 });
  expect((await limit("planned", key, { ...own, plan: "pro" })).body).toMatchObject({
    limit: 500,
    plan: "pro",
  });
  expect((await limit("planned", key)).body).toMatchObject({ limit: 10, remaining: 7 });
});

test.each([
  [{ plan: "prro" }, "/plan", 'plan is "prro": must be one of "pro", "max" (did you mean pro?)'],
  [{ plan: 5 }, "/plan", "plan is 5: must be the name of a plan"],
  [
    { limits: { requests: 1_001 } },
    "/limits/requests",
    "must be an integer from 0 to 1000, the policy's limitInCall.max",
  ],
  [{ limits: { tokens: 5 } }, "/limits/tokens", "tokens is not a unit of this policy: there are requests"],
  [
    { limits: { requests: -1 } },
    "/limits/requests",
    "limits.requests is -1: must be an integer from 0 to 1000, the policy's limitInCall.max",
  ],
  [
    { limits: { requests: "5" } },
    "/limits/requests",
    'limits.requests is "5": must be an integer from 0 to 1000, the policy\'s limitInCall.max',
  ],
  [
    { limits: JSON.parse('{ "requests": 5, "__proto__": 5 }') as object },
    "/limits/__proto__",
    "__proto__ is not a unit of this policy: there are requests",
  ],
  [{ limits: [5] }, "/limits", "must be a table of limits by unit"],
  [{ limits: 5 }, "/limits", "must be a table of limits by unit"],
])("%j is refused, and takes nothing", async (fields, pointer, detail) => {
  const key = freshKey();
  const { status, body } = await limit("planned", key, fields);
  expect(status).toBe(422);
  expect(body["errors"]).toEqual([{ pointer, detail: expect.stringContaining(detail) }]);
  expect((await report("planned", key)).body).toMatchObject({ remaining: 10 });
});

test("limits that another field of the rule does not allow are refused with the reason", async () => {
  const ask = async (requests: number) =>
    await limit("planned-windows", freshKey(), { limits: { requests } });
  expect((await ask(5)).body).toMatchObject({ success: true });
  const { status, body } = await ask(4);
  expect(status).toBe(422);
  expect(body["errors"]).toEqual([
    {
      pointer: "/limits/requests",
      detail:
        "limits.requests is 4: must be a limit that the policy's rule can have " +
        "(carry is 60: must be at most 12 times the limit: 48)",
    },
  ]);
});

test("a reset, and an end of waits, may name a plan, which is checked and changes nothing else", async () => {
  const key = freshKey();
  const address = `/v1/policies/planned/keys/${key}`;
  const remove = async (rest: string) => await call(`${address}${rest}`, { method: "DELETE" });
  for (const end of ["", "/waiters"]) {
    await limit("planned", key, { plan: "pro", cost: 5 });
    const { status, body } = await remove(`${end}?plan=prro`);
    expect(status).toBe(422);
    const detail = 'plan is "prro": must be one of "pro", "max" (did you mean pro?)';
    expect(body["errors"]).toEqual([{ pointer: "/plan", detail }]);
    expect((await report("planned", key)).body).toMatchObject({ plan: "pro" });
    for (const plan of ["pro", "max", ""]) {
      await limit("planned", key, { plan: "pro", cost: 5 });
      expect((await remove(`${end}?plan=${plan}`)).status).toBe(204);
      const pro = await limit("planned", key, { plan: "pro", cost: 0 });
      if (end === "") expect(pro.body).toMatchObject({ limit: 40, remaining: 40 });
    }
  }
  for (const [query, pointer] of [
    ["key=other", "/key"],
    ["plam=pro", "/plam"],
  ])
    expect((await remove(`?${query}`)).body["errors"]).toMatchObject([{ pointer }]);
});

test("a policy without plans or limitInCall refuses them", async () => {
  const refusal = async (fields: Record<string, unknown>) =>
    (await limit("slow", freshKey(), fields)).body["errors"];
  expect(await refusal({ plan: "pro" })).toMatchObject([{ pointer: "/plan" }]);
  expect(await refusal({ limits: { requests: 5 } })).toMatchObject([{ pointer: "/limits" }]);
});

test("leases, holds, joint checks and the query name plans too", async () => {
  const slots = { policy: "planned-slots", key: freshKey() };
  const acquire = async (fields: object) => await call("/v1/leases", { body: { ...slots, ...fields } });
  for (let number = 0; number < 5; number += 1)
    expect((await acquire({ plan: "pro" })).body).toMatchObject({ success: true, plan: "pro" });
  expect((await acquire({ plan: "pro" })).body).toMatchObject({ success: false, limit: 5 });
  const key = freshKey();
  const held = await call("/v1/holds", { body: { policy: "planned", key, plan: "pro", units: 30 } });
  expect(held.body).toMatchObject({ success: true, remaining: 10, plan: "pro" });
  const checks = [
    { policy: "planned", key, plan: "pro", cost: 10 },
    { policy: "planned-rules", key, plan: "pro", cost: { requests: 1, tokens: 900 } },
  ];
  const together = await call("/v1/limit/all", { body: { checks } });
  expect(together.body).toMatchObject({ success: true, decisions: [{ plan: "pro" }, { plan: "pro" }] });
  const wrong = await call("/v1/limit/all", { body: { checks: [{ ...checks[0], plan: "gold" }] } });
  expect(wrong.body["errors"]).toMatchObject([{ pointer: "/checks/0/plan" }]);
  const query = await call(`/v1/limit?policy=planned&key=${freshKey()}&plan=pro`, { method: "POST" });
  expect(query.body).toMatchObject({ plan: "pro", remaining: 39 });
});

test("a client in its caller's process decides by plans too", async () => {
  const key = freshKey();
  const limiter = createLimiter({
    url: "https://weir.test",
    token: TOKENS.reserve,
    policy: "planned",
    fetch: (input, init) => SELF.fetch(input, init),
  });
  const sources = new Set<string>();
  for (let number = 0; number < 60; number += 1) {
    const decision = await limiter.limit({ key, plan: "max" });
    expect({ number, ...decision }).toMatchObject({ number, success: true, plan: "max", limit: 100_000 });
    sources.add(decision.source);
  }
  expect(sources).toContain("isolate");
  expect(await limiter.limit({ key })).toMatchObject({ success: false, limit: 10 });
  await expect(limiter.limit({ key, plan: "mx" })).rejects.toThrow("did you mean max?");
  expect(await limiter.limit({ key, limits: { requests: 500 } })).toMatchObject({
    limit: 500,
    remaining: 439,
  });
  expect(await limiter.limit({ key, plan: "pro", cost: 0 })).toMatchObject({ plan: "pro", remaining: 0 });
  expect(await limiter.peek({ key, plan: "max" })).toMatchObject({ plan: "max", limit: 100_000 });
  expect(await limiter.peek({ key, plan: "" })).toMatchObject({ limit: 10 });
  await expect(limiter.peek({ key, plan: "mx" })).rejects.toThrow("did you mean max?");
  await limiter.close();
});

test("a client's reset and end of waits may name a plan", async () => {
  const key = freshKey();
  const limiter = createLimiter({
    url: "https://weir.test",
    token: TOKENS.full,
    policy: "planned",
    fetch: (input, init) => SELF.fetch(input, init),
  });
  await limiter.limit({ key, plan: "pro", cost: 5 });
  await limiter.endWaits({ key, plan: "pro" });
  await limiter.reset({ key, plan: "pro" });
  expect(await limiter.peek({ key, plan: "pro" })).toMatchObject({ remaining: 40 });
  await expect(limiter.reset({ key, plan: "prro" })).rejects.toThrow("did you mean pro?");
  await expect(limiter.reset({ key, plan: 5 as never })).rejects.toThrow(
    "plan is 5: must be the name of a plan",
  );
  await limiter.close();
});

test("the list of policies has the plans", async () => {
  const { body } = await call("/v1/policies", { method: "GET" });
  const planned = (body["policies"] as { name: string }[]).find(({ name }) => name === "planned");
  expect(planned).toMatchObject({ maxLimitInCall: 1_000, plans: { pro: [{ name: "planned", limit: 40 }] } });
});
