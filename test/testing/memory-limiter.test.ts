/** What tests of others stand on: the limits are the real ones, and time is where the test has put it. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  assertAsked,
  assertNotAsked,
  LimiterError,
  manualClock,
  memoryLimiter,
  unlimited,
} from "../../package/testing.ts";
import { CONTRACT_POLICIES, describeContract } from "../support/limiter-contract.ts";

describeContract("in memory, in the hands of a test", () =>
  Promise.resolve(memoryLimiter({ policies: CONTRACT_POLICIES })),
);

const POLICIES = {
  bucket: { algorithm: "token-bucket", limit: 7, window: "1s" },
  log: { algorithm: "sliding-log", limit: 3, window: "10s" },
  window: { algorithm: "fixed-window", limit: 4, window: "1m" },
  gcra: { algorithm: "gcra", limit: 5, window: "3s", burst: 2 },
};

describe("the clock", () => {
  test("what was promised is exact: a millisecond sooner is denied, and then it passes", async () => {
    const calls = fc.array(fc.record({ cost: fc.integer({ min: 1, max: 2 }), ms: fc.nat(2_000) }), {
      minLength: 1,
      maxLength: 12,
    });
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...Object.keys(POLICIES)), calls, async (policy, all) => {
        const clock = manualClock();
        const limiter = memoryLimiter({ policies: POLICIES, clock });
        for (const { cost, ms } of all) {
          const asked = { policy, key: "a", cost };
          const { success, retryAfterMs } = await limiter.limit(asked);
          if (!success && typeof retryAfterMs === "number") {
            await clock.advance(retryAfterMs - 1);
            expect(await limiter.limit(asked)).toMatchObject({ success: false, retryAfterMs: 1 });
            await clock.advance(1);
            expect(await limiter.limit(asked)).toMatchObject({ success: true });
          }
          await clock.advance(ms);
        }
      }),
      { numRuns: 60 },
    );
  });

  test("who waits is served in turn, each at its own instant", async () => {
    const clock = manualClock(0);
    const policies = { slow: { algorithm: "token-bucket", limit: 1, window: "1s", maxWait: "10s" } };
    const limiter = memoryLimiter({ policies, clock });
    const served: [string, number][] = [];
    for (const name of ["a", "b", "c"])
      void limiter.limit({ policy: "slow", key: "k", waitMs: 5_000 }).then(({ success }) => {
        if (success) served.push([name, clock.nowMs()]);
      });
    await clock.advance("5s");
    expect(served).toEqual([
      ["a", 0],
      ["b", 1_000],
      ["c", 2_000],
    ]);
  });

  test("leases and holds expire by it", async () => {
    const clock = manualClock();
    const policies = {
      ...POLICIES,
      jobs: { algorithm: "concurrency", limit: 1, ttl: "10s", maxWait: "1m" },
    };
    const limiter = memoryLimiter({ policies, clock });
    await limiter.acquire({ policy: "jobs", key: "k" });
    const next = limiter.acquire({ policy: "jobs", key: "k", waitMs: 20_000 });
    await clock.advance("9s");
    expect(await limiter.peek({ policy: "jobs", key: "k" })).toMatchObject({ leases: 1, queueLength: 1 });
    await clock.advance("1s");
    expect(await next).toMatchObject({ success: true, waitedMs: 10_000 });
    await limiter.hold({ policy: "log", key: "k", units: 3, ttlMs: 5_000 });
    expect(await limiter.limit({ policy: "log", key: "k" })).toMatchObject({ success: false });
    await clock.advance("15s");
    expect(await limiter.limit({ policy: "log", key: "k" })).toMatchObject({ success: true });
  });

  test("what is no duration is refused", async () => {
    await expect(manualClock().advance("soon")).rejects.toThrow(
      'by is "soon": must be whole milliseconds, or a duration',
    );
    await expect(manualClock().advance(-1)).rejects.toThrow(
      "by is -1: must be whole milliseconds, or a duration",
    );
  });
});

test("a repeated call has its first answer for 24 hours, however long its key has been untouched", async () => {
  const policies = { day: { algorithm: "fixed-window", limit: 1_000, window: "1 day" } };
  const KEPT_MS = 24 * 3_600_000;
  const gap = fc.oneof(fc.integer({ min: 1, max: 6 }), fc.integer({ min: 60, max: 1_200 }));
  const steps = fc.array(fc.record({ minutes: gap, name: fc.constantFrom("a", "b"), holds: fc.boolean() }), {
    minLength: 2,
    maxLength: 12,
  });
  await fc.assert(
    fc.asyncProperty(steps, async (all) => {
      const clock = manualClock();
      const limiter = memoryLimiter({ policies, clock });
      const made: { readonly untilMs: number; readonly first: unknown; readonly again: () => unknown }[] = [];
      for (const [index, { minutes, name, holds }] of all.entries()) {
        const key = { policy: "day", key: name };
        const { hold } = holds ? await limiter.hold({ ...key, units: 5 }) : {};
        const call =
          hold === undefined
            ? () => limiter.limit({ ...key, cost: 6, idempotencyKey: `call ${index}` })
            : () => limiter.settle({ id: hold.id, used: 2 });
        made.push({ untilMs: clock.nowMs() + KEPT_MS, first: await call(), again: call });
        await clock.advance(`${minutes}m`);
        for (const { untilMs, first, again } of made)
          if (clock.nowMs() < untilMs) expect(await again()).toEqual(first);
      }
    }),
    { numRuns: 60 },
  );
});

describe("a limiter that fails when it is told to", () => {
  const policies = {
    closed: { algorithm: "token-bucket", limit: 5, window: "1s" },
    open: { algorithm: "token-bucket", limit: 5, window: "1s", onFailure: "open" },
  };

  test("decides as onFailure says, and takes nothing", async () => {
    const limiter = memoryLimiter({ policies, policy: "closed" });
    limiter.fail();
    const degraded = { reason: "degraded", source: "fallback", limit: 5, rules: [] };
    expect(await limiter.limit({ policy: "closed", key: "a" })).toEqual({
      ...degraded,
      policy: "closed",
      key: "a",
      success: false,
    });
    expect(await limiter.limit({ key: "a" })).toMatchObject({ ...degraded, policy: "closed" });
    expect(await limiter.limit({ policy: "open", key: "a" })).toMatchObject({ ...degraded, success: true });
    const checks = [
      { policy: "open", key: "a" },
      { policy: "closed", key: "a" },
    ];
    expect(await limiter.limitAll({ checks })).toMatchObject({
      success: false,
      decisions: [{ success: true }, { success: false }],
    });
    await expect(limiter.reset({ policy: "open", key: "a" })).rejects.toMatchObject({ status: 503 });
    limiter.recover();
    expect(await limiter.limit({ policy: "open", key: "a" })).toMatchObject({ remaining: 4, reason: "ok" });
  });

  test("admits what a limit in onFailure does, by the test's clock, and refuses what a limiter does", async () => {
    const clock = manualClock();
    const search = {
      algorithm: "token-bucket",
      limit: 100,
      window: "1s",
      onFailure: { limit: 2, window: "1s" },
    };
    const limiter = memoryLimiter({ policies: { ...policies, search }, policy: "search", clock });
    limiter.fail();
    const degraded = { reason: "degraded", source: "fallback", limit: 2 };
    expect(await limiter.limit({ key: "a" })).toMatchObject({ ...degraded, success: true, remaining: 1 });
    expect(await limiter.limit({ key: "a", cost: 2 })).toMatchObject({ success: false, retryAfterMs: 500 });
    await clock.advance("500ms");
    expect(await limiter.limitAny({ checks: [{ key: "a", cost: 2 }] })).toMatchObject({ chosen: 0 });
    expect(await limiter.hold({ key: "b", units: 1 })).toMatchObject({ success: false, limit: 100 });
    expect(await limiter.limit({ key: "b", force: true })).toMatchObject({ success: false, limit: 100 });
    const checks = [{ key: "b" }];
    expect(await limiter.limitAll({ checks, atomic: false })).toMatchObject({ success: true });
    expect(await limiter.limitAll({ checks })).toMatchObject({ success: false });
    await expect(limiter.limit({ policy: "serch", key: "a" })).rejects.toMatchObject({
      status: 404,
      message: expect.stringContaining("did you mean search?"),
    });
    const refused = { status: 422, message: expect.stringContaining("cost is -1: must be") };
    await expect(limiter.limit({ policy: "open", key: "a", cost: -1 })).rejects.toMatchObject(refused);
    const negative = limiter.limitAll({ checks: [{ policy: "open", key: "a", cost: -1 }] });
    await expect(negative).rejects.toMatchObject({ status: 422 });
  });

  test("throws what it is given", async () => {
    const limiter = unlimited();
    limiter.fail(new Error("no wire"));
    await expect(limiter.limit({ policy: "any", key: "a" })).rejects.toThrow("no wire");
    expect(limiter.calls).toMatchObject([{ method: "limit", error: { message: "no wire" } }]);
  });
});

describe("what was asked", () => {
  test("is remembered with what was answered, and found by any part of it", async () => {
    const limiter = memoryLimiter({ policies: POLICIES });
    await limiter.limit({ policy: "log", key: "a", cost: 2 });
    await limiter.limit({ policy: "log", key: "b" });
    await expect(limiter.limit({ policy: "nowhere", key: "b" })).rejects.toThrow(LimiterError);
    expect(limiter.asked("limit", { policy: "log" })).toHaveLength(2);
    expect(limiter.asked("limit", { key: "a" })[0]?.answer).toMatchObject({ success: true, remaining: 1 });
    assertAsked(limiter, "limit", { key: "a", cost: 2 });
    assertAsked(limiter, "limit", { key: "b" }, 2);
    assertNotAsked(limiter, "refund");
    expect(() => assertAsked(limiter, "limit", { key: "a" }, 2)).toThrow(
      'expected 2 calls limit({"key":"a"}), and 1 were made; all calls:\n  limit({"policy":"log","key":"a","cost":2})',
    );
    expect(() => assertNotAsked(limiter, "limit")).toThrow("and 3 were made");
    limiter.forget();
    expect(limiter.calls).toEqual([]);
  });

  test("the end of a block is a release", async () => {
    const limiter = unlimited();
    {
      await using grant = await limiter.acquire({ policy: "jobs", key: "a" });
      expect(grant.success).toBe(true);
      assertNotAsked(limiter, "release");
    }
    assertAsked(limiter, "release", {}, 1);
  });
});

test("without limits everything passes, and is answered in the shape of a real answer", async () => {
  const real = memoryLimiter({
    policies: {
      ...POLICIES,
      any: { algorithm: "unlimited" },
      jobs: { algorithm: "concurrency", limit: 9 },
    },
  });
  const none = unlimited();
  const shape = (value: object) => Object.keys(value).toSorted();
  const asked = { policy: "any", key: "a" };
  expect(await none.limit({ ...asked, cost: 1_000 })).toEqual({
    ...(await real.limit({ ...asked, cost: 1_000 })),
    source: "isolate",
  });
  const jobs = { policy: "jobs", key: "a" };
  expect(shape(await none.acquire(jobs))).toEqual(shape(await real.acquire(jobs)));
  expect(shape(await none.peek(jobs))).toEqual(shape(await real.peek(jobs)));
  const held = { policy: "bucket", key: "a", units: 2 };
  expect(shape(await none.hold(held))).toEqual(shape(await real.hold(held)));
});
