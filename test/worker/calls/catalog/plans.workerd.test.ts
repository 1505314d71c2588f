/** Plans of policies that change at run time, with overrides and candidates. */
import { expect, test } from "vitest";
import { TOKENS } from "../../../support/fixtures.ts";
import { call, freshKey, limit } from "../../../support/limiter.ts";

const admin = (method: string, path: string, body?: object) =>
  call(path, { method, token: TOKENS.full, ...(body && { body }) });

test("an override beats a plan and the limits of a call, and a factor multiplies the plan's", async () => {
  const [own, twice] = [freshKey("own"), freshKey("twice")];
  await admin("PUT", `/v1/policies/planned/overrides/${own}`, { limit: 7 });
  await admin("PUT", `/v1/policies/planned/overrides/${twice}`, { multiply: 2 });
  const limitOf = async (key: string, fields: object) =>
    (await limit("planned", key, { cost: 0, ...fields })).body["limit"];
  expect(await limitOf(own, {})).toBe(7);
  expect(await limitOf(own, { plan: "pro" })).toBe(7);
  expect(await limitOf(own, { plan: "pro", limits: { requests: 500 } })).toBe(7);
  expect(await limitOf(twice, {})).toBe(20);
  expect(await limitOf(twice, { plan: "pro" })).toBe(80);
  for (const key of [own, twice]) await admin("DELETE", `/v1/policies/planned/overrides/${key}`);
});

test("plans change with their policy, and a bad one is refused with its place", async () => {
  const table = { algorithm: "token-bucket", limit: 10, window: "30d", deadlineMs: 20_000 };
  const put = async (plans: object, query = "") =>
    await admin("PUT", `/v1/policies/planned${query}`, { ...table, plans });
  const bad = await put({ pro: { limitt: 5 } }, "?dryRun=true");
  expect([bad.status, bad.body["errors"]]).toEqual([
    422,
    [{ pointer: "/plans/pro/limitt", detail: expect.stringContaining("plans.pro: limitt") as string }],
  ]);
  const worse = await put({ pro: { limit: -1 }, "": { limit: 5 } }, "?dryRun=true");
  expect(worse.body["errors"]).toMatchObject([{ pointer: "/plans/pro/limit" }, { pointer: "/plans/" }]);
  const limits = { ...table, algorithm: "sliding-log", limitInCall: { max: 1e9 } };
  const uncounted = await admin("PUT", "/v1/policies/planned?dryRun=true", limits);
  expect(uncounted.body["errors"]).toMatchObject([{ pointer: "/limitInCall/max" }]);
  const key = freshKey();
  await limit("planned", key, { plan: "pro", cost: 5 });
  expect((await put({ pro: { limit: 50 } })).status).toBe(200);
  expect((await limit("planned", key, { plan: "pro", cost: 0 })).body).toMatchObject({
    plan: "pro",
    limit: 50,
    remaining: 45,
  });
  expect((await limit("planned", key, { plan: "max" })).status).toBe(422);
  expect((await call(`/v1/policies/planned/keys/${key}`, { method: "GET" })).body).toMatchObject({
    plan: "pro",
  });
  await admin("DELETE", "/v1/policies/planned");
  expect((await limit("planned", key, { plan: "pro", cost: 0 })).body).toMatchObject({ limit: 40 });
});
