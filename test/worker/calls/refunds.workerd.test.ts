import { exports } from "cloudflare:workers";
import { afterEach, describe, expect, test, vi } from "vitest";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, limit, type Called } from "../../support/limiter.ts";

const LATER_MS = Date.now() + 86_400_000;
const NOT_FOUND = { status: 404, body: { type: "urn:weir:problem:charge-not-found" } };

afterEach(() => void vi.useRealTimers());

function refund(fields: Record<string, unknown>, token: string = TOKENS.full): Promise<Called> {
  return call("/v1/refund", {
    token,
    body: { policy: "slow", idempotencyKey: crypto.randomUUID(), ...fields },
  });
}

describe("a refund that names its charge", () => {
  test("gives back what that charge took, to the token that made it, whose scope is limit", async () => {
    const key = freshKey();
    const body = { policy: "slow", key, cost: 2, idempotencyKey: "order" };
    await call("/v1/limit", { token: TOKENS.limit, body });
    expect((await refund({ key, units: 2, charge: "order" }, TOKENS.full)).status).toBe(404);
    const back = await refund({ key, units: 2, charge: "order" }, TOKENS.limit);
    expect(back).toMatchObject({ status: 200, body: { success: true, remaining: 5 } });
    expect(back.body).not.toHaveProperty("charge");
  });

  test("gives back nothing that time has given back: 10, a window, 10, a refund and 10 are not 30", async () => {
    const key = freshKey();
    const take = (idempotencyKey: string) => limit("brief", key, { cost: 1_000, idempotencyKey });
    vi.useFakeTimers({ toFake: ["Date"], now: LATER_MS });
    expect((await take("first")).body["success"]).toBe(true);
    vi.setSystemTime(LATER_MS + 1_000);
    expect((await take("second")).body["success"]).toBe(true);
    const back = await refund({ policy: "brief", key, units: 1_000, charge: "first" });
    expect(back.body).toMatchObject({ remaining: 0 });
    expect((await take("third")).body["success"]).toBe(false);
  });

  test("is a 404 when the charge is unknown, denied or of another key, or was given back before", async () => {
    const [key, other] = [freshKey(), freshKey()];
    await limit("slow", key, { cost: 2, idempotencyKey: "order" });
    await limit("slow", key, { cost: 4, idempotencyKey: "denied" });
    for (const fields of [
      { key, charge: "unknown" },
      { key, charge: "denied" },
      { key: other, charge: "order" },
    ])
      expect(await refund({ units: 2, ...fields })).toMatchObject(NOT_FOUND);
    const first = { key, units: 1, charge: "order", idempotencyKey: "back" };
    const answer = await refund(first);
    expect(await refund({ ...first, idempotencyKey: "again" })).toMatchObject(NOT_FOUND);
    expect((await refund(first)).body).toEqual(answer.body);
    expect((await limit("slow", key, { cost: 0 })).body).toMatchObject({ remaining: 4 });
  });

  test("of all that was taken leaves nothing of the call: made again, it is decided anew", async () => {
    const key = freshKey();
    const take = () => limit("slow", key, { cost: 2, idempotencyKey: "order" });
    await take();
    expect((await refund({ key, units: 1, charge: "order", idempotencyKey: "part" })).status).toBe(200);
    expect((await take()).body).toMatchObject({ remaining: 3 });
    expect((await limit("slow", key, { cost: 0 })).body).toMatchObject({ remaining: 4 });
    const order = { cost: 2, idempotencyKey: "another" };
    await limit("slow", key, order);
    const whole = { key, units: 9, charge: "another", idempotencyKey: "whole" };
    expect((await refund(whole)).body).toMatchObject({ remaining: 4 });
    expect((await limit("slow", key, order)).body).toMatchObject({ remaining: 2 });
    expect((await refund(whole)).body).toMatchObject({ remaining: 4 });
    expect((await limit("slow", key, { cost: 0 })).body).toMatchObject({ remaining: 2 });
    expect((await refund({ ...whole, idempotencyKey: "once more" })).body).toMatchObject({ remaining: 4 });
  });

  test("brings the units of isolates home first, so its answer is exact", async () => {
    const key = freshKey();
    await limit("hot", key, { cost: 100, idempotencyKey: "order" });
    for (let count = 0; count < 50; count += 1) await limit("hot", key);
    const back = await refund({ policy: "hot", key, units: 100, charge: "order" });
    expect(back.body).toMatchObject({ remaining: 99_950, source: "object" });
  });
});

describe("a refund that names no charge", () => {
  test("is a 403 that names the scope: else anyone may give back what others took", async () => {
    const key = freshKey();
    await limit("slow", key, { cost: 5 });
    const denied = await refund({ key, units: 5 }, TOKENS.limit);
    expect(denied).toMatchObject({
      status: 403,
      body: { detail: expect.stringContaining("no scope refund") },
    });
    expect((await limit("slow", key, { cost: 0 })).body).toMatchObject({ remaining: 0 });
  });

  test("needs no other scope than refund, which allows nothing else", async () => {
    const key = freshKey();
    await limit("slow", key, { cost: 5, idempotencyKey: "order" });
    const named = await refund({ key, units: 1, charge: "order" }, TOKENS.refund);
    expect(named).toMatchObject({ status: 403, body: { detail: expect.stringContaining("no scope limit") } });
    const body = { policy: "slow", key };
    expect((await call("/v1/limit", { token: TOKENS.refund, body })).status).toBe(403);
    expect((await refund({ key, units: 5 }, TOKENS.refund)).body).toMatchObject({ remaining: 5 });
  });

  test("is a 403 for a token with neither scope, before the body is looked at", async () => {
    expect((await refund({ key: "" }, TOKENS.admin)).body["detail"]).toMatch(
      "no scope limit (without charge: refund)",
    );
  });
});

describe("a limit that is refundable", () => {
  test("carries a charge that a refund can name, drawn or its own idempotency key", async () => {
    const key = freshKey();
    const drawn = await limit("log", key, { cost: 2, refundable: true });
    const other = await limit("log", key, { cost: 2, refundable: true });
    const named = await limit("log", key, { refundable: true, idempotencyKey: "order" });
    expect(named.body).toMatchObject({ charge: "order", remaining: 0 });
    expect(drawn.body["charge"]).toMatch(/^\S{16,}$/);
    expect(other.body["charge"]).not.toBe(drawn.body["charge"]);
    expect((await refund({ policy: "log", key, units: 9, charge: drawn.body["charge"] })).body).toMatchObject(
      {
        remaining: 2,
      },
    );
    expect((await refund({ policy: "log", key, units: 9, charge: "order" })).body).toMatchObject({
      remaining: 3,
    });
  });

  test("carries none when it is denied, takes nothing, or is not refundable", async () => {
    const key = freshKey();
    for (const fields of [{ cost: 6 }, { cost: 0 }, { cost: { requests: 0 } }])
      expect((await limit("slow", key, { ...fields, refundable: true })).body).not.toHaveProperty("charge");
    for (const fields of [{}, { idempotencyKey: "order" }, { refundable: false }])
      expect((await limit("slow", key, fields)).body).not.toHaveProperty("charge");
    await limit("shadow", key, { cost: 2 });
    const shadowed = await limit("shadow", key, { refundable: true });
    expect(shadowed.body).toMatchObject({ success: true, reason: "shadow" });
    expect(shadowed.body).not.toHaveProperty("charge");
  });

  test("is a 422 when the field is no boolean, and so is a charge that is no text", async () => {
    const key = freshKey();
    const asked = await limit("slow", key, { refundable: 1 });
    expect(asked).toMatchObject({ status: 422, body: { errors: [{ pointer: "/refundable" }] } });
    for (const charge of [7, "", "x".repeat(257), null]) {
      const called = await refund({ key, units: 1, charge });
      expect(called).toMatchObject({ status: 422, body: { errors: [{ pointer: "/charge" }] } });
    }
  });
});

test("over the service binding it is the same, and no token is needed for a refund without a charge", async () => {
  const loopback = exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> };
  const limiter = loopback.Limiter({ props: { policy: "slow" } });
  const key = freshKey();
  const { charge = "" } = await limiter.limit({ key, cost: 3, refundable: true });
  const back = { key, units: 3, charge, idempotencyKey: "back" };
  expect(await limiter.refund(back)).toMatchObject({ remaining: 5 });
  const again = async () => await limiter.refund({ ...back, idempotencyKey: "again" });
  const thrown = await again().catch((error: unknown) => error);
  expect(thrown).toMatchObject({ status: 404, code: "charge-not-found" });
  await limiter.limit({ key, cost: 3 });
  expect(await limiter.refund({ key, units: 2, idempotencyKey: "other" })).toMatchObject({ remaining: 4 });
});
