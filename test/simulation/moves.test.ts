import { expect, test } from "vitest";
import { depth } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";
import { MoveHistory, type MoveOptions, type MoveOutcome } from "./moves.ts";

const HISTORIES = depth(400, 10_000);
const PATIENT = { timeout: 900_000 };

/** @throws Error that names the seed of the first history that broke a law */
async function play(first: number, histories: number, options?: MoveOptions): Promise<MoveOutcome> {
  const sum: Record<string, number> = {};
  for (let seed = first; seed < first + histories; seed += 1)
    try {
      for (const [name, count] of Object.entries(await new MoveHistory(seed, options).run()))
        sum[name] = (sum[name] ?? 0) + Number(count);
    } catch (error) {
      throw new Error(`SEED=${seed}: ${String(error)}`, { cause: error });
    }
  return sum as unknown as MoveOutcome;
}

test(
  "nothing is admitted over the bound while keys move, whoever dies and whatever is lost",
  PATIENT,
  async () => {
    const sum = await play(announcedSeed("moves"), HISTORIES);
    console.info("moves", sum);
    expect(sum.moved).toBeGreaterThan(HISTORIES);
  },
);

test("while nobody dies, every answer is that of an object whose keys never move", PATIENT, async () => {
  const sum = await play(announcedSeed("calm moves"), HISTORIES, { isCalm: true });
  console.info("calm moves", sum);
  expect(sum.moved).toBeGreaterThan(HISTORIES);
});
