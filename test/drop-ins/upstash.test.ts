import { Ratelimit as Theirs } from "@upstash/ratelimit";
import { Redis } from "@upstash/redis";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { memoryLimiter, manualClock } from "../../package/testing.ts";
import { Ratelimit } from "../../package/upstash.ts";
import { startRedis, type RedisServer } from "../../scripts/redis-server.ts";
import { startBridge, type Bridge } from "../../scripts/upstash-bridge.ts";

/** What programs call. */
type Called = Pick<Theirs, "limit" | "blockUntilReady" | "getRemaining" | "resetUsedTokens">;

const POLICIES = {
  window: { algorithm: "fixed-window", limit: 3, window: "1h" },
  bucket: { algorithm: "token-bucket", limit: 1, window: "1s" },
  open: { algorithm: "token-bucket", limit: 1, window: "1s", onFailure: "open" },
};

describe("beside the real one", () => {
  let server: RedisServer;
  let bridge: Bridge;
  beforeAll(async () => {
    server = await startRedis();
    bridge = await startBridge({ redisUrl: `redis://127.0.0.1:${server.port}`, token: "a-token" });
  });
  afterAll(async () => {
    await bridge.stop();
    await server.stop();
  });

  test("the same calls are answered with the same fields, and the same figures but for the instants", async () => {
    const theirs: Called = new Theirs({
      redis: redisOf(bridge.url),
      limiter: Theirs.fixedWindow(3, "1 h"),
      ephemeralCache: false,
    });
    const ours: Called = new Ratelimit({
      limiter: memoryLimiter({ policies: POLICIES }),
      policy: "window",
    });
    const play = async ({ limit, getRemaining, resetUsedTokens, blockUntilReady }: Called) => {
      const answers: object[] = [];
      const note = ({ reset, ...answer }: { reset: number }) => {
        const isSoon = Math.abs(reset - Date.now()) <= 3_600_000;
        const { pending, ...figures } = { pending: undefined, ...answer } as { pending: unknown };
        answers.push({ ...figures, isSoon, isPromised: pending instanceof Promise });
      };
      for (let call = 0; call < 4; call += 1) note(await limit("ann"));
      note(await getRemaining("ann"));
      await resetUsedTokens("ann");
      note(await limit("ann", { rate: 2, ip: "192.0.2.1" }));
      note(await getRemaining("ann"));
      note(await blockUntilReady("bob", 1_000));
      return answers;
    };
    const [there, here] = [await play(theirs), await play(ours)];
    // Theirs goes below 0 in places, and has fields that are undefined.
    expect(here).toEqual(JSON.parse(JSON.stringify(there)));
  });
});

/** A client whose scripts have no flag that only Upstash's own servers know: Redis refuses those. */
function redisOf(url: string): Redis {
  const options = { enableTelemetry: false, enableAutoPipelining: false };
  const redis = new Redis({ url, token: "a-token", ...options });
  const run = redis.eval.bind(redis) as (script: string, ...rest: never[]) => Promise<unknown>;
  const plain = (script: string, ...rest: never[]) =>
    run(script.replace(" flags=allow-key-locking", ""), ...rest);
  return Object.assign(redis, { eval: plain });
}

describe("blockUntilReady", () => {
  const start = () => {
    const clock = manualClock();
    const limiter = memoryLimiter({ policies: POLICIES, clock });
    return { clock, limiter, ratelimit: new Ratelimit({ limiter, policy: "bucket", time: clock }) };
  };

  test("waits for exactly as long as it takes", async () => {
    const { clock, ratelimit } = start();
    await ratelimit.limit("ann");
    const beganMs = clock.nowMs();
    const asked = ratelimit.blockUntilReady("ann", 5_000).then(({ success }) => [success, clock.nowMs()]);
    await clock.advance("4s");
    expect(await asked).toEqual([true, beganMs + 1_000]);
  });

  test("answers at once what could not come in time", async () => {
    const { clock, limiter, ratelimit } = start();
    await ratelimit.limit("ann");
    const denied = await ratelimit.blockUntilReady("ann", 999);
    expect(denied).toMatchObject({ success: false, reset: clock.nowMs() + 1_000 });
    limiter.fail();
    expect(await ratelimit.blockUntilReady("ann", 999)).toMatchObject({ success: false, reason: "timeout" });
  });

  test.each([
    [0, "0"],
    [-1, "-1"],
    [Number.NaN, "NaN"],
    [Infinity, "Infinity"],
    [undefined, "undefined"],
    ["5000", '"5000"'],
  ])("refuses a timeout that ends nothing, and takes nothing: %o", async (timeout, said) => {
    const { limiter, ratelimit } = start();
    const asked = ratelimit.blockUntilReady("ann", timeout as number);
    await expect(asked).rejects.toThrow(
      `timeout must be positive, and a finite number of milliseconds: it is ${said}`,
    );
    expect(limiter.calls).toEqual([]);
  });
});

test("reset is when a denied call passes, and when the quota is whole after an admitted one", async () => {
  const clock = manualClock();
  const policies = { two: { algorithm: "token-bucket", limit: 2, window: "2s" } };
  const limiter = memoryLimiter({ policies, clock });
  const { limit } = new Ratelimit({ limiter, policy: "two", time: clock });
  await limit("ann");
  expect(await limit("ann")).toMatchObject({ success: true, reset: clock.nowMs() + 2_000 });
  expect(await limit("ann")).toMatchObject({ success: false, reset: clock.nowMs() + 1_000 });
  // It never passes: what is known is when the quota is whole.
  expect(await limit("ann", { rate: 3 })).toMatchObject({ success: false, reset: clock.nowMs() + 2_000 });
});

test("when nobody could decide, the reason is timeout, and the policy says whether it passes", async () => {
  const limiter = memoryLimiter({ policies: POLICIES });
  limiter.fail();
  const answer = (policy: string) => new Ratelimit({ limiter, policy }).limit("ann");
  expect(await answer("bucket")).toMatchObject({ success: false, reason: "timeout" });
  expect(await answer("open")).toMatchObject({ success: true, reason: "timeout" });
});
