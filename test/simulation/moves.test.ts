import { expect, test } from "vitest";
import { depth, inDeepRuns } from "../support/depth.ts";
import { announcedSeed, seedOr } from "../support/random.ts";
import { BrokenLaw } from "./laws.ts";
import { MoveHistory, type MoveBreakage, type MoveOptions, type MoveOutcome } from "./moves.ts";

const HISTORIES = depth(8, 130);
const PATIENT = { timeout: 900_000 };

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

test(
  "the same of keys whose callers name now this plan, now that: none over the loosest",
  PATIENT,
  async () => {
    const sum = await play(announcedSeed("moves with plans"), HISTORIES, { hasPlans: true });
    expect(sum.moved).toBeGreaterThan(HISTORIES);
    expect(sum.planned).toBeGreaterThan(10 * HISTORIES);
  },
);

test("while nobody dies, every answer is that of an object whose keys never move", PATIENT, async () => {
  const sum = await play(announcedSeed("calm moves"), HISTORIES, { isCalm: true });
  console.info("calm moves", sum);
  expect(sum.moved).toBeGreaterThan(HISTORIES);
});

const text =
  (change: (text: string) => string) =>
  (answer: unknown): unknown =>
    typeof answer === "string" && answer.startsWith('{"nowMs"') ? change(answer) : answer;

const PLANTED: Record<string, MoveBreakage> = {
  "an object that forgets what it hands over before it has arrived": {
    object: ({ storage }, { departures }) => {
      const handOver = departures.handOver.bind(departures);
      departures.handOver = (asked, ...more) => {
        const handed = handOver(asked, ...more);
        for (const [index, { key }] of asked.keys.entries())
          if (typeof handed.keys[index] === "object") {
            storage.answers.removeAll(key);
            storage.remove(key);
            storage.moves.remove(key);
          }
        return handed;
      };
    },
  },
  "an object that answers before what it asked for is stored": {
    object: ({ residents }, { arrivals }) => {
      const take = arrivals.take.bind(arrivals);
      arrivals.take = async (policy, key) => {
        void take(policy, key).catch(() => undefined);
        await Promise.resolve();
        residents.add(key);
        return undefined;
      };
    },
  },
  "an object that goes on with what it has handed over": {
    object: ({ storage, residents }, { departures }) => {
      const handOver = departures.handOver.bind(departures);
      departures.handOver = (asked, ...more) => {
        const handed = handOver(asked, ...more);
        for (const { key } of asked.keys) {
          storage.moves.remove(key);
          residents.add(key);
        }
        return handed;
      };
    },
  },
  "an object that gives up a key which its version keeps": {
    answer: text((answer) => answer.replaceAll('"kept"', '"nothing"')),
  },
  "a key that is on its way and said not to be": {
    answer: text((answer) => answer.replaceAll('"busy"', '"nothing"')),
  },
  "an older copy that counts as a later one": {
    answer: text((answer) => answer.replaceAll(/"move":\d+/g, `"move":${2 ** 50}`)),
  },
  "units of isolates that are forgotten on the way": {
    answer: text((answer) => answer.replaceAll(/"ahead":\d+/g, '"ahead":0')),
  },
};

/** The first seed is shortly before a history that shows the fault. One fault is rare, the others are in 18 to 32. */
const FIRST_SEEDS: Readonly<Record<string, number>> = { "a key that is on its way and said not to be": 130 };

inDeepRuns.each(Object.entries(PLANTED))("%s is found", PATIENT, async (name, breakage) => {
  const found = await play(seedOr(FIRST_SEEDS[name] ?? 16), 3_000, { breakage }).then(
    () => undefined,
    (error: Error) => error,
  );
  expect(found?.cause).toBeInstanceOf(BrokenLaw);
  expect(found?.message).toMatch(/SEED=\d+.*over the bound/);
});
