import { Database } from "./database.ts";
import { Schedule, type Breakage, type Outcome } from "./schedule.ts";

/**
 * Runs schedules by seed. Each gets a new breakage, which has state, so that the seed alone repeats a
 * history.
 * @throws Error that names the seed of the first that broke a law
 */
export async function simulate(
  firstSeed: number,
  schedules: number,
  breakage?: () => Breakage,
): Promise<Outcome> {
  const database = new Database();
  const sum: Record<string, number> = {};
  for (let seed = firstSeed; seed < firstSeed + schedules; seed += 1) {
    try {
      const outcome = await new Schedule(seed, database, breakage?.()).run();
      for (const [name, count] of Object.entries(outcome)) sum[name] = (sum[name] ?? 0) + count;
    } catch (error) {
      throw new Error(`SEED=${seed}: ${error instanceof Error ? error.message : String(error)}`, {
        cause: error,
      });
    }
  }
  return sum as unknown as Outcome;
}
