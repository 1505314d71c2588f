import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { depth } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";
import { randomPlan, SlotsHistory, type SlotsFaults, type SlotsOutcome } from "./slots.ts";

const HISTORIES = depth(40, 300);
const PATIENT = { timeout: 900_000 };

// Each unanswered message is logged, and here there are many.
beforeAll(() => {
  for (const method of ["warn", "error"] as const)
    vi.spyOn(console, method).mockImplementation(() => undefined);
});
afterAll(() => void vi.restoreAllMocks());

async function simulate(first: number, histories: number, faults?: SlotsFaults) {
  const sum: Record<string, number> = {};
  for (let seed = first; seed < first + histories; seed += 1) {
    try {
      const outcome = await new SlotsHistory(randomPlan(seed, faults)).run();
      for (const [name, count] of Object.entries(outcome)) sum[name] = (sum[name] ?? 0) + Number(count);
    } catch (error) {
      throw new Error(`SEED=${seed} ${JSON.stringify(randomPlan(seed))}: ${String(error)}`, { cause: error });
    }
  }
  return sum as unknown as SlotsOutcome;
}

test(
  `in ${HISTORIES} random histories of isolates with slots no slot is leased twice, and none is lost`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("slots"), HISTORIES);
    console.log(sum);
    expect(sum.granted).toBeGreaterThan(100 * HISTORIES);
    expect(sum.own).toBeGreaterThan(20 * HISTORIES);
    expect(sum.renewed).toBeGreaterThan(HISTORIES);
  },
);
