import { exports } from "cloudflare:workers";
import { afterEach, describe, expect, test, vi } from "vitest";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { acquire, call, freshKey, idIn, limit, release, report, type Called } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const LATER_MS = Date.now() + 86_400_000;

afterEach(() => void vi.useRealTimers());

function force(policy: string, key: string, fields: Record<string, unknown> = {}): Promise<Called> {
  return limit(policy, key, { force: true, ...fields });
}

function setUsed(policy: string, key: string, body: unknown, token: string = TOKENS.full): Promise<Called> {
  return call(`/v1/policies/${policy}/keys/${key}`, { method: "PUT", body, token });
}

function bound(props?: unknown): Service<typeof Limiter> {
  const loopback = exports as unknown as {
    Limiter: (options: { props: unknown }) => Service<typeof Limiter>;
  };
  return loopback.Limiter({ props });
}

/** What a call throws. An RPC promise that is only half awaited would count as an unhandled rejection too. */
async function thrownBy(made: () => Promise<unknown>): Promise<unknown> {
  try {
    return await made();
  } catch (error) {
    return error;
  }
}

describe("a limit with force", () => {
  test("takes what is not there, and the next calls pay the debt", async () => {
    const key = freshKey();
    vi.useFakeTimers({ toFake: ["Date"], now: LATER_MS });
    expect((await force("brief", key, { cost: 2_500 })).body).toEqual({
      success: true,
      policy: "brief",
      key,
      limit: 1_000,
      remaining: 0,
      resetAfterMs: 2_500,
      retryAfterMs: 0,
      reason: "ok",
      source: "object",
      rules: [
        {
          name: "brief",
          success: true,
          limit: 1_000,
          remaining: 0,
          resetAfterMs: 2_500,
          retryAfterMs: 0,
          reason: "ok",
        },
      ],
    });
    const denied = { success: false, reason: "quota", retryAfterMs: 1_501 };
    expect((await limit("brief", key)).body).toMatchObject(denied);
    vi.setSystemTime(LATER_MS + 1_500);
    expect((await limit("brief", key)).body["success"]).toBe(false);
    vi.setSystemTime(LATER_MS + 1_501);
    expect((await limit("brief", key)).body["success"]).toBe(true);
  });

  test("is decided by the object also where isolates decide, and counts there at once", async () => {
    const key = freshKey();
    let used = 0;
    for (let source: unknown; source !== "isolate"; used += 1) ({ source } = (await limit("hot", key)).body);
    expect((await force("hot", key, { cost: 100_000 - used })).body).toMatchObject({
      source: "object",
      remaining: 0,
    });
    expect((await limit("hot", key)).body).toMatchObject({ success: false });
  });

  test("is charged once under an idempotency key, and its charge can be given back", async () => {
    const key = freshKey();
    const take = () => force("slow", key, { cost: 8, idempotencyKey: "penalty", refundable: true });
    const first = await take();
    expect(first.body).toMatchObject({ success: true, remaining: 0, charge: "penalty" });
    expect((await take()).body).toEqual(first.body);
    expect((await report("slow", key)).body).toMatchObject({ success: false });
    // The same words, but asked for: another request.
    expect((await limit("slow", key, { cost: 8, idempotencyKey: "penalty" })).status).toBe(409);
    const body = { policy: "slow", key, units: 6, charge: "penalty", idempotencyKey: "back" };
    expect((await call("/v1/refund", { body })).body).toMatchObject({ remaining: 3 });
  });

  test("takes of several rules what each is to give, and of a log too", async () => {
    const key = freshKey();
    const { body } = await force("hot-rules", key, { cost: { tokens: 1_000_001, requests: 0 } });
    expect(body["rules"]).toMatchObject([{ remaining: 100_000 }, { remaining: 0 }]);
    expect((await force("log", key, { cost: 6 })).body).toMatchObject({ success: true, remaining: 0 });
    expect((await limit("log", key)).body).toMatchObject({ success: false, reason: "quota" });
  });

  test("survives an eviction, debt and all", async () => {
    const key = freshKey();
    const object = objectOf("slow", key);
    await force("slow", key, { cost: 9 });
    await object.evict();
    const refund = { policy: "slow", key, units: 5, idempotencyKey: "back" };
    expect((await call("/v1/refund", { body: refund })).body).toMatchObject({ remaining: 1 });
  });

  test("needs the scope force or admin; force alone takes nothing without it", async () => {
    const key = freshKey();
    const body = { policy: "slow", key, force: true };
    const status = async (token: string, fields: object) =>
      (await call("/v1/limit", { token, body: { ...fields } })).status;
    expect(await status(TOKENS.limit, body)).toBe(403);
    const refused = await call("/v1/limit", { token: TOKENS.refund, body: { policy: "slow", key } });
    const detail = 'the token "refund" has no scope limit (with force: force or admin)';
    expect(refused).toMatchObject({ status: 403, body: { detail } });
    expect(await status(TOKENS.admin, body)).toBe(200);
    expect(await status(TOKENS.admin, { policy: "slow", key })).toBe(403);
    expect(await status(TOKENS.admin, { policy: "slow", key, force: false })).toBe(403);
    expect((await report("slow", key)).body).toMatchObject({ remaining: 4 });
    const forcing = bound({ scopes: ["force"] });
    expect(await forcing.limit({ policy: "slow", key, cost: 9, force: true })).toMatchObject({
      remaining: 0,
    });
    expect(await thrownBy(() => forcing.limit({ policy: "slow", key }))).toMatchObject({ status: 403 });
    expect(await thrownBy(() => forcing.peek({ policy: "slow", key }))).toMatchObject({ status: 403 });
  });

  test.each([
    ["a cost of 0", "slow", { cost: 0 }, "/cost"],
    ["a table of nothing", "slow", { cost: { requests: 0 } }, "/cost"],
    ["leased units", "export", {}, "/policy"],
    ["another word", "slow", { force: "yes" }, "/force"],
  ])("of %s is a 422", async (_, policy, fields, pointer) => {
    expect(await force(policy, freshKey(), fields)).toMatchObject({
      status: 422,
      body: { errors: [{ pointer }] },
    });
  });

  test("of more than can be counted is refused whole", async () => {
    const key = freshKey();
    const over = await force("slow", key, { cost: 1_000_000_000 });
    expect(over).toMatchObject({ status: 429, body: { type: "urn:weir:problem:bound-reached" } });
    expect(over.body["detail"]).toContain("there are 3474999 units");
    expect((await report("slow", key)).body).toMatchObject({ remaining: 5 });
  });
});

describe("setting what a key has used", () => {
  test("more or less than it was, answered as a look", async () => {
    const key = freshKey();
    await limit("slow", key, { cost: 4 });
    const set = await setUsed("slow", key, { used: 2 });
    expect(set).toMatchObject({ status: 200, body: { success: true, remaining: 3, outstanding: 0 } });
    expect(set.headers.get("ratelimit")).toContain('"slow";r=3');
    expect((await setUsed("slow", key, { used: 5 })).body).toMatchObject({ success: false, reason: "quota" });
    expect((await report("slow", key)).body).toMatchObject({ success: false });
    expect((await setUsed("slow", key, { used: 0 })).body).toMatchObject({ remaining: 5, resetAfterMs: 0 });
  });

  test("is stored, also when it is less than was stored", async () => {
    for (const policy of ["slow", "log", "ahead"]) {
      const key = freshKey();
      const object = objectOf(policy, key);
      const whole = Number(await object.remaining());
      await object.limit(4);
      await setUsed(policy, key, { used: 1 });
      await object.evict();
      const left = Number(await object.remaining());
      // Memory of a large limit may be ahead by 2 %.
      expect(left).toBeGreaterThanOrEqual(Math.floor(whole * (policy === "ahead" ? 0.97 : 1)) - 1);
      expect(left).toBeLessThanOrEqual(whole - 1);
      if (policy !== "ahead") expect(left).toBe(whole - 1);
    }
  });

  test("beyond the limit is a debt", async () => {
    const key = freshKey();
    vi.useFakeTimers({ toFake: ["Date"], now: LATER_MS });
    expect((await setUsed("brief", key, { used: 3_000 })).body).toMatchObject({ retryAfterMs: 2_001 });
  });

  test("leaves holds, leases and units of isolates apart", async () => {
    const key = freshKey();
    const held = await call("/v1/holds", { body: { policy: "slow", key, units: 2 } });
    expect((await setUsed("slow", key, { used: 1 })).body).toMatchObject({
      remaining: 2,
      holds: 1,
      outstanding: 2,
    });
    const settled = await call(`/v1/holds/${idIn(held)}/settle`, { body: { used: 2 } });
    expect(settled.body).toMatchObject({ remaining: 2 });
    const leased = await acquire("mixed", key);
    expect((await setUsed("mixed", key, { used: 3 })).body).toMatchObject({ leases: 1 });
    expect((await release(idIn(leased))).status).toBe(204);
  });

  test("by unit sets only what it names", async () => {
    const key = freshKey();
    await limit("hot-rules", key, { cost: { requests: 10, tokens: 20 } });
    const { body } = await setUsed("hot-rules", key, { used: { tokens: 500 } });
    expect(body["rules"]).toMatchObject([{ remaining: 99_990 }, { remaining: 999_500 }]);
  });

  test("over the binding, with the scope admin", async () => {
    const key = freshKey();
    expect(await bound().setUsed({ policy: "slow", key, used: 2 })).toMatchObject({ remaining: 3, holds: 0 });
    for (const scopes of [["limit"], ["force", "refund"]])
      expect(await thrownBy(() => bound({ scopes }).setUsed({ policy: "slow", key, used: 0 }))).toMatchObject(
        { status: 403 },
      );
    for (const token of [TOKENS.limit, TOKENS.refund])
      expect((await setUsed("slow", key, { used: 0 }, token)).status).toBe(403);
    expect((await report("slow", key)).body).toMatchObject({ remaining: 3 });
  });

  test.each([
    ["nothing", {}, "slow", "/used"],
    ["a negative number", { used: -1 }, "slow", "/used"],
    ["an unknown unit", { used: { tokens: 1 } }, "slow", "/used/tokens"],
    ["no unit at all", { used: {} }, "slow", "/used"],
    ["slots", { used: 1 }, "export", "/policy"],
    ["a policy that stands in the address", { used: 1, policy: "slow" }, "slow", "/policy"],
  ])("of %s is a 422", async (_, body, policy, pointer) => {
    expect(await setUsed(policy, freshKey(), body)).toMatchObject({
      status: 422,
      body: { errors: [{ pointer }] },
    });
  });
});
