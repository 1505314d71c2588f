/** Each row of docs/migrating/rate-limiter-flexible.md, beside the real one, at the same instants. */
import {
  BurstyRateLimiter,
  RateLimiterMemory,
  RateLimiterQueue,
  RateLimiterRes,
  RateLimiterUnion,
} from "rate-limiter-flexible";
import { parse as parseToml } from "smol-toml";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { createLimiter } from "../../package/client.ts";
import { manualClock, memoryLimiter } from "../../package/testing.ts";
import { readPages, runExample } from "../support/docs.ts";

const PAGE = "docs/migrating/rate-limiter-flexible.md";
/** It links the recipe of this page. */
const RECIPE_PAGE = "docs/holds-and-rules.md";
const pages = readPages();
const fencesOf = (page: string) => pages.find(({ path }) => path === page)?.fences ?? [];
const [fences, ofRecipe] = [fencesOf(PAGE), fencesOf(RECIPE_PAGE)];
/** The policies of both pages, all of them. */
const PAGE_POLICIES = Object.assign(
  {},
  ...[...fences, ...ofRecipe]
    .filter(({ language }) => language === "toml")
    .map(({ code }) => (parseToml(code) as { vars: { POLICIES: object } }).vars.POLICIES),
) as Record<string, object>;
const POLICIES = {
  ...PAGE_POLICIES,
  window: { algorithm: "fixed-window", limit: 5, window: "15m", align: "first" },
  countless: { algorithm: "credits", limit: 5 },
  evenly: { algorithm: "leaky-bucket", limit: 5, window: "5s", burst: 5 },
  queue: { algorithm: "fixed-window", limit: 1, window: "1s", align: "first", maxWait: "10s" },
  bursty: { algorithm: "token-bucket", limit: 2, window: "1s", burst: 7 },
  hour: { algorithm: "fixed-window", limit: 1, window: "1h", align: "first" },
  day: { algorithm: "fixed-window", limit: 9, window: "1d", align: "first" },
  both: {
    rules: {
      hour: { algorithm: "fixed-window", limit: 1, window: "1h", align: "first" },
      day: { algorithm: "fixed-window", limit: 9, window: "1d", align: "first" },
    },
  },
};

beforeEach(
  () => void vi.useFakeTimers({ toFake: ["Date", "setTimeout", "clearTimeout"], now: 1_800_000_123_456 }),
);
afterEach(() => void vi.useRealTimers());

function start() {
  const clock = manualClock(Date.now());
  const limiter = memoryLimiter({ policies: POLICIES, clock });
  /** Moves both clocks. */
  const advance = async (ms: number) => {
    await vi.advanceTimersByTimeAsync(ms);
    await clock.advance(ms);
  };
  return { clock, limiter, advance };
}

type Theirs = Pick<RateLimiterMemory, "consume">;

/** What theirs answers, whether it resolves or rejects. */
async function consumed(theirs: Theirs, key = "k", points = 1) {
  try {
    return { success: true, res: await theirs.consume(key, points) };
  } catch (error) {
    if (!(error instanceof RateLimiterRes)) throw error;
    return { success: false, res: error };
  }
}

test("points, duration, consume, remainingPoints, consumedPoints and msBeforeNext", async () => {
  const { limiter, advance } = start();
  const theirs = new RateLimiterMemory({ points: 5, duration: 900 });
  const [seen, expected] = [[] as unknown[][], [] as unknown[][]];
  for (let call = 0; call < 24; call += 1) {
    const { success, res } = await consumed(theirs);
    const used = Math.min(res.consumedPoints, 5);
    expected.push([success, res.remainingPoints, used, res.msBeforeNext]);
    const ours = await limiter.limit({ policy: "window", key: "k" });
    const { limit, remaining = NaN, resetAfterMs, retryAfterMs } = ours;
    seen.push([ours.success, remaining, limit - remaining, ours.success ? resetAfterMs : retryAfterMs]);
    await advance(100_000);
  }
  expect(seen).toEqual(expected);
  expect(seen.filter((each) => each[0] === false).length).toBeGreaterThan(5);
});

test("a duration of 0 is credits: what is consumed stays consumed", async () => {
  const { limiter, advance } = start();
  const theirs = new RateLimiterMemory({ points: 5, duration: 0 });
  for (let call = 0; call < 7; call += 1) {
    const { success } = await limiter.limit({ policy: "countless", key: "k" });
    expect(success).toBe((await consumed(theirs)).success);
    expect(success).toBe(call < 5);
    await advance(400 * 86_400_000);
  }
});

test("get, delete, reward, penalty and keyPrefix", async () => {
  const { limiter } = start();
  const theirs = new RateLimiterMemory({ points: 5, duration: 900, keyPrefix: "window" });
  const key = { policy: "window", key: "k" };
  const compare = async () => {
    const remaining = (await theirs.get("k"))?.remainingPoints ?? 5;
    const ours = await limiter.peek(key);
    expect(Math.max(0, ours.remaining ?? NaN)).toBe(remaining);
    return remaining;
  };
  await theirs.consume("k", 3);
  await limiter.limit({ ...key, cost: 3 });
  expect(await compare()).toBe(2);
  await theirs.reward("k", 2);
  await limiter.refund({ ...key, units: 2, idempotencyKey: "once" });
  expect(await compare()).toBe(4);
  await theirs.penalty("k", 9);
  await limiter.limit({ ...key, cost: 5, force: true });
  await limiter.limit({ ...key, cost: 4, force: true });
  expect(await compare()).toBe(0);
  await theirs.delete("k");
  await limiter.reset(key);
  expect(await compare()).toBe(5);
  const other = new RateLimiterMemory({ points: 5, duration: 900, keyPrefix: "day" });
  await theirs.consume("k", 1);
  await limiter.limit(key);
  expect(await other.get("k")).toBeNull();
  expect((await limiter.peek({ policy: "day", key: "k" })).remaining).toBe(9);
});

describe("blockDuration", () => {
  /** How many attempts are admitted in each minute, of one that is made every minute. */
  async function admitted(
    policy: string,
    options: ConstructorParameters<typeof RateLimiterMemory>[0],
    minutes: number,
  ) {
    const { limiter, advance } = start();
    const theirs = new RateLimiterMemory(options);
    const [seen, expected] = [[] as boolean[], [] as boolean[]];
    for (let minute = 0; minute < minutes; minute += 1) {
      expected.push((await consumed(theirs)).success);
      seen.push((await limiter.limit({ policy, key: "k" })).success);
      await advance(60_000);
    }
    return { seen, expected };
  }

  test("of at least the duration: blockFor and maxBlock, also for one that goes on through several blocks", async () => {
    const { seen, expected } = await admitted(
      "login",
      { points: 5, duration: 900, blockDuration: 3_600 },
      300,
    );
    expect(seen).toEqual(expected);
    expect(seen.filter(Boolean).length).toBeGreaterThan(20);
  });

  test("below the duration theirs begins anew after each block, and so does a window of its length", async () => {
    const options = { points: 10, duration: 90 * 86_400, blockDuration: 3_600 };
    const { limiter, advance } = start();
    const theirs = new RateLimiterMemory(options);
    for (let hour = 0; hour < 8; hour += 1) {
      const [seen, expected] = [[] as boolean[], [] as boolean[]];
      for (let call = 0; call < 15; call += 1) {
        expected.push((await consumed(theirs)).success);
        seen.push((await limiter.limit({ policy: "guesses", key: "k" })).success);
      }
      expect(seen).toEqual(expected);
      expect(seen.filter(Boolean)).toHaveLength(10);
      await advance(3_600_000);
    }
  });

  test("the second rule bounds what theirs never does", async () => {
    const { limiter, advance } = start();
    let count = 0;
    for (let hour = 0; hour < 24; hour += 1) {
      for (let call = 0; call < 15; call += 1)
        if ((await limiter.limit({ policy: "guesses", key: "k" })).success) count += 1;
      await advance(3_600_000);
    }
    expect(count).toBe(100);
  });
});

test("execEvenly: all that fit are admitted, and after the first each is delayed", async () => {
  const { limiter } = start();
  const theirs = new RateLimiterMemory({ points: 5, duration: 5, execEvenly: true });
  const begun = Date.now();
  const delays: number[] = [];
  const calls = Array.from({ length: 5 }, () =>
    theirs.consume("k").then(() => delays.push(Date.now() - begun)),
  );
  await vi.advanceTimersByTimeAsync(10_000);
  await Promise.all(calls);
  const ours: number[] = [];
  for (let call = 0; call < 5; call += 1) {
    const { success, delayMs = 0 } = await limiter.limit({ policy: "evenly", key: "k" });
    expect(success).toBe(true);
    ours.push(delayMs);
  }
  expect([delays.filter((ms) => ms === 0).length, ours.filter((ms) => ms === 0).length]).toEqual([1, 1]);
  expect(Math.max(...delays, ...ours)).toBeLessThanOrEqual(5_000);
});

test("RateLimiterQueue: each waits for its turn, until the same instant", async () => {
  const { limiter, advance, clock } = start();
  const queue = new RateLimiterQueue(new RateLimiterMemory({ points: 1, duration: 1 }));
  const [theirs, ours] = [[] as number[], [] as number[]];
  const begun = clock.nowMs();
  const calls = [0, 1, 2].flatMap(() => [
    queue.removeTokens(1, "k").then(() => theirs.push(Date.now() - begun)),
    limiter
      .limit({ policy: "queue", key: "k", waitMs: 10_000 })
      .then(({ success }) => success && ours.push(clock.nowMs() - begun)),
  ]);
  for (let step = 0; step < 40; step += 1) await advance(100);
  await Promise.all(calls);
  expect(ours).toEqual([0, 1_000, 2_000]);
  expect(theirs.map((ms) => Math.round(ms / 1_000))).toEqual([0, 1, 2]);
});

test("RateLimiterUnion takes from those that admit; several rules and limitAll take all or nothing", async () => {
  const { limiter } = start();
  const hour = new RateLimiterMemory({ points: 1, duration: 3_600, keyPrefix: "hour" });
  const day = new RateLimiterMemory({ points: 9, duration: 86_400, keyPrefix: "day" });
  const union = new RateLimiterUnion(hour, day);
  await union.consume("k");
  await expect(union.consume("k")).rejects.toBeDefined();
  expect((await day.get("k"))?.remainingPoints).toBe(7);
  const checks = [
    { policy: "hour", key: "k" },
    { policy: "day", key: "k" },
  ];
  expect((await limiter.limitAll({ checks })).success).toBe(true);
  expect((await limiter.limitAll({ checks })).success).toBe(false);
  expect((await limiter.peek({ policy: "day", key: "k" })).remaining).toBe(8);
  await limiter.limit({ policy: "both", key: "k" });
  await limiter.limit({ policy: "both", key: "k" });
  const { rules } = await limiter.peek({ policy: "both", key: "k" });
  expect(rules.map(({ name, remaining }) => [name, remaining])).toEqual([
    ["hour", 0],
    ["day", 8],
  ]);
});

test("BurstyRateLimiter: as many at once, and the rate afterwards", async () => {
  const { limiter, advance } = start();
  const theirs = new BurstyRateLimiter(
    new RateLimiterMemory({ points: 2, duration: 1 }),
    new RateLimiterMemory({ keyPrefix: "burst", points: 5, duration: 600 }),
  );
  for (const least of [7, 2, 2]) {
    const counts = [0, 0];
    for (let call = 0; call < 10; call += 1) {
      if (
        await theirs.consume("k").then(
          () => true,
          () => false,
        )
      )
        counts[0] = (counts[0] ?? 0) + 1;
      if ((await limiter.limit({ policy: "bursty", key: "k" })).success) counts[1] = (counts[1] ?? 0) + 1;
    }
    expect(counts).toEqual([least, least]);
    await advance(1_000);
  }
});

test("insuranceLimiter: what the store cannot decide is decided here", async () => {
  vi.useRealTimers();
  // Nothing listens on this port.
  await using limiter = createLimiter({ url: "http://127.0.0.1:1", token: "none", onFailure: "open" });
  expect(await limiter.limit({ policy: "api", key: "k" })).toMatchObject({
    success: true,
    reason: "degraded",
  });
});

test("denied points count there, and here only with countDenied", async () => {
  const { limiter } = start();
  const theirs = new RateLimiterMemory({ points: 5, duration: 900 });
  const key = { policy: "window", key: "k" };
  await theirs.consume("k", 4);
  await limiter.limit({ ...key, cost: 4 });
  await expect(theirs.consume("k", 2)).rejects.toBeDefined();
  expect((await limiter.limit({ ...key, cost: 2 })).success).toBe(false);
  expect((await consumed(theirs)).success).toBe(false);
  expect((await limiter.limit(key)).success).toBe(true);
});

describe("only failures count", () => {
  type Login = (address: string, isRight: () => Promise<boolean>) => Promise<Response>;

  /** The recipe as it stands on the page. */
  async function recipe(): Promise<{ login: Login; limiter: ReturnType<typeof memoryLimiter> }> {
    const { limiter } = start();
    const code = ofRecipe.find((fence) => fence.code.includes("limiter.hold("))?.code ?? "";
    const { login } = (await runExample("failures", code, limiter)) as { login: Login };
    return { login, limiter };
  }

  test("of 50 wrong passwords at once 5 are checked; with theirs all 50 are", async () => {
    let checked = 0;
    const isRight = async () => {
      checked += 1;
      await new Promise((done) => setImmediate(done));
      return false;
    };
    const theirs = new RateLimiterMemory({ points: 5, duration: 900 });
    const guess = async () => {
      if (((await theirs.get("k"))?.remainingPoints ?? 5) === 0) return;
      if (!(await isRight())) await theirs.consume("k").catch(() => undefined);
    };
    await Promise.all(Array.from({ length: 50 }, guess));
    expect(checked).toBe(50);
    checked = 0;
    const { login } = await recipe();
    const answers = await Promise.all(Array.from({ length: 50 }, () => login("k", isRight)));
    expect(checked).toBe(5);
    expect(answers.map(({ status }) => status).filter((status) => status === 429)).toHaveLength(45);
  });

  test("right passwords count nothing, and wrong ones as long as the window", async () => {
    const { login, limiter } = await recipe();
    for (let attempt = 0; attempt < 20; attempt += 1)
      expect((await login("k", async () => true)).status).toBe(200);
    expect((await limiter.peek({ policy: "failures", key: "k" })).remaining).toBe(5);
    for (let attempt = 0; attempt < 5; attempt += 1)
      expect((await login("k", async () => false)).status).toBe(401);
    expect((await login("k", async () => true)).status).toBe(429);
  });
});
