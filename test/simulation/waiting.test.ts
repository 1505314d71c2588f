import { afterAll, beforeAll, test, vi } from "vitest";
import { depth, expectOften } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";
import { Database } from "./database.ts";
import { WaitingSchedule } from "./waiting.ts";

// Calls leave 0.69 times per history with a deviation of 0.89: 100 histories would have below 0.45 each for one seed in 300.
const SCHEDULES = depth(25, 600);

// Each unanswered message is logged, and here there are many.
beforeAll(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterAll(() => void vi.restoreAllMocks());

test(`in ${SCHEDULES} random histories nobody passes who waits, no isolate is granted what they wait for, and no bound is passed`, async () => {
  const database = new Database();
  const sum: Record<string, number> = {};
  const first = announcedSeed("waiting");
  for (let seed = first; seed < first + SCHEDULES; seed += 1) {
    const outcome = await new WaitingSchedule(seed, database).run().catch((error: Error) => {
      throw new Error(`SEED=${seed}: ${error.message}`, { cause: error });
    });
    for (const [name, count] of Object.entries(outcome)) sum[name] = (sum[name] ?? 0) + Number(count);
  }
  const least = { waited: 0.5, refused: 0.5, left: 0.45, admittedByIsolates: 0.5, deniedBehind: 0.5 };
  expectOften(sum, SCHEDULES, least, ["waited", "refused", "deniedBehind"]);
}, 900_000);
