import { exports } from "cloudflare:workers";
import { expect, test } from "vitest";
import { createLimiter } from "../../../package/client.ts";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { freshKey } from "../../support/limiter.ts";

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

test("a field that is undefined was left out, whether there is such a field or not", async () => {
  const [limiter, key] = [bound({ policy: "slow" }), freshKey()];
  const none = { nobodysField: undefined, idempotencyKey: undefined, region: undefined };
  const answers = [
    await limiter.limit({ key, ...none, cost: undefined } as never),
    await limiter.limit({ key, ...none, idempotencyKey: "a" } as never),
    await limiter.peek({ key, ...none, idempotencyKey: undefined, waitFor: undefined } as never),
  ];
  expect(answers.map(({ remaining }) => remaining)).toEqual([4, 3, 3]);
  const { hold } = await limiter.hold({ key, ...none, units: 1, ttlMs: undefined } as never);
  await limiter.cancel({ id: hold?.id ?? "", ...none });
  const checks = [{ key, nobodysField: undefined, cost: undefined }];
  expect(await limiter.limitAll({ ...none, checks } as never)).toMatchObject({ success: true });
});

test("a client reads each refusal where of an error only the text arrives, and none is an outage", async () => {
  const forbidding = bound({ scopes: ["limit", "refund"], policies: ["slow"], maxCallsAtOnce: 5 });
  // So `wrangler dev` passes on an error of a worker in another process.
  const service = new Proxy(
    forbidding as unknown as Record<string, (...given: unknown[]) => Promise<unknown>>,
    {
      get:
        (target, name: string) =>
        (...given: unknown[]) =>
          target[name]?.(...given).catch((error: unknown) => {
            throw new Error(String(error));
          }),
    },
  );
  const limiter = createLimiter({ service: service as never, onFailure: "open" });
  const call = { policy: "slow", key: freshKey(), idempotencyKey: "once" };
  expect(await limiter.limit(call)).toMatchObject({ success: true, reason: "ok" });
  const refund = { policy: "slow", key: "k", units: 1, idempotencyKey: "r" };
  const refusals: [status: number, code: string, text: string, make: () => Promise<unknown>][] = [
    [409, "idempotency-key-reused", "another request: ", () => limiter.limit({ ...call, cost: 2 })],
    [
      403,
      "forbidden",
      "may not use this policy",
      () => limiter.limit({ policy: "api", key: "k", waitMs: 1 }),
    ],
    [422, "not-allowed", "a concurrency rule", () => limiter.acquire({ policy: "slow", key: "k" })],
    [422, "not-allowed", "not allowed: cost is -1", () => limiter.limit({ ...call, cost: -1 })],
    [422, "not-allowed", "cost is a function", () => limiter.limit({ ...call, cost: (() => 1) as never })],
    [404, "charge-not-found", "no such charge", () => limiter.refund({ ...refund, charge: "charge_a" })],
  ];
  for (const [status, code, text, make] of refusals) {
    const message = expect.stringContaining(text) as string;
    expect(await thrownBy(make)).toMatchObject({ name: "LimiterError", status, code, message });
  }
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

test("a call without an argument is bad input too, whichever it is", async () => {
  const limiter = bound() as unknown as Record<string, (argument?: unknown) => Promise<unknown>>;
  const methods = [
    "limit",
    "limitAll",
    "limitAny",
    "refund",
    "hold",
    "settle",
    "cancel",
    "acquire",
    "renew",
    "release",
  ];
  for (const method of [...methods, "peek", "reset"])
    for (const argument of [undefined, null, "a", [], 1]) {
      const thrown = await thrownBy(() => limiter[method]?.(argument) ?? Promise.resolve());
      expect({ method, argument, thrown }).toMatchObject({ thrown: { name: "LimiterError", status: 422 } });
    }
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

test("limitAll takes all or nothing, and props name the policy of checks that name none", async () => {
  const [one, other] = [freshKey(), freshKey()];
  const checks = [
    { key: one, cost: 2 },
    { policy: "log", key: other },
  ];
  expect(await bound({ policy: "slow" }).limitAll({ checks })).toMatchObject({
    success: true,
    decisions: [
      { policy: "slow", key: one, remaining: 3 },
      { policy: "log", key: other, remaining: 4 },
    ],
  });
  const never = await bound({ policy: "slow" }).limitAll({ checks: [...checks, { key: one, cost: 6 }] });
  expect(never.success).toBe(false);
  expect(await bound().peek({ policy: "slow", key: one })).toMatchObject({ remaining: 3 });
});

test("limitAny charges the first check that admits, and props name the policy of checks that name none", async () => {
  const [one, other] = [freshKey(), freshKey()];
  const checks = [
    { key: one, cost: 3 },
    { policy: "log", key: other },
  ];
  const limiter = bound({ policy: "slow" });
  expect(await limiter.limitAny({ checks })).toMatchObject({ chosen: 0, decisions: [{ remaining: 2 }] });
  expect(await limiter.limitAny({ checks })).toMatchObject({
    success: true,
    chosen: 1,
    decisions: [
      { policy: "slow", key: one, success: false },
      { policy: "log", key: other, remaining: 4 },
    ],
  });
  expect(await bound().peek({ policy: "slow", key: one })).toMatchObject({ remaining: 2 });
});

test("hold, settle and cancel answer as over HTTP, and an unknown hold throws", async () => {
  const limiter = bound({ policy: "slow" });
  const key = freshKey();
  const [first, second] = [await limiter.hold({ key, units: 2 }), await limiter.hold({ key, units: 2 })];
  expect(second).toMatchObject({ success: true, remaining: 1, hold: { units: 2 } });
  expect(await limiter.settle({ id: first.hold?.id ?? "", used: 1 })).toMatchObject({ remaining: 2 });
  await limiter.cancel({ id: second.hold?.id ?? "" });
  expect(await limiter.peek({ key })).toMatchObject({ remaining: 4, holds: 0 });
  const missing = await thrownBy(() => bound().cancel({ id: `${first.hold?.id}` }));
  expect(missing).toMatchObject({ name: "LimiterError", status: 404, code: "hold-not-found" });
});

test("a detached lease is renewed and released by its id, and then throws", async () => {
  const limiter = bound({ policy: "export" });
  const key = freshKey();
  const grant = await limiter.acquire({ key, units: 2, ttlMs: 5_000, detached: true });
  expect(grant).toMatchObject({ success: true, waitedMs: 0, lease: { expiresAfterMs: 5_000 } });
  const id = grant.lease?.id ?? "";
  expect(await limiter.renew({ id, ttlMs: 9_000 })).toMatchObject({ id, expiresAfterMs: 9_000 });
  expect(await limiter.acquire({ key })).toMatchObject({ success: false, reason: "quota" });
  await limiter.release({ id });
  const missing = await thrownBy(() => bound().release({ id }));
  expect(missing).toMatchObject({ name: "LimiterError", status: 404, code: "lease-not-found" });
});

test("a grant is given up by disposing of it, and the next waiter has it", async () => {
  const limiter = bound({ policy: "export" });
  const key = freshKey();
  const grant = await limiter.acquire({ key, units: 2 });
  const waiting = limiter.acquire({ key, units: 2, waitMs: 15_000, detached: true });
  while ((await limiter.peek({ key })).queueLength !== 1);
  (grant as unknown as Disposable)[Symbol.dispose]();
  const next = await waiting;
  expect(next).toMatchObject({ success: true, reason: "ok" });
  const idle = limiter.peek({ key, waitFor: "idle", waitMs: 15_000 });
  await limiter.release({ id: next.lease?.id ?? "" });
  expect(await idle).toMatchObject({ leases: 0 });
});

test("a lease that a reset ends before its caller has it is acquired anew", async () => {
  const limiter = bound({ policy: "export" });
  for (let round = 0; round < 20; round += 1) {
    const key = freshKey();
    const calls = [limiter.acquire({ key, detached: true }), limiter.reset({ key })] as const;
    expect(await calls[0]).toMatchObject({ success: true, lease: { expiresAfterMs: expect.any(Number) } });
    await calls[1];
  }
});

test("bad acquires throw what HTTP would say", async () => {
  const call = { policy: "export", key: "a", waitMs: 20_001 };
  expect(await thrownBy(() => bound().acquire(call))).toMatchObject({
    status: 422,
    errors: [{ pointer: "/waitMs", detail: expect.stringContaining("the policy's maxWait") }],
  });
  const unknown = { policy: "export", key: "a", detach: true } as unknown as typeof call;
  expect(await thrownBy(() => bound().acquire(unknown))).toMatchObject({ status: 422 });
});
