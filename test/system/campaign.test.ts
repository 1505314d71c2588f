/**
 * The attacker of attack-draws.ts draws from all calls of the API with weak tokens, beside a neighbour. What must hold is
 * counted here; how long the neighbour's calls take is measured by `npm run bench:attack`.
 */
import { rmSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { roundsOf, type Only } from "../support/attack-draws.ts";
import { campaign, type Campaign, type Plan, serveAttacked } from "../support/campaign.ts";
import { depth } from "../support/depth.ts";
import { buildPlanted, FAULTS } from "../support/planted.ts";
import { announcedSeed, seededRandom } from "../support/random.ts";
import { makeState, removeState } from "../support/served.ts";

/** Of some 850, each with about 500 calls. Each seed draws others. */
const ROUNDS = depth(4, 36);
const MAX_MS = 1_200_000;

async function attacked(seed: number, rounds: number, bundle?: string, only?: Only): Promise<Campaign> {
  const state = makeState();
  const serving = await serveAttacked(state, bundle);
  try {
    const random = seededRandom(seed);
    const drawn = await roundsOf(serving.url, random, only);
    // Of a planted fault it is enough that it is found.
    const after: Plan["after"] = (_, __, found) => Promise.resolve(bundle !== undefined && found.size > 0);
    const plan = { ...drawn, rounds: drawn.rounds.slice(0, rounds), serving, random, atOnce: 16, after };
    const made = await campaign(plan);
    console.log(`${plan.rounds.length} of ${drawn.rounds.length} rounds, ${made.calls} calls`);
    return made;
  } finally {
    await serving.stop("SIGKILL");
    removeState(state);
  }
}

test(
  "whatever weak tokens send, no bound is passed and a neighbour has what is its own",
  { timeout: MAX_MS },
  async () => {
    const { found, neighbour } = await attacked(announcedSeed("campaign"), ROUNDS);
    expect(Object.fromEntries(found)).toEqual({});
    expect(neighbour.calls).toBeGreaterThan(depth(120, 540));
  },
);

describe.runIf(depth(false, true))(
  "a fault of each kind that an attack has found once is found by it",
  () => {
    test.each(
      FAULTS.filter(({ isSlowness }) => isSlowness !== true).map((fault) => [fault.name, fault] as const),
    )("%s", { timeout: MAX_MS }, async (name, fault) => {
      const bundle = buildPlanted(fault.edits);
      const { found } = await attacked(announcedSeed(name), Infinity, bundle.main, fault);
      rmSync(bundle.folder, { recursive: true });
      expect(found.size > 0).toBe(name !== "none");
    });
  },
);
