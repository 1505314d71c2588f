import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { depth } from "../support/depth.ts";
import { announcedSeed, seedOr } from "../support/random.ts";
import { forgottenAtCrash, freeAtExpiry } from "./breakages.ts";
import { ClientSchedule, type ClientBreakage, type ClientOutcome } from "./clients.ts";
import { Database } from "./database.ts";
import { BrokenLaw } from "./laws.ts";

// Clients admit 6.3 calls per history with a deviation of 9.0: 80 histories would have below 4 each for one seed in 300.
const SCHEDULES = depth(200, 2_500);
const MAX = 60_000;
const PATIENT = { timeout: 900_000 };

// Each unanswered message is logged, and here there are many.
beforeAll(() => {
  for (const method of ["warn", "error"] as const)
    vi.spyOn(console, method).mockImplementation(() => undefined);
});
afterAll(() => void vi.restoreAllMocks());

async function simulate(first: number, schedules: number, breakage?: () => ClientBreakage) {
  const database = new Database();
  const sum: Record<string, number> = {};
  for (let seed = first; seed < first + schedules; seed += 1) {
    try {
      const outcome = await new ClientSchedule(seed, database, breakage?.()).run();
      for (const [name, count] of Object.entries(outcome)) sum[name] = (sum[name] ?? 0) + Number(count);
    } catch (error) {
      throw new Error(`SEED=${seed}: ${String(error)}`, { cause: error });
    }
  }
  return sum as unknown as ClientOutcome;
}

test(
  `in ${SCHEDULES} random histories of clients that hold units far away, die, sleep and have their clocks set, nothing is over the bound`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("clients"), SCHEDULES);
    // The test is meaningless unless all of this happens often.
    expect(sum.calls).toBeGreaterThan(20 * SCHEDULES);
    expect(sum.admittedByClients).toBeGreaterThan(4 * SCHEDULES);
    expect(sum.admittedByObject).toBeGreaterThan(4 * SCHEDULES);
    expect(sum.admittedByWorker).toBeGreaterThan(SCHEDULES / 4);
    expect(sum.degraded).toBeGreaterThan(SCHEDULES / 4);
    expect(sum.sleeps).toBeGreaterThan(SCHEDULES / 4);
  },
);

test.each<[name: string, breakage: () => ClientBreakage, firstSeed?: number]>([
  [
    "counting lifetimes by a clock that stands still while the machine sleeps",
    () => ({ clockOf: bySteady, faults: ["sleep"] }),
    // One history in 6,000 shows it: the search begins shortly before one.
    6_885,
  ],
  ["taking unused units for free when a lifetime ends", freeAtExpiry],
  ["forgetting at a crash what is outstanding", forgottenAtCrash],
])("%s is found", PATIENT, async (_, breakage, firstSeed = 1) => {
  const found = await simulate(seedOr(firstSeed), MAX, breakage).then(
    () => undefined,
    (error: Error) => error,
  );
  expect(found?.cause).toBeInstanceOf(BrokenLaw);
  expect(found?.message).toMatch(/units of \w+ over the bound/);
});

const bySteady = (_: () => number, steadyMs: () => number) => () => Math.floor(1e6 + steadyMs());
