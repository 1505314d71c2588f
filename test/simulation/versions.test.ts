import { afterAll, beforeAll, expect, test, vi } from "vitest";
import type { Policy } from "../../core/policies/policy.ts";
import type { ReserveCall } from "../../core/protocol/calls.ts";
import type { ReservationsMessage } from "../../core/protocol/reservation-messages.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";
import { depth, expectOften, inDeepRuns } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";
import { Database } from "./database.ts";
import { BrokenLaw } from "./laws.ts";
import { History, type Breakage, type Outcome } from "./versions.ts";

const HISTORIES = depth(2, 120);

beforeAll(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterAll(() => void vi.restoreAllMocks());

async function simulate(firstSeed: number, histories: number, breakage?: Breakage): Promise<Outcome> {
  const database = new Database();
  const sum: Record<string, number> = {};
  for (let seed = firstSeed; seed < firstSeed + histories; seed += 1) {
    try {
      const outcome = await new History(seed, database, breakage).run();
      for (const [name, count] of Object.entries(outcome)) sum[name] = (sum[name] ?? 0) + count;
    } catch (error) {
      throw new Error(`SEED=${seed}: ${error instanceof Error ? error.message : String(error)}`, {
        cause: error,
      });
    }
  }
  return sum as unknown as Outcome;
}

test(
  `in ${HISTORIES} random histories a change counts everywhere in time, and no object goes back`,
  { timeout: 600_000 },
  async () => {
    const sum = await simulate(announcedSeed("versions"), HISTORIES);
    const changes = { changes: 1, adopted: 0.5, crashes: 0.5 };
    const least = { ...changes, admittedByIsolates: 10, admittedByClients: 5, denied: 10 };
    expectOften(sum, HISTORIES, least);
  },
);

// A search begins shortly before a history that shows the fault.
inDeepRuns.each<[name: string, breakage: Breakage, firstSeed?: number]>([
  ["isolates that never learn", { isDeaf: true }],
  ["an isolate that lags and says that it does not", { told: (_, latest) => latest }, 186],
  ["isolates that do not say when an override ended", { isTimeless: true }, 168],
  ["an object that forgets at a crash which version was stored", { forgets: true }],
  ["a limiter that forgets what a client keeps under an earlier version", { read: withoutKept }, 2_022],
])("%s: found", async (_, breakage, firstSeed = 1) => {
  const found = await simulate(firstSeed, 2_000, breakage).then(
    () => undefined,
    (error: Error) => error,
  );
  expect(found?.cause).toBeInstanceOf(BrokenLaw);
});

/** A message of another version says nothing about the units that its sender keeps. */
function withoutKept(message: ReservationsMessage, policy: Policy): ReservationsMessage {
  const isKnown = message.known?.[policy.name] === describeForClient(policy).version;
  if (isKnown && policy.override === undefined) return message;
  const calls = message.calls.map(({ reserve, ...call }) => ({
    ...call,
    ...(reserve && { reserve: { ...reserve, rules: mapped(reserve.rules) } }),
  }));
  return { ...message, calls };
}

const mapped = (rules: ReserveCall["rules"]) =>
  Object.fromEntries(Object.entries(rules).map(([name, said]) => [name, { ...said, kept: 0 }]));
