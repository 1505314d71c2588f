/** Several isolates over one object, on plain workerd: the bound in every interval, and what they spare the object. */
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth, inDeepRuns, IS_DEEP } from "../support/depth.ts";
import { HttpClient } from "../support/http-client.ts";
import { mostInWindow, worstExcess, type AdmittedCall } from "../support/interval-bound.ts";
import { announcedSeed, seededRandoms } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const RATES = {
  /** Large enough to be reserved, small enough to be scarce at once. */
  scarce: { limit: 200, windowMs: 1_000, burst: 100 },
  thousand: { limit: 1_000, windowMs: 1_000, burst: 1_000 },
  brief: { limit: 500, windowMs: 1_000, burst: 300, reservation: { ttl: "300ms" } },
  log: { limit: 400, windowMs: 800 },
  tiny: { limit: 5, windowMs: 1_000, burst: 5 },
};
type Name = keyof typeof RATES;

const policies = Object.fromEntries(
  Object.entries(RATES).map(([name, { windowMs, ...fields }]) => {
    const algorithm = name === "log" ? "sliding-log" : "token-bucket";
    return [name, { algorithm, window: windowMs, deadlineMs: 2_000, ...fields }];
  }),
);

const LUKEWARM = { algorithm: "token-bucket", limit: 100_000, window: "30d", deadlineMs: 2_000 };
/** An idle object is gone after about 10 s, and with it what it knows of isolates. */
const QUIET_MS = 13_000;
const CONNECTIONS = 48;
// A second is a window of most rates; every lifetime of a reservation is shorter.
const LOAD_MS = depth(1_000, 3_000);
const CRASHES = depth(2, 3);
const randomOf = seededRandoms(announcedSeed("isolates"));
let workersMade = 0;
const states: string[] = [];
const servings: Serving[] = [];
afterAll(async () => {
  for (const client of asked?.clients ?? []) client.close();
  for (const serving of servings) await serving.stop("SIGKILL");
  for (const state of states) removeState(state);
});

async function serveIsolates(isolates: number, state: string, main?: string): Promise<Serving> {
  const serving = await serveBundle(
    state,
    { ...policies, auto: LUKEWARM, long: { ...LUKEWARM, reservation: { ttl: "1m" } } },
    { isolates, ...(main !== undefined && { main }) },
  );
  servings.push(serving);
  return serving;
}

/** Asked before the other tests begin, and looked at after them: so nobody waits for it to be forgotten. */
let asked: { readonly clients: readonly HttpClient[]; readonly askedAtMs: number } | undefined;
beforeAll(async () => {
  if (IS_DEEP) asked = await askFour();
});

async function askFour(): Promise<NonNullable<typeof asked>> {
  const state = makeState();
  states.push(state);
  const { urls } = await serveIsolates(4, state);
  const clients = urls.map((url) => new HttpClient(url, 8));
  for (const policy of ["auto", "long"])
    await Promise.all(
      Array.from({ length: 60 }, async (_, call) => clients[call % 4]?.limit(policy, "quiet")),
    );
  return { clients, askedAtMs: Date.now() };
}

interface Tally {
  readonly admitted: Map<Name, AdmittedCall[]>;
  readonly sources: Record<string, number>;
}

const newTally = (): Tally => ({
  admitted: new Map(Object.keys(RATES).map((name) => [name as Name, []])),
  sources: {},
});

/** Asks all isolates for every policy until it is told to stop; the first isolate gets more than the others. */
async function hammer(
  urls: readonly string[],
  { admitted, sources }: Tally,
  isOver: () => boolean,
): Promise<void> {
  const clients = urls.map((url) => new HttpClient(url, CONNECTIONS));
  const worker = async () => {
    const random = randomOf((workersMade += 1));
    while (!isOver()) {
      const isolate = random() < 0.3 ? 0 : Math.floor(random() * clients.length);
      const names = [...admitted.keys()];
      const name = names[Math.floor(random() * names.length)] ?? "tiny";
      const units = random() < 0.9 ? 1 : 1 + Math.floor(random() * 5);
      const client = clients[isolate] as HttpClient;
      const { body, sentAtMs, receivedAtMs } = await client.limit(name, "key", { cost: units });
      const source = `${String(body["source"])} ${body["success"] === true ? "admits" : "denies"}`;
      sources[source] = (sources[source] ?? 0) + 1;
      if (body["success"] === true) admitted.get(name)?.push({ sentAtMs, receivedAtMs, units });
    }
  };
  // A connection that breaks ends its worker: the server was killed.
  await Promise.all(Array.from({ length: CONNECTIONS }, () => worker().catch(() => undefined)));
  for (const client of clients) client.close();
}

function expectBounds({ admitted }: Tally): void {
  for (const [name, calls] of admitted) {
    const rate = RATES[name];
    expect(calls.length).toBeGreaterThan(0);
    if (!("burst" in rate)) expect(mostInWindow(calls, rate.windowMs)).toBeLessThanOrEqual(rate.limit);
    else expect({ name, excess: Math.max(0, worstExcess(calls, rate)) }).toEqual({ name, excess: 0 });
  }
}

const times = ({ sources }: Tally, answer: string) => sources[answer] ?? 0;

// Each isolate takes a tenth of a second to start: three servers of 32 are most of this file.
describe.each(depth([8], [1, 4, 32]))("%d isolates", (isolates) => {
  test("never admit more than the bound in any interval, and decide for themselves", async () => {
    const state = makeState();
    states.push(state);
    const { urls } = await serveIsolates(isolates, state);
    const tally = newTally();
    const untilMs = Date.now() + LOAD_MS;
    await hammer(
      urls,
      tally,
      () =>
        Date.now() > untilMs && times(tally, "isolate admits") > 100 && times(tally, "isolate denies") > 100,
    );
    expectBounds(tally);
  });

  test("nor when answers are lost, late or doubled, objects lose their memory and the server is killed", async () => {
    const state = makeState();
    states.push(state);
    const tally = newTally();
    const main = join(import.meta.dirname, "..", "support", "faulty-object.mjs");
    for (let crash = 0; crash < CRASHES; crash += 1) {
      const serving = await serveIsolates(isolates, state, main);
      let isOver = false;
      const pauseMs = depth(500, 1_000) + 800 * randomOf(-1 - crash)();
      const load = hammer(serving.urls, tally, () => isOver);
      await sleep(pauseMs);
      // However slow the machine is: more than a hundred in all, and of some nobody could decide.
      const isLast = crash === CRASHES - 1;
      const isTooFew = () =>
        times(tally, "isolate admits") <= (100 * (crash + 1)) / CRASHES ||
        (isLast && times(tally, "fallback denies") === 0);
      while (isTooFew()) await sleep(10);
      await serving.stop("SIGKILL");
      isOver = true;
      await load;
    }
    expectBounds(tally);
  });
});

// It waits for 13 s. That units come home is tested inside workerd too (test/client/local-limiter.workerd.test.ts).
inDeepRuns(
  "an object that nobody asks leaves memory, and units that isolates did not use have come home before",
  async () => {
    const { clients, askedAtMs } = asked as NonNullable<typeof asked>;
    await sleep(Math.max(0, askedAtMs + QUIET_MS - Date.now()));
    for (const policy of ["auto", "long"]) {
      const { body } = await (clients[0] as HttpClient).peek(policy, "quiet");
      expect(body).toMatchObject({ outstanding: 0 });
      expect(body["remaining"]).toBeGreaterThanOrEqual(99_940);
      // A unit comes back every 26 s.
      expect(body["remaining"]).toBeLessThanOrEqual(99_941 + Math.floor((Date.now() - askedAtMs) / 25_920));
    }
  },
);
