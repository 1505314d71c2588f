import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { announcedSeed } from "../support/random.ts";
import { debitAtReservation, forgottenAtCrash, freeAtExpiry, shortenedWhenKept } from "./breakages.ts";
import { simulate } from "./run.ts";

const SCHEDULES = 100_000;
const PATIENT = { timeout: 900_000 };

// A message that is not answered in time is reported, and here there are many.
beforeAll(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterAll(() => void vi.restoreAllMocks());

test(
  `in ${SCHEDULES} random histories nothing is admitted over the bound, no unit is in two places, and every call is answered`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("simulation"), SCHEDULES);
    // It is worth nothing unless all of this happens, and often.
    expect(sum.calls).toBeGreaterThan(20 * SCHEDULES);
    expect(sum.admittedByIsolates).toBeGreaterThan(4 * SCHEDULES);
    expect(sum.admittedByObject).toBeGreaterThan(4 * SCHEDULES);
    expect(sum.denied).toBeGreaterThan(2 * SCHEDULES);
    expect(sum.degraded).toBeGreaterThan(SCHEDULES);
    expect(sum.crashes).toBeGreaterThan(SCHEDULES / 10);
  },
);

test.each([
  ["debiting units when they are reserved, and crediting what is left", debitAtReservation],
  ["taking unused units for free when a lifetime ends", freeAtExpiry],
  ["forgetting at a crash what is outstanding", forgottenAtCrash],
])("%s is found, by its bound alone", PATIENT, async (_, breakage) => {
  await expect(simulate(1, SCHEDULES, { ...breakage(), isBoundOnly: true })).rejects.toThrow(
    /SEED=\d+: .* units of \w+ over the bound/,
  );
});

test.each([
  ["debiting units when they are reserved, and crediting what is left", debitAtReservation],
  ["taking unused units for free when a lifetime ends", freeAtExpiry],
  ["forgetting at a crash what is outstanding", forgottenAtCrash],
  ["shortening the lifetime of units whose holder does not hear of it", shortenedWhenKept],
])("%s is found within 100 histories", async (_, breakage) => {
  await expect(simulate(1, 100, breakage())).rejects.toThrow(/SEED=\d+/);
});

test("a seed repeats a history", async () => {
  expect(await simulate(5, 50)).toEqual(await simulate(5, 50));
});
