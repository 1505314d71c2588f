/** Three regions over one Redis: the bound in every interval, hardly less, and what the pool is asked for. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { depth } from "../support/depth.ts";
import {
  excessOf,
  hammer,
  newTally,
  pooled,
  shareOfBound,
  type Rate,
  type Tally,
} from "../support/pool-load.ts";
import { startWorld, type World } from "../support/regions.ts";

const CONTINENTS = ["EU", "NA", "AS"];
const RATES = {
  small: { limit: 20, windowMs: 1_000, burst: 20 },
  bucket: { limit: 300, windowMs: 1_000, burst: 300 },
  large: { limit: 100_000, windowMs: 1_000, burst: 100_000 },
  log: { limit: 300, windowMs: 3_000 },
} satisfies Record<string, Rate>;
const POLICIES = {
  one: pooled({ limit: 1, windowMs: 300, burst: 1 }),
  "one-log": pooled({ limit: 1, windowMs: 300 }),
  month: pooled({ limit: 1_000, windowMs: 2_592_000_000, burst: 1_000 }),
  ...Object.fromEntries(Object.entries(RATES).map(([name, rate]) => [name, pooled(rate)])),
  slots: {
    algorithm: "concurrency",
    limit: 4,
    ttl: "20s",
    maxWait: "30s",
    pool: "redis",
    deadlineMs: 4_000,
  },
};
/** Loops that ask, in each region. */
const LOADS = { even: [8, 8, 8], skewed: [20, 3, 1] };
// Two windows; then what is left at the end is too much of it all to say how much is admitted.
const LOAD_MS = depth(2_000, 8_000);
const MIN = depth({ small: 0.7, bucket: 0.8, log: 0.8 }, { small: 0.95, bucket: 0.98, log: 0.98 });

let world: World;
beforeAll(async () => {
  world = await startWorld(POLICIES, CONTINENTS);
});
afterAll(() => world.stop());

async function load(policy: string, workers: readonly number[], key: string): Promise<Tally> {
  const tally = newTally();
  const untilMs = Date.now() + LOAD_MS;
  const loads = world.regions.map((region, index) =>
    hammer(
      () => region.client,
      workers[index] ?? 0,
      { policy, key },
      tally,
      () => Date.now() > untilMs,
    ),
  );
  await Promise.all(loads);
  return tally;
}

// They mostly wait.
test.concurrent.each(["one", "one-log"])(
  "%s: whoever waits as told is admitted, once a window",
  async (policy) => {
    const { client } = world.regions[0] as World["regions"][number];
    let admitted = 0;
    for (let call = 0; call < depth(10, 20); call += 1) {
      const { body } = await client.limit(policy, "told");
      if (body["success"] === true) admitted += 1;
      // Nobody else is here, so no wait is longer than the window.
      expect(body["retryAfterMs"]).toBeLessThanOrEqual(300);
      await new Promise((done) => setTimeout(done, Number(body["retryAfterMs"])));
    }
    expect(admitted).toBeGreaterThanOrEqual(depth(4, 9));
  },
);

test("all that a lone region and its isolate hold is there for a large cost", async () => {
  const { client } = world.regions[1] as World["regions"][number];
  for (let call = 0; call < 6; call += 1) await client.limit("month", "large");
  const { body } = await client.limit("month", "large", { cost: 994 });
  expect(body).toMatchObject({ success: true, remaining: 0 });
});

describe.each(depth(Object.entries(LOADS).slice(1), Object.entries(LOADS)))("%s load", (name, workers) => {
  // Of the small one a part is what is left in it at the end: a few of some hundred units.
  test.each(["small", "bucket", "log"] as const)(`%s: never over, and hardly less`, async (policy) => {
    let share = 0;
    // A machine that is busy with something else leaves gaps in one load; what is lost by design is lost in each.
    for (let attempt = 0; attempt < 3 && share < MIN[policy]; attempt += 1) {
      const tally = await load(policy, workers, `${name}-${attempt}`);
      expect(excessOf(tally, RATES[policy])).toBe(0);
      share = Math.max(share, shareOfBound(tally, RATES[policy]));
    }
    expect(share).toBeGreaterThanOrEqual(MIN[policy]);
  });

  test("far below the limit nobody is denied, and Redis is hardly asked", async () => {
    const before = world.bridge.commands();
    const { answers, admitted } = await load("large", workers, name);
    expect(Object.keys(answers).filter((answer) => answer.endsWith("denies"))).toEqual([]);
    expect(answers["isolate admits"]).toBeGreaterThan(0.9 * admitted.length);
    expect(world.bridge.commands() - before).toBeLessThan(0.05 * admitted.length);
  });
});
