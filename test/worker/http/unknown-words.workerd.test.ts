/** A word with a wrong letter is refused, and the error names the right one: ignored, it would let everything through. */
import { expect, test } from "vitest";
import { TEST_POLICIES, TOKENS } from "../../support/fixtures.ts";
import { call, freshKey } from "../../support/limiter.ts";

const errorsOf = async (path: string, options: Parameters<typeof call>[1]) => {
  const { status, body } = await call(path, options);
  return [status, (body["errors"] as { detail: string }[] | undefined)?.map(({ detail }) => detail)];
};

test.each([
  ["POST", "/v1/limit", { policy: "slow", key: "a" }],
  ["POST", "/v1/limit/all", { checks: [{ policy: "slow", key: "a" }] }],
  ["POST", "/v1/holds", { policy: "slow", key: "a", units: 1 }],
  ["POST", "/v1/holds/weir/settle", { used: 1 }],
  ["POST", "/v1/leases/weir/renew", {}],
  ["POST", "/v1/leases/weir/release", {}],
  ["POST", "/v1/reservations", {}],
  ["PUT", "/v1/policies/slow/keys/a", { used: 1 }],
])("%s %s: dney is not a field of the query", async (method, path, body) => {
  expect(await errorsOf(`${path}?dney=429`, { method, body })).toEqual([
    422,
    ["dney is not a field of the query: there is deny (did you mean deny?)"],
  ]);
});

test.each([
  ["GET", "/v1/policies"],
  ["DELETE", "/v1/holds/weir"],
  ["DELETE", "/v1/leases/weir"],
])("%s %s has no query: one that is there is refused", async (method, path) => {
  expect(await errorsOf(`${path}?deny=429`, { method, token: TOKENS.full })).toEqual([
    422,
    ["deny is not a field of the query: this call has none"],
  ]);
  expect((await call(`${path}?a=%zz`, { method, token: TOKENS.full })).status).toBe(400);
});

test.each([
  ["POST", "/v1/limit?policy=slow&key=a&csot=2", "csot is not a field", "(did you mean cost?)"],
  ["GET", "/v1/policies/slow/keys/a?waitms=5", "waitms is not a field", "(did you mean waitMs?)"],
  ["GET", "/v1/policies/objects/keys?cursr=x", "cursr is not a field", "(did you mean cursor?)"],
])("%s %s", async (method, path, begins, ends) => {
  const [status, details] = await errorsOf(path, { method, token: TOKENS.full });
  expect([status, details]).toEqual([422, [expect.stringContaining(begins)]]);
  expect(String(details)).toContain(ends);
});

test("a call in the query has numbers, true and false, and no limits, which are a table", async () => {
  const at = `/v1/limit?policy=slow&key=${freshKey()}`;
  const { status, body } = await call(`${at}&refundable=true&force=false&waitMs=007`, { method: "POST" });
  expect([status, body["charge"]]).toEqual([200, expect.any(String)]);
  const forced = await call(`${at}&cost=30&force=true`, { method: "POST", token: TOKENS.full });
  expect(forced).toMatchObject({ status: 200, body: { success: true, remaining: 0 } });
  const [, read] = await errorsOf(`${at}&utilization=0.5`, { method: "POST" });
  expect(String(read)).toContain("utilization is 0.5: must be left out");
  const refused = await errorsOf(`${at}&refundable=yes`, { method: "POST" });
  expect(refused).toEqual([422, ['refundable is "yes": must be true or false']]);
  const [, details] = await errorsOf(`${at}&limits=5`, { method: "POST" });
  expect(details).toEqual([
    expect.stringMatching(/^limits is not a field of the query: there is policy, key, cost, (?!.*limits)/),
  ]);
});

test("a field of the body, and a policy: the nearest one is named, and a long list is cut", async () => {
  const key = freshKey();
  const body = { policy: "slow", key, idempotencykey: "a" };
  expect(String(await errorsOf("/v1/limit", { body }))).toContain("(did you mean idempotencyKey?)");
  const [status, details] = await errorsOf("/v1/limit", { body: { policy: "slw", key } });
  expect(status).toBe(404);
  const listed = Object.keys(TEST_POLICIES).length;
  expect(String(details)).toContain(`and ${listed - 20} more (did you mean slow?)`);
  expect(String(details).match(/"/g)?.length).toBe(2 * (20 + 1));
});

test.each([
  ["GET", "/v1/policies", undefined],
  ["POST", "/v1/limit", { policy: "slow", key: "a" }],
  ["GET", "/v1/policies/slow/keys/a", undefined],
  ["GET", "/v1/policies/slow/overrides", undefined],
  ["GET", "/v1/stats", undefined],
])("%s %s: a query of more than 20 fields is refused without looking at each", async (method, path, body) => {
  const query = Array.from({ length: 500 }, (_, index) => `field${index}=1`).join("&");
  const options = { method, token: TOKENS.full, ...(body && { body }) };
  expect(await errorsOf(`${path}?${query}`, options)).toEqual([
    422,
    ["the query has more than 20 fields: must have fewer"],
  ]);
});
