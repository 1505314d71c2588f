import { expect, test } from "vitest";
import { createMemoryLimiter } from "../../../package/memory.ts";
import { CONTRACT_POLICIES, describeContract } from "../../support/limiter-contract.ts";

describeContract("in memory", () => Promise.resolve(createMemoryLimiter({ policies: CONTRACT_POLICIES })));

test("a policy that is wrong is refused, and says what is wrong with it", () => {
  const policies = { api: { algorithm: "token-bucket", limit: 0.5, window: "1s" } };
  expect(() => createMemoryLimiter({ policies })).toThrow("limit is 0.5: must be an integer");
  const pooled = { api: { algorithm: "token-bucket", limit: 5, window: "1s", pool: "redis" } };
  expect(() => createMemoryLimiter({ policies: pooled })).toThrow("a limiter in memory has no pools");
});

test("time may be the test's own: the promised wait is exact", async () => {
  let nowMs = 1_000;
  const time = { nowMs: () => nowMs, after: () => () => undefined };
  const policies = { api: { algorithm: "token-bucket", limit: 3, window: "1s" } };
  await using limiter = createMemoryLimiter({ policies, policy: "api", time });
  for (let call = 0; call < 3; call += 1) await limiter.limit({ key: "a" });
  const { retryAfterMs } = await limiter.limit({ key: "a" });
  expect(retryAfterMs).toBe(334);
  nowMs += 333;
  expect(await limiter.limit({ key: "a" })).toMatchObject({ success: false });
  nowMs += 1;
  expect(await limiter.limit({ key: "a" })).toMatchObject({ success: true });
});

test("a lease ends with the block that has it", async () => {
  const limiter = createMemoryLimiter({ policies: CONTRACT_POLICIES, policy: "export" });
  {
    await using lease = await limiter.acquire({ key: "a", units: 2 });
    expect(lease.success).toBe(true);
    expect(await limiter.acquire({ key: "a" })).toMatchObject({ success: false });
  }
  expect(await limiter.acquire({ key: "a" })).toMatchObject({ success: true });
});

test("plans count as over HTTP: one for the joint checks of a key, and a refund whatever the key's plan is", async () => {
  const plans = { pro: { limit: 1_000 } };
  const policies = { day: { algorithm: "fixed-window", limit: 100, window: "24h", plans } };
  await using limiter = createMemoryLimiter({ policies, policy: "day" });
  await limiter.limit({ key: "a", cost: 50, idempotencyKey: "c" });
  await limiter.limit({ key: "a", plan: "pro" });
  const checks = [{ key: "a" }, { key: "a", plan: "pro" }];
  await expect(limiter.limitAll({ checks })).rejects.toThrow('checks.1.plan is "pro": must be ""');
  await limiter.refund({ key: "a", units: 50, charge: "c", idempotencyKey: "back" });
  expect(await limiter.peek({ key: "a" })).toMatchObject({ plan: "pro", remaining: 999 });
});
