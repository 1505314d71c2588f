/**
 * Callers that make calls of every kind at random on a few keys, with idempotency keys and ids of their own and of
 * others, while the server is killed. What they were answered is held against the laws of attack-laws.ts.
 */
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { askOverBinding, askOverHttp, History, type Ask, type Made } from "../support/attack-history.ts";
import {
  budgetsAreRight,
  claimsLast,
  idsAreTheirOwn,
  prefixIsKept,
  ratesAreKept,
  slotsAreKept,
  statusesAreAllowed,
  type Attacked,
} from "../support/attack-laws.ts";
import { BoundClient } from "../support/bound-client.ts";
import { HttpCaller, manyTimes, memoryOf, tokenEntry } from "../support/callers.ts";
import { depth } from "../support/depth.ts";
import { attack, type Grounds } from "../support/random-attacker.ts";
import { announcedSeed, seededRandoms } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

// Eight seconds are one to five thousand calls, in which most mistakes in these calls show.
const LASTS_MS = depth(4_000, 25_000);
const KILLS = depth(1, 3);
/** So many of each caller at once. */
const AT_ONCE = 12;
const BUDGET = 45;
/** So many calls come to each key of the budget: most of it is used, and not all. */
const BUDGET_CALLS = 12;
/** Longer than any hold lasts. */
const QUIET_MS = 1_200;
const MAX_MEMORY = 1_000;

const PATIENT = { deadlineMs: 20_000 };
const LEASED = {
  algorithm: "concurrency",
  ttl: "700ms",
  maxTtl: "2s",
  maxWait: "2s",
  maxWaiters: 30,
  ...PATIENT,
};
const policies = {
  bucket: { algorithm: "token-bucket", limit: 40, window: "1s", burst: 20, ...PATIENT },
  log: { algorithm: "sliding-log", limit: 15, window: "800ms", ...PATIENT },
  rules: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 30, window: "1s" },
      tokens: { algorithm: "sliding-log", limit: 60, window: "1s", unit: "tokens" },
    },
    objects: 1,
    ...PATIENT,
  },
  /** Units that an isolate had reserved would be lost with it. */
  budget: {
    algorithm: "token-bucket",
    limit: 1,
    burst: BUDGET,
    window: "30d",
    objects: 1,
    reservation: "off",
    ...PATIENT,
  },
  slots: { ...LEASED, limit: 5 },
  "slots-shared": { ...LEASED, limit: 4, objects: 1 },
};
const ATTACKED: Attacked = {
  bucket: { rates: [{ unit: "requests", limit: 40, windowMs: 1_000, burst: 20 }] },
  log: { rates: [{ unit: "requests", limit: 15, windowMs: 800 }] },
  rules: {
    rates: [
      { unit: "requests", limit: 30, windowMs: 1_000, burst: 30 },
      { unit: "tokens", limit: 60, windowMs: 1_000 },
    ],
  },
  budget: { budget: BUDGET },
  slots: { slots: 5 },
  "slots-shared": { slots: 4 },
};
/** Of a caller that may use keys of this prefix only, over HTTP or a binding. */
const PREFIX = "t:";
const tokens = [
  tokenEntry("one"),
  tokenEntry("other"),
  tokenEntry("admin", { scopes: ["limit", "admin"] }),
  tokenEntry("tenant", { keyPrefix: PREFIX }),
];
const callerProps = { BOUND: { name: "one", scopes: ["limit"], keyPrefix: PREFIX } };
const CALLER = join(import.meta.dirname, "..", "support", "bound-caller.mjs");

const state = makeState();
let serving: Serving;
let printed = "";
const onOutput = (text: string) => void (printed += text);
const start = () => serveBundle(state, policies, { tokens, caller: CALLER, callerProps, onOutput });
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

/** Those who call, whatever process answers just now. */
function callers(): {
  readonly ask: (name: string) => Ask;
  readonly close: () => void;
  readonly names: readonly string[];
} {
  let [from, clients] = ["", new Map<string, HttpCaller>()];
  const close = () => {
    for (const client of clients.values()) client.close();
    clients = new Map();
  };
  const clientOf = (name: string) => {
    if (from !== serving.url) close();
    from = serving.url;
    const client = clients.get(name) ?? new HttpCaller(serving.url, name, AT_ONCE);
    clients.set(name, client);
    return client;
  };
  const ask =
    (name: string): Ask =>
    (kind, argument) =>
      name === "bound"
        ? askOverBinding(new BoundClient(serving.callerUrl, "BOUND"))(kind, argument)
        : askOverHttp(clientOf(name))(kind, argument);
  return { ask, close, names: ["one", "other", "admin", "tenant", "bound"] };
}

/** What there is to attack, and how many keys of the budget there have been. */
function groundsOf(): Grounds & { readonly budgetKeys: () => number } {
  let calls = 0;
  return {
    rates: { bucket: ["t:0", "t:1"], log: ["t:0", "x:0"], rules: ["t:0", "t:1", "x:0"] },
    units: { rules: ["requests", "tokens"] },
    slots: { slots: ["t:0", "t:1", "x:0"], "slots-shared": ["t:0", "x:0"] },
    budget: { policy: "budget", keyNow: () => `t:${Math.floor((calls += 1) / BUDGET_CALLS)}` },
    resettable: [
      ["bucket", "t:1"],
      ["rules", "t:1"],
      ["slots", "t:1"],
    ],
    budgetKeys: () => Math.floor(calls / BUDGET_CALLS) + 1,
  };
}

/** Attacks, and kills the server meanwhile. Returns what was made, and a look at each key of the budget after it. */
async function attackAll(seed: number): Promise<{ made: readonly Made[]; looks: readonly Made[] }> {
  const randomOf = seededRandoms(seed);
  const { ask, close, names } = callers();
  const made: Made[] = [];
  const grounds = groundsOf();
  let isOver = false;
  const attacks = names.flatMap((caller, place) =>
    Array.from({ length: AT_ONCE }, (_, loop) => {
      const random = randomOf(AT_ONCE * place + loop);
      const attacker = { caller, ask: ask(caller), random, isAdmin: caller === "admin" };
      return attack(
        attacker,
        grounds,
        () => isOver,
        (call) => made.push(call),
      );
    }),
  );
  for (let kill = 0; kill < KILLS; kill += 1) {
    await sleep(LASTS_MS / (KILLS + 1));
    await serving.stop("SIGKILL");
    serving = await start();
  }
  // A start takes seconds on a busy machine, and nothing is answered meanwhile.
  await sleep(LASTS_MS / (KILLS + 1));
  isOver = true;
  await Promise.all(attacks);
  await sleep(QUIET_MS);
  const look = async (index: number): Promise<Made> => {
    const argument = { policy: "budget", key: `t:${index}` };
    return { caller: "admin", kind: "peek", argument, ...(await ask("admin")("peek", argument)) };
  };
  const looks = await manyTimes(grounds.budgetKeys(), AT_ONCE, look);
  close();
  return { made, looks };
}

test(
  "whatever callers do, no bound is passed, nobody sees or ends what is another's, and each call counts once",
  { timeout: 600_000 },
  async () => {
    const seed = announcedSeed("attacker");
    serving = await start();
    const { made, looks } = await attackAll(seed);
    const history = new History(made);
    const broken = [
      ...statusesAreAllowed(history),
      ...["tenant", "bound"].flatMap((name) => prefixIsKept(history, name, PREFIX)),
      ...idsAreTheirOwn(history),
      ...claimsLast(history),
      ...ratesAreKept(history, ATTACKED),
      ...slotsAreKept(history, ATTACKED),
      ...budgetsAreRight(history, looks, ATTACKED),
    ];
    expect({ seed, broken: broken.slice(0, 5) }).toEqual({ seed, broken: [] });
    expect(memoryOf(serving)).toBeLessThan(MAX_MEMORY);
    expect(printed).not.toMatch(/uncaught|unhandled/i);
    report(made);
    // A budget that is used up says less.
    expect(looks.filter(({ body }) => body["remaining"] === 0).length).toBeLessThan(looks.length / 2);
  },
);

/** Prints what was done. It is worth nothing unless all of it was, and often. */
function report(made: readonly Made[]): void {
  const counts = Object.fromEntries(
    [
      ...Map.groupBy(
        made,
        ({ kind, status, body }) => `${kind} ${status}${body["success"] === true ? " admitted" : ""}`,
      ),
    ]
      .map(([name, calls]) => [name, calls.length] as const)
      .toSorted(([a], [b]) => (a < b ? -1 : 1)),
  );
  console.log(`attacker: ${made.length} calls`, counts);
  const often: Record<string, number> = { admitted: 10, "404": 100, "409": 200, "403": 200 };
  for (const [what, share] of Object.entries(often)) {
    const count = Object.entries(counts).reduce(
      (sum, [name, each]) => sum + (name.includes(what) ? each : 0),
      0,
    );
    // Where the machine is busy there are fewer calls, and less of each.
    const isOften = made.length > 3_000 ? count * share > made.length : count > 0;
    expect({ what, isOften }).toEqual({ what, isOften: true });
  }
  const done = new Set(made.filter(({ status }) => status === 200 || status === 204).map(({ kind }) => kind));
  const rare = ["settle", "cancel", "renew", "release", "refund", "reset"] as const;
  // Where the machine is busy there are fewer calls, and some kinds may be missing.
  expect(rare.filter((kind) => !done.has(kind)).length).toBeLessThanOrEqual(made.length > 3_000 ? 0 : 5);
}
