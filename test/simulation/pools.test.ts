import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { depth, expectOften, inDeepRuns } from "../support/depth.ts";
import { type Pools, startPools } from "../support/pools.ts";
import { announcedSeed, seedOr } from "../support/random.ts";
import { BrokenLaw } from "./laws.ts";
import { BROKEN_REGIONS, BROKEN_SCRIPTS, brokenScript } from "./pools-breakages.ts";
import { simulatePools } from "./pools-run.ts";
import type { Breakage } from "./pools-schedule.ts";

// 200 take four seconds. In 250 every required event happens, most of them hundreds of times.
const HISTORIES = depth(15, 250);
// The rarest mistake is in one history of 120: one search of 10^10 misses it.
const MAX = 3_000;
const PATIENT = { timeout: 300_000 };

// Each unanswered message is logged, and here there are many.
beforeAll(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterAll(() => void vi.restoreAllMocks());

// One server for all: each search empties it, and a start takes as long as many histories.
let pools: Pools;
beforeAll(async () => void (pools = await startPools()));
afterAll(() => pools.stop());

test(
  `in ${HISTORIES} random histories of regions over one pool nothing is admitted or leased over the bound, no unit is in two places or lost for ever, and every call is answered`,
  PATIENT,
  async () => {
    const sum = await simulatePools(pools, announcedSeed("pools"), HISTORIES);
    const least = {
      calls: 20,
      poolCalls: 15,
      admitted: 5,
      byIsolates: 1,
      byRegions: 4,
      direct: 3,
      denied: 0.5,
      degraded: 1,
      holds: 0.3,
      once: 0.3,
      refunds: 0.2,
      uncharged: 0.01,
      leases: 0.5,
      renewed: 0.01,
      crash: 0.1,
      kill: 0.05,
      pause: 0.1,
      vanish: 0.05,
      forget: 0.05,
      restore: 0.05,
    };
    expectOften(sum, HISTORIES, least, ["calls", "poolCalls", "direct", "degraded"]);
  },
);

/** The first history that breaks a law; its seed alone breaks the same law again. */
async function expectFound(breakage: Breakage): Promise<void> {
  const search = (first: number, histories: number) =>
    simulatePools(pools, first, histories, breakage).then(
      () => undefined,
      (error: Error) => error,
    );
  const found = await search(seedOr(breakage.firstSeed ?? 1), MAX);
  expect(found?.cause).toBeInstanceOf(BrokenLaw);
  const { seed = "" } = /SEED=(?<seed>\d+)/.exec(found?.message ?? "")?.groups ?? {};
  expect((await search(Number(seed), 1))?.message).toBe(found?.message);
}

inDeepRuns.each(BROKEN_SCRIPTS)("found at the pool: %s", PATIENT, async (name) => {
  await expectFound(brokenScript(name));
});

inDeepRuns.each(Object.entries(BROKEN_REGIONS))("found in a region: %s", PATIENT, async (_, breakage) => {
  await expectFound(breakage);
});

inDeepRuns("a seed repeats a history", PATIENT, async () => {
  expect(await simulatePools(pools, 5, 4)).toEqual(await simulatePools(pools, 5, 4));
});
