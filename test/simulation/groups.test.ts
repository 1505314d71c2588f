import { expect, test } from "vitest";
import { depth, inDeepRuns } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";
import { sharedByGroups, type GroupsLoad } from "./groups.ts";

const PATIENT = { timeout: 600_000 };
const ISOLATES = 8;
const LIMIT = depth(500, 1_000);
/** In 6 s the figures of a few seeds keep twice the distance from the bounds that they differ by. */
const SECONDS = depth(6, 9);
/** Units a second that hungry groups ask for together. */
const HUNGRY = depth(2, 3) * LIMIT;

const equal = (count: number, units: number) => Array.from({ length: count }, () => units / count);
/** Of the first group many times the limit, of the others 0.8 of their shares. */
const besideFlood = (count: number) => [depth(3, 10) * LIMIT, ...equal(count, 0.8 * LIMIT).slice(1)];

/** Jain's index of what groups of equal demand are admitted: 1 is all the same. */
function jain(parts: readonly number[]): number {
  const sum = parts.reduce((all, part) => all + part, 0);
  return sum ** 2 / (parts.length * parts.reduce((all, part) => all + part ** 2, 0));
}

function shared(load: Partial<GroupsLoad> & Pick<GroupsLoad, "asked">) {
  return sharedByGroups({
    limit: LIMIT,
    isolates: ISOLATES,
    seconds: SECONDS,
    seed: announcedSeed("groups"),
    ...load,
  });
}

test.each(depth([4], [1, 2, 40]))(
  "%i hungry groups have the same, and all of the limit is used",
  PATIENT,
  async (count) => {
    const { admitted, used, over } = await shared({ asked: equal(count, HUNGRY) });
    expect(over).toBe(0);
    expect(used).toBeGreaterThan(0.98);
    expect(jain(admitted)).toBeGreaterThan(0.99);
  },
);

test.each(depth([6], [2, 40]))(
  "a flood takes nothing from %i groups within their parts, whose calls isolates decide",
  PATIENT,
  async (count) => {
    const { admitted, used, over } = await shared({ asked: besideFlood(count) });
    expect(over).toBe(0);
    expect(used).toBeGreaterThan(0.98);
    expect(Math.min(...admitted.slice(1))).toBeGreaterThan(0.999);
  },
);

inDeepRuns(
  "groups that move to another isolate take their parts along: what the one before had is little",
  PATIENT,
  async () => {
    for (const movesEachMs of [300, 1_000]) {
      const { admitted } = await shared({ asked: besideFlood(20), movesEachMs });
      expect(Math.min(...admitted.slice(1))).toBeGreaterThan(0.999);
    }
    const { admitted, messages } = await shared({
      limit: 1_000,
      asked: [4_000, 190, 190, 190],
      movesEachMs: 3_000,
      seconds: 9,
    });
    expect(Math.min(...admitted.slice(1))).toBeGreaterThan(0.999);
    // Holders of different groups do not divide what there is among them: they would ask at 0.36 of the calls.
    expect(messages).toBeLessThan(0.32);
  },
);

test("hot groups are decided in isolates: below the limit a message is for many calls", PATIENT, async () => {
  for (const count of depth([2], [1, 2])) {
    const { admitted, messages } = await shared({ limit: 5_000, asked: equal(count, 2_500) });
    expect(Math.min(...admitted)).toBe(1);
    expect(messages).toBeLessThan(0.1);
  }
});

inDeepRuns(
  "the same of clients in processes: who shares has the same, and hot groups are decided there",
  PATIENT,
  async () => {
    const areProcesses = true;
    const hungry = await shared({ areProcesses, asked: equal(4, HUNGRY) });
    expect(hungry.over).toBe(0);
    expect(hungry.used).toBeGreaterThan(0.98);
    expect(jain(hungry.admitted)).toBeGreaterThan(0.99);
    const { admitted, over } = await shared({ areProcesses, asked: besideFlood(4) });
    expect(over).toBe(0);
    expect(Math.min(...admitted.slice(1))).toBeGreaterThan(0.999);
    const calm = await shared({ areProcesses, limit: 5_000, asked: equal(2, 2_500) });
    expect(Math.min(...calm.admitted)).toBe(1);
    expect(calm.messages).toBeLessThan(0.1);
  },
);

inDeepRuns.each(["gcra", "sliding-log", "fixed-window", "sliding-window-counter"])(
  "the same of %s, far away",
  PATIENT,
  async (algorithm) => {
    const load = { policy: { algorithm }, messageMs: 40 };
    const hungry = await shared({ ...load, asked: equal(4, HUNGRY) });
    expect(hungry.used).toBeGreaterThan(0.93);
    expect(jain(hungry.admitted)).toBeGreaterThan(0.99);
    const { admitted } = await shared({ ...load, asked: besideFlood(4) });
    // A log or a window counts the flood's units until they are too old: of 1,200 calls it denies up to two or three.
    expect(Math.min(...admitted.slice(1))).toBeGreaterThan(algorithm === "gcra" ? 0.999 : 0.995);
  },
);

test("whatever is lost, never more than the limit is admitted", PATIENT, async () => {
  for (let seed = 1; seed <= depth(1, 3); seed += 1) {
    const { over, used } = await shared({
      asked: besideFlood(3),
      lost: 0.05,
      seconds: depth(4, SECONDS),
      seed,
    });
    expect(over).toBe(0);
    expect(used).toBeGreaterThan(0.8);
  }
});
