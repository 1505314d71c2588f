import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { holdWith, withHold, withoutHold } from "../../core/accounts/hold.ts";
import type { ReservationsReply } from "../../core/protocol/reservation-messages.ts";
import { depth, expectOften, inDeepRuns } from "../support/depth.ts";
import { announcedSeed, seedOr } from "../support/random.ts";
import { forgottenAtCrash, freeAtExpiry } from "./breakages.ts";
import type { Kind } from "./clients-policies.ts";
import { ClientSchedule, type ClientBreakage, type ClientOutcome } from "./clients.ts";
import { Database } from "./database.ts";
import { BrokenLaw } from "./laws.ts";

// Clients admit 6.3 calls per history with a deviation of 9.0: 80 histories would have below 4 each for one seed in 300.
const SCHEDULES = depth(10, 300);
const FAR_SCHEDULES = depth(2, 60);
const SHARED_SCHEDULES = depth(12, 160);
const MAX = 60_000;
const PATIENT = { timeout: 900_000 };

// Each unanswered message is logged, and here there are many.
beforeAll(() => {
  for (const method of ["warn", "error"] as const)
    vi.spyOn(console, method).mockImplementation(() => undefined);
});
afterAll(() => void vi.restoreAllMocks());

async function simulate(first: number, schedules: number, breakage?: () => ClientBreakage, kind?: Kind) {
  const database = new Database();
  const sum: Record<string, number> = {};
  for (let seed = first; seed < first + schedules; seed += 1) {
    try {
      const outcome = await new ClientSchedule(seed, database, breakage?.(), kind).run();
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
    const often = { calls: 20, admittedByClients: 4, admittedByObject: 4 };
    const least = { ...often, admittedByWorker: 0.25, degraded: 0.25, sleeps: 0.25 };
    expectOften(sum, SCHEDULES, least, ["calls", "admittedByObject"]);
  },
);

test(
  `in ${FAR_SCHEDULES} random histories of busy far clients with buckets of their own, nothing is over the bound, and what each has is held for it`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("far clients"), FAR_SCHEDULES, undefined, "far");
    expectOften(sum, FAR_SCHEDULES, { buckets: 4, admittedFromBuckets: 50, degraded: 0.25 });
  },
);

test(
  `in ${SHARED_SCHEDULES} random histories of clients whose calls have groups nothing is over the bound`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("shared clients"), SHARED_SCHEDULES, undefined, "shared");
    const least = { admittedByClients: 1, admittedByObject: 4, sleeps: 0.25 };
    expectOften(sum, SHARED_SCHEDULES, least, ["admittedByObject"]);
  },
);

inDeepRuns.each<[name: string, breakage: () => ClientBreakage, firstSeed?: number]>([
  [
    "counting lifetimes by a clock that stands still while the machine sleeps",
    () => ({ clockOf: bySteady, faults: ["sleep"] }),
    // One history in 6,000 shows it: the search begins shortly before one.
    8_000,
  ],
  ["taking unused units for free when a lifetime ends", freeAtExpiry],
  ["forgetting at a crash what is outstanding", forgottenAtCrash],
])("%s is found", PATIENT, async (_, breakage, firstSeed = 1) => {
  const found = await simulate(seedOr(firstSeed), MAX, breakage).then(
    () => undefined,
    (error: Error) => error,
  );
  expect(found?.cause).toBeInstanceOf(BrokenLaw);
  expect(found?.message).toMatch(/units of \w+ over the bound|a bucket of \w+ that is not held/);
});

/** Planted mistakes of buckets that clients have. */
inDeepRuns.each<[name: string, breakage: () => ClientBreakage]>([
  ["a client's bucket that outlives its end", outliving],
  ["a rate that counts once while old and new may both be used", countedOnce],
])("%s is found", PATIENT, async (_, breakage) => {
  const found = await simulate(seedOr(1), 400, breakage, "far").then(
    () => undefined,
    (error: Error) => error,
  );
  expect(found?.cause).toBeInstanceOf(BrokenLaw);
  expect(found?.message).toMatch(/that is not held for it/);
});

const bySteady = (_: () => number, steadyMs: () => number) => () => Math.floor(1e6 + steadyMs());

function outliving(): ClientBreakage {
  const longer = (answer: ReservationsReply["answers"][number]) => {
    if (answer === null || !("reserved" in answer) || answer.reserved?.buckets === undefined) return answer;
    return { ...answer, reserved: { ...answer.reserved, ttlMs: 5 * answer.reserved.ttlMs } };
  };
  // One that asks in time goes on with what the object knows.
  return { answered: (reply) => ({ ...reply, answers: reply.answers.map(longer) }), faults: ["sleep"] };
}

/** Of the rates that a client may have the object counts the new one alone. */
function countedOnce(): ClientBreakage {
  return {
    reserved: (object, policy, { holder }, { reserved }) => {
      const keyState = object.open(policy, "key");
      const id = keyState.holders.get(holder)?.hold ?? "";
      for (const ruleState of keyState.ruleStates) {
        const { rule, account } = ruleState;
        const hold = holdWith(account.holds, id);
        const bucket = reserved?.buckets?.[rule.name];
        if (hold?.rate === undefined || bucket === undefined) continue;
        const rate = { ...hold.rate, units: bucket.rate.units };
        const holds = withHold(withoutHold(account.holds, id), { ...hold, rate });
        keyState.replaceAccount(ruleState, { state: account.state, holds });
      }
    },
  };
}
