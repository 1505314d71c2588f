import { afterAll, beforeAll, expect, test, vi } from "vitest";
import type { GivenSlots, Slots } from "../../core/protocol/answers.ts";
import type { SlotsCall } from "../../core/protocol/calls.ts";
import { callerIn } from "../../core/protocol/names.ts";
import { depth, expectOften, inDeepRuns } from "../support/depth.ts";
import { announcedSeed, seedOr } from "../support/random.ts";
import { BrokenLaw } from "./laws.ts";
import {
  processPlan,
  randomPlan,
  restingPlan,
  seldomPlan,
  type SlotsFaults,
  type SlotsOutcome,
  type SlotsPlan,
} from "./slots-plan.ts";
import { SlotsHistory } from "./slots.ts";

const HISTORIES = depth(2, 30);
const MAX = 2_000;
const PATIENT = { timeout: 900_000 };

// Each unanswered message is logged, and here there are many.
beforeAll(() => {
  for (const method of ["warn", "error"] as const)
    vi.spyOn(console, method).mockImplementation(() => undefined);
});
afterAll(() => void vi.restoreAllMocks());

async function simulate(first: number, histories: number, planOf = randomPlan) {
  const sum: Record<string, number> = {};
  for (let seed = first; seed < first + histories; seed += 1) {
    try {
      const outcome = await new SlotsHistory(planOf(seed)).run();
      for (const [name, count] of Object.entries(outcome)) sum[name] = (sum[name] ?? 0) + Number(count);
    } catch (error) {
      throw new Error(`SEED=${seed} ${JSON.stringify(planOf(seed))}: ${String(error)}`, { cause: error });
    }
  }
  return sum as unknown as SlotsOutcome;
}

test(
  `in ${HISTORIES} random histories of isolates with slots no slot is leased twice, and none is lost`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("slots"), HISTORIES);
    expectOften(sum, HISTORIES, { granted: 20, own: 4, renewed: 0.05 });
  },
);

test(
  `in ${HISTORIES} random histories of isolates that rest no slot is leased twice, and none is lost`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("seldom"), HISTORIES, seldomPlan);
    expectOften(sum, HISTORIES, { rests: 1, own: 5 });
  },
);

test(
  "with a call and a half a second an isolate sends a message for five pairs at most",
  PATIENT,
  async () => {
    const planOf = (seed: number) => ({
      ...seldomPlan(seed),
      ...QUIET,
      limit: 30,
      isolates: 2,
      heldMs: 50,
      callsPerS: 3,
      waitMs: 0,
      ttlMs: 3_000,
      seconds: 120,
    });
    const sum = await simulate(announcedSeed("rest"), depth(1, 12), planOf);
    expect(sum.own).toBeGreaterThan(0.6 * sum.granted);
    expect(sum.messages).toBeLessThan(sum.own / 5);
  },
);

test(
  `in ${HISTORIES} random histories of processes with slots no more is leased than there is, and nothing stays behind`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("processes"), HISTORIES, processPlan);
    expectOften(sum, HISTORIES, { inProcesses: 5, lost: 0 });
  },
);

test(
  `in ${HISTORIES} random histories of processes that keep leases for long no more is leased than there is`,
  PATIENT,
  async () => {
    const sum = await simulate(announcedSeed("resting"), HISTORIES, restingPlan);
    expectOften(sum, HISTORIES, { inProcesses: 2, lost: 0.1 });
  },
);

test(
  "while versions with and without slots answer in turn, no lease is lost, and no call degraded",
  PATIENT,
  async () => {
    const histories = depth(2, 40);
    const planOf = (seed: number) => ({
      ...restingPlan(seed),
      ...QUIET,
      older: 0.4,
      seconds: 30,
      ttlMs: 20_000,
    });
    const sum = await simulate(announcedSeed("versions"), histories, planOf);
    expect(sum).toMatchObject({ lost: 0, degraded: 0 });
    expectOften(sum, histories, { inProcesses: 0.4 });
  },
);

test(
  "in random histories of mixed versions no more is leased than there is, and nothing stays behind",
  PATIENT,
  async () => {
    const planOf = (seed: number) => ({ ...processPlan(seed), older: 0.1 + (seed % 5) / 10 });
    const sum = await simulate(announcedSeed("mixed"), HISTORIES, planOf);
    expectOften(sum, HISTORIES, { inProcesses: 1 });
  },
);

/** Changes only what clients say. */
function ofClients(change: (call: SlotsCall) => Partial<SlotsCall>): Required<SlotsFaults>["message"] {
  return (call) => (callerIn(call.holder) === undefined ? call : { ...call, ...change(call) });
}

test(
  `in ${HISTORIES} random histories of one holder it says of no lease that more remains than its callers have left`,
  PATIENT,
  async () => {
    const planOf = (seed: number) => {
      const { lost, late, kills, restarts, freezes } = QUIET;
      const plan = [seldomPlan, randomPlan, processPlan, restingPlan][seed % 4]?.(seed) ?? randomPlan(seed);
      const isServing = plan.processes > 0;
      // Calls that were granted at once after a wait are heard of in any order.
      const alone = { waitMs: 0, isolates: 1, processes: isServing ? 1 : 0, isServing, limit: 30 };
      return { ...plan, lost, late, kills, restarts, freezes, ...alone };
    };
    const sum = await simulate(announcedSeed("figures"), HISTORIES, planOf);
    expectOften(sum, HISTORIES, { own: 20 });
  },
);

const QUIET = {
  limit: 5,
  ttlMs: 10_000,
  lost: 0,
  late: 0,
  kills: 0,
  restarts: 0,
  freezes: 0,
  cuts: 0,
  resets: 0,
  drops: 0,
  elsewhere: 0,
  abandoned: 0,
  standstills: 0,
};
const LASTING = { ...QUIET, heldMs: 8_000, processes: 3, callsPerS: 60 };
const SCARCE = { limit: 5, heldMs: 2_500, ttlMs: 10_000, callsPerS: 30, standstills: 0 };

// A search begins shortly before a history that shows the fault.
inDeepRuns.each<[name: string, faults: () => SlotsFaults, plan?: Partial<SlotsPlan>, firstSeed?: number]>([
  ["counting slots twice after a crash", () => ({ answer: keptAgain() }), { ...SCARCE, restarts: 3 }, 13],
  [
    "keeping a slot while a clock stands still",
    () => ({ stopsTimers: true }),
    { ...LASTING, standstills: 8 },
    10,
  ],
  ["taking an old answer", () => ({ answer: earlier() }), SCARCE],
  [
    "freeing two slots by one release",
    () => ({
      message: ofClients(({ kept, released }) => ({ kept: Math.max(0, kept - (released > 0 ? 1 : 0)) })),
    }),
    SCARCE,
    13,
  ],
  [
    "living for longer than the object keeps its slots",
    () => ({ answer: (said) => changed(said, { lifeMs: 9_000 }) }),
    { ...LASTING, cuts: 8 },
    54,
  ],
  ["not telling that a lease is lost", () => ({ isSilent: true }), { ...LASTING, cuts: 8 }, 54],
])("of processes, %s is found", PATIENT, async (_, faults, plan = {}, firstSeed = 1) => {
  let found: unknown;
  const first = seedOr(firstSeed);
  for (let seed = first; found === undefined && seed < first + MAX; seed += 1)
    found = await new SlotsHistory({ ...processPlan(seed, faults()), ...plan }).run().then(
      () => undefined,
      (error: unknown) => error,
    );
  expect(found).toBeInstanceOf(BrokenLaw);
});

/** Slots are scarce, and leases last as long as they may. */
const LONG = {
  limit: 5,
  heldMs: 1_500,
  ttlMs: 10_000,
  callsPerS: 6,
  lost: 0,
  late: 0,
  elsewhere: 0,
  resets: 0,
  cuts: 0,
  waitMs: 0,
  abandoned: 0,
};

/** Slots are scarce, and calls wait for them. */
const WAITING = {
  limit: 5,
  isolates: 3,
  waitMs: 3_000,
  lost: 0,
  late: 0,
  kills: 0,
  restarts: 0,
  freezes: 0,
  cuts: 0,
  resets: 0,
};

inDeepRuns.each<[name: string, faults: () => SlotsFaults, plan?: Partial<SlotsPlan>, firstSeed?: number]>([
  [
    "freeing slots at the end of their holder, while callers go on",
    () => ({ message: forget, answer: longer }),
    { ...LONG, kills: 25, isolates: 3, callsPerS: 12 },
    119,
  ],
  [
    "freeing a slot more than a holder returns",
    () => ({ message: (call) => ({ ...call, kept: Math.max(0, call.kept - 1) }) }),
    {},
    64,
  ],
  ["taking the answer to an earlier message", () => ({ answer: earlier() })],
  ["giving out tokens twice", () => ({ answer: sameTokens() })],
  [
    "renewing a lease that is not known",
    () => ({ renewsBlindly: true }),
    { ...LONG, kills: 8, ttlMs: 1_000, isolates: 3, elsewhere: 0.8, seconds: 15 },
    8,
  ],
  [
    "resting with slots for which others wait",
    () => ({ answer: (said) => changed(said, { restMs: 14_000, lifeMs: 17_000 }) }),
    WAITING,
    6,
  ],
  [
    "serving others while calls wait",
    () => ({ answer: (said) => changed(said, { isHome: false, most: 1_000 }) }),
    WAITING,
    4,
  ],
])("%s is found", PATIENT, async (_, faults, plan = {}, firstSeed = 1) => {
  let found: unknown;
  const first = seedOr(firstSeed);
  for (let seed = first; found === undefined && seed < first + MAX; seed += 1)
    found = await new SlotsHistory({ ...randomPlan(seed, faults()), ...plan }).run().then(
      () => undefined,
      (error: unknown) => error,
    );
  expect(found).toBeInstanceOf(BrokenLaw);
});

function changed(said: Slots, to: Partial<GivenSlots>): Slots {
  const { given, memory } = said.slots;
  return given === undefined ? said : { slots: { memory, given: { ...given, ...to } } };
}

function forget(call: SlotsCall): SlotsCall {
  return { ...call, ttlMs: 1 };
}

/** Another memory of the object gives a holder again what it has kept. */
function keptAgain(): (said: Slots, call: SlotsCall) => Slots {
  const memories = new Map<string, string>();
  return (said, { holder, kept }) => {
    const { memory, given } = said.slots;
    if (given === undefined) return said;
    const before = memories.get(holder);
    memories.set(holder, memory);
    const isSame = before === undefined || before === memory;
    return isSame ? said : changed(said, { more: given.more + kept });
  };
}

function longer(said: Slots, call: SlotsCall): Slots {
  return changed(said, { ttlMs: call.ttlMs });
}

function earlier(): (said: Slots, call: SlotsCall) => Slots {
  const last = new Map<string, Slots>();
  return (said, { holder }) => {
    const before = last.get(holder) ?? said;
    last.set(holder, said);
    return before;
  };
}

function sameTokens(): (said: Slots) => Slots {
  let tokens: GivenSlots["tokens"] | undefined;
  return (said) => {
    const { given } = said.slots;
    if (given !== undefined && (given.tokens[0] ?? 0) > 0) tokens ??= given.tokens;
    return tokens === undefined ? said : changed(said, { tokens });
  };
}
