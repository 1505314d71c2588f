/** What regions do when Redis, or the way to it, fails: the bound in every interval, and a named outcome for each call. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { depth } from "../support/depth.ts";
import { eventually } from "../support/eventually.ts";
import { excessOf, hammer, newTally, pooled, type Rate, type Tally } from "../support/pool-load.ts";
import { announcedSeed, seededRandom } from "../support/random.ts";
import { startWorld, type World } from "../support/regions.ts";
import type { Fault } from "../support/unreliable-http.ts";

const RATE: Rate = { limit: 300, windowMs: 1_000, burst: 200 };
const LOG: Rate = { limit: 200, windowMs: 1_000 };
const BRIEF = { deadlineMs: 600 };
const POLICIES = {
  bucket: pooled(RATE, BRIEF),
  log: pooled(LOG, BRIEF),
  open: pooled(RATE, { ...BRIEF, onFailure: "open" }),
  local: pooled(
    { limit: 60, windowMs: 60_000, burst: 60 },
    { ...BRIEF, onFailure: "local", localShare: 0.25 },
  ),
  slots: {
    algorithm: "concurrency",
    limit: 4,
    ttl: "2s",
    maxTtl: "3s",
    maxWait: "10s",
    pool: "redis",
    deadlineMs: 600,
  },
};
const CONTINENTS = ["EU", "NA", "AS"];
// Each phase is longer than the deadline of 600 ms, so calls are denied for want of an answer in all of them.
const BEFORE_MS = depth(300, 1_000);
const FAULT_MS = depth(1_000, 3_000);
const AFTER_MS = depth(800, 1_500);
const KILLS = depth(2, 4);
/** Callers of each policy in each region, and their pauses: together they always ask for more than there is. */
const [CALLERS, PAUSE_MS] = depth([2, 8], [4, 0]);
const random = seededRandom(announcedSeed("pool faults"));

let world: World;
beforeAll(async () => {
  world = await startWorld(POLICIES, CONTINENTS);
});
afterAll(() => world.stop());

/** Loads a bucket and a log in all regions while something happens to them, and expects both bounds. */
async function underLoad(key: string, happens: (bucket: Tally) => Promise<void>): Promise<void> {
  const tallies = { bucket: newTally(), log: newTally() };
  let isOver = false;
  const loads = CONTINENTS.flatMap((_, index) => {
    const client = () => (world.regions[index] as World["regions"][number]).client;
    return (["bucket", "log"] as const).map((policy) =>
      hammer(client, CALLERS, { policy, key }, tallies[policy], () => isOver, PAUSE_MS),
    );
  });
  await sleep(BEFORE_MS);
  await happens(tallies.bucket);
  await sleep(AFTER_MS);
  isOver = true;
  await Promise.all(loads);
  expect(excessOf(tallies.bucket, RATE)).toBe(0);
  expect(excessOf(tallies.log, LOG)).toBe(0);
}

/** Waits for a call that is denied for want of Redis, which may take longer than the fault on a slow machine. */
const untilDenied = ({ answers }: Tally) =>
  eventually(() => expect(answers["fallback denies"]).toBeGreaterThan(0));

/** Calls that were admitted after the last fault: it works again. */
async function expectService(policy: string, key: string): Promise<void> {
  for (const { client } of world.regions)
    await expect
      .poll(async () => (await client.limit(policy, key)).body["success"], { timeout: 10_000 })
      .toBe(true);
}

const FAULTS: Record<string, readonly [fault: Fault, probability: number]> = {
  "carried out and the reply lost": [{ kind: "lose-reply" }, 0.4],
  "never answered": [{ kind: "hang-reply" }, 0.3],
};
/** Others of these kinds: a gross break is found by those above. */
const MORE_FAULTS: typeof FAULTS = {
  "delayed beyond the deadline": [{ kind: "delay-request", ms: 900 }, 0.4],
  "carried out twice": [{ kind: "duplicate" }, 0.6],
  "delayed on the way": [{ kind: "delay-request", ms: 150 }, 0.5],
  "delayed on the way back": [{ kind: "delay-reply", ms: 150 }, 0.5],
  "answered beyond every lifetime": [{ kind: "delay-reply", ms: 4_000 }, 0.3],
  lost: [{ kind: "lose-request" }, 0.4],
};

describe.each(Object.entries(depth(FAULTS, { ...FAULTS, ...MORE_FAULTS })))(
  "calls to Redis are %s",
  (name, [fault, probability]) => {
    test("and no interval has more than the bound", async () => {
      await underLoad(name, async () => {
        world.network.setFault(fault, probability);
        await sleep(FAULT_MS);
        world.network.setFault({ kind: "pass" });
      });
      await expectService("bucket", name);
    });
  },
);

test("Redis is paused, and no interval has more than the bound", async () => {
  await underLoad("paused", async (bucket) => {
    world.redis.process.kill("SIGSTOP");
    await sleep(FAULT_MS);
    await untilDenied(bucket);
    world.redis.process.kill("SIGCONT");
  });
  await expectService("bucket", "paused");
});

test("Redis is killed and comes back empty, and no interval has more than the bound", async () => {
  await underLoad("emptied", async (bucket) => {
    await world.restartRedis();
    await sleep(FAULT_MS);
    await world.restartRedis(() => untilDenied(bucket));
  });
  await expectService("bucket", "emptied");
});

test("regions are killed and come back, and no interval has more than the bound", async () => {
  await underLoad("killed", async () => {
    for (let kill = 0; kill < KILLS; kill += 1) {
      await world.restartRegion(Math.floor(random() * CONTINENTS.length));
      await sleep(300 * random());
    }
  });
  await expectService("bucket", "killed");
});
