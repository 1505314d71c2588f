/** Holds whose policy has lost a rule since they were taken: they are settled with the units that they have. */
import { expect, test } from "vitest";
import { TOKENS } from "../../../support/fixtures.ts";
import { call, freshKey, report } from "../../../support/limiter.ts";

const admin = (method: string, path: string, body?: object) =>
  call(path, { method, token: TOKENS.full, ...(body && { body }) });
const settle = (id: string, used: unknown) => call(`/v1/holds/${id}/settle`, { body: { used } });

const calls = { algorithm: "token-bucket", limit: 10, window: "30d" };
const tokens = { ...calls, limit: 1_000, unit: "tokens" };
const put = (rules: object) => admin("PUT", "/v1/policies/shrinking", { rules, deadlineMs: 20_000 });

async function holdOf(units: unknown): Promise<{ readonly id: string; readonly key: string }> {
  const key = freshKey();
  const { body } = await call("/v1/holds", { body: { policy: "shrinking", key, units } });
  return { id: (body["hold"] as { id: string }).id, key };
}

test("a unit of a removed rule is accepted by the holds that had it, and is ignored", async () => {
  await put({ calls, tokens });
  const held = await holdOf({ requests: 4, tokens: 500 });
  const other = await holdOf({ requests: 4, tokens: 500 });
  await put({ calls });
  const settled = await settle(held.id, { requests: 1, tokens: 321 });
  expect(settled).toMatchObject({ status: 200, body: { remaining: 9 } });
  expect((await settle(held.id, { requests: 1, tokens: 321 })).body).toEqual(settled.body);
  expect((await report("shrinking", held.key)).body).toMatchObject({ remaining: 9, holds: 0 });
  const unknown = await settle(other.id, { requests: 1, tokens: 321, words: 5 });
  expect(unknown).toMatchObject({
    status: 422,
    body: { errors: [{ pointer: "/used/tokens" }, { pointer: "/used/words" }] },
  });
  // The refusal has changed nothing: the hold is there.
  expect((await settle(other.id, { tokens: 321 })).body).toMatchObject({ remaining: 6 });
  await admin("DELETE", "/v1/policies/shrinking");
});

test("a unit that the hold never had is refused, also of a rule that came and went since", async () => {
  await put({ calls });
  const { id } = await holdOf(4);
  await put({ calls, tokens });
  await put({ calls });
  expect((await settle(id, { tokens: 321 })).status).toBe(422);
  expect((await settle(`${id}x`, { tokens: 321 })).status).toBe(404);
  expect((await settle(id, { requests: 1 })).body).toMatchObject({ remaining: 9 });
  await admin("DELETE", "/v1/policies/shrinking");
});
