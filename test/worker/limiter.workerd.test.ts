import { exports } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { Limiter } from "../../worker/limiter.ts";
import { freshKey } from "../support/limiter.ts";

/** The entrypoint as a service binding with these props would have it: over RPC. */
function bound(props?: unknown): Service<typeof Limiter> {
  const loopback = exports as unknown as {
    Limiter: (options: { props: unknown }) => Service<typeof Limiter>;
  };
  return loopback.Limiter({ props });
}

/** What a call throws. An RPC promise that is only half awaited would count as an unhandled rejection too. */
async function thrownBy(call: () => Promise<unknown>): Promise<unknown> {
  try {
    return await call();
  } catch (error) {
    return error;
  }
}

test("limit, peek, refund and reset answer as over HTTP", async () => {
  const limiter = bound();
  const key = freshKey();
  expect(await limiter.limit({ policy: "slow", key, cost: 3 })).toMatchObject({
    success: true,
    policy: "slow",
    key,
    remaining: 2,
    source: "object",
  });
  expect(await limiter.limit({ policy: "slow", key, cost: 3 })).toMatchObject({
    success: false,
    reason: "quota",
  });
  expect(await limiter.peek({ policy: "slow", key })).toMatchObject({
    success: true,
    remaining: 2,
    outstanding: 0,
  });
  const refund = { policy: "slow", key, units: 1, idempotencyKey: "r" };
  expect(await limiter.refund(refund)).toMatchObject({ remaining: 3 });
  expect(await limiter.refund(refund)).toMatchObject({ remaining: 3 });
  await limiter.reset({ policy: "slow", key });
  expect(await limiter.peek({ policy: "slow", key })).toMatchObject({ remaining: 5 });
  expect((await limiter.policies()).policies.map(({ name }) => name)).toContain("slow");
});

test("with props that name a policy, a key is enough; a call may still name another", async () => {
  const limiter = bound({ policy: "slow" });
  const key = freshKey();
  expect(await limiter.limit({ key })).toMatchObject({ success: true, policy: "slow", remaining: 4 });
  // @ts-expect-error a caller with looser types
  expect(await limiter.limit({ policy: undefined, key })).toMatchObject({ policy: "slow", remaining: 3 });
  expect(await limiter.limit({ policy: "shared", key })).toMatchObject({ policy: "shared", remaining: 4 });
});

test("bad input throws what HTTP would say", async () => {
  const limiter = bound();
  const error = await thrownBy(() => limiter.limit({ policy: "slow", key: "", cost: -1 }));
  expect(error).toMatchObject({
    name: "LimiterError",
    status: 422,
    code: "not-allowed",
    message: expect.stringContaining("cost is -1: must be an integer from 0"),
    errors: [{ pointer: "/key" }, { pointer: "/cost" }],
  });
  expect(await thrownBy(() => limiter.limit({ key: "a" }))).toMatchObject({
    status: 422,
    errors: [{ pointer: "/policy" }],
  });
  expect(await thrownBy(() => limiter.limit({ policy: "nowhere", key: "a" }))).toMatchObject({ status: 404 });
  // @ts-expect-error a caller without types
  expect(await thrownBy(() => limiter.limit())).toMatchObject({ status: 422 });
});

test("the same idempotency key for another request throws a conflict", async () => {
  const limiter = bound();
  const key = freshKey();
  await limiter.limit({ policy: "slow", key, idempotencyKey: "a" });
  expect(
    await thrownBy(() => limiter.limit({ policy: "slow", key, cost: 2, idempotencyKey: "a" })),
  ).toMatchObject({
    status: 409,
  });
});

test("props that say something else are refused, with what they may say", async () => {
  expect(await thrownBy(() => bound({ polcy: "slow" }).limit({ key: "a" }))).toMatchObject({
    message: expect.stringContaining("polcy is not a field: there are policy"),
  });
});
