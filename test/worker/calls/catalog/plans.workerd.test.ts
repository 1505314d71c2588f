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

test("a write and its check say which plans they remove", async () => {
  const table = { algorithm: "token-bucket", limit: 10, window: "30d", deadlineMs: 20_000 };
  const put = async (plans: object | undefined, query = "") => {
    const { status, body } = await admin("PUT", `/v1/policies/planned${query}`, { ...table, plans });
    return [status, body["removedPlans"]];
  };
  const figures = { pro: { limit: 40 }, max: { limit: 80 } };
  expect(await put(figures)).toEqual([200, undefined]);
  for (const query of ["?dryRun=true", ""])
    expect([await put({ max: { limit: 90 } }, query), await put({ ...figures }, "?dryRun=true")]).toEqual([
      [200, ["pro"]],
      [200, undefined],
    ]);
  expect((await limit("planned", freshKey(), { plan: "pro" })).body["detail"]).toContain('plan is "pro"');
  expect(await put(undefined, "?dryRun=true")).toEqual([200, ["max"]]);
  await admin("PUT", "/v1/policies/planned/candidate", table);
  const promoted = await admin("POST", "/v1/policies/planned/candidate/promote", {});
  expect([promoted.status, promoted.body["removedPlans"]]).toEqual([200, ["max"]]);
  expect((await admin("GET", "/v1/policies/planned")).body["removedPlans"]).toBeUndefined();
  await admin("DELETE", "/v1/policies/planned");
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
