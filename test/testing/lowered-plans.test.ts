import fc from "fast-check";
import { expect, test } from "vitest";
import { manualClock, memoryLimiter } from "../../package/testing.ts";
import { depth } from "../support/depth.ts";

const WINDOW_MS = 10_000;
const PLANS = { own: 20, middle: 60, large: 1_000 };
const plan = fc.constantFrom(...(Object.keys(PLANS) as (keyof typeof PLANS)[]));
const call = fc.record({
  op: fc.constantFrom("hold", "limit", "settle", "wait"),
  plan,
  share: fc.integer({ min: 1, max: 20 }),
  which: fc.nat(5),
  ms: fc.nat(3_000),
});

test("whatever plans are named while units are held, a bucket that shrinks is empty and not in debt", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(call, { maxLength: 14 }), async (calls) => {
      const clock = manualClock();
      const [middle, large] = [{ limit: PLANS.middle }, { limit: PLANS.large }];
      const bucket = {
        algorithm: "token-bucket",
        limit: PLANS.own,
        window: "10s",
        plans: { middle, large },
      };
      const limiter = memoryLimiter({ policies: { bucket }, clock });
      const of = (name: string) => ({ policy: "bucket", key: "k", plan: name === "own" ? "" : name });
      const holds: { id: string; units: number }[] = [];
      const settle = async ({ id, units }: { id: string; units: number }) =>
        limiter.settle({ id, used: units });
      for (const { op, plan: name, share, which, ms } of calls) {
        const units = Math.max(1, Math.floor((PLANS[name] * share) / 20));
        if (op === "wait") await clock.advance(ms);
        if (op === "limit") await limiter.limit({ ...of(name), cost: units });
        if (op === "settle") for (const ended of holds.splice(which, 1)) await settle(ended);
        if (op !== "hold") continue;
        const { hold } = await limiter.hold({ ...of(name), units, ttlMs: 3_600_000 });
        if (hold !== undefined) holds.push({ id: hold.id, units });
      }
      await limiter.limit(of("own"));
      for (const each of holds) await settle(each);
      const { retryAfterMs } = await limiter.limit(of("own"));
      expect(retryAfterMs).toBeLessThanOrEqual(WINDOW_MS / PLANS.own);
      await limiter.close();
    }),
    { numRuns: depth(150, 5_000) },
  );
});
