/** Buckets of clients in other processes: whatever these say, others lose nothing by it. */
import { afterEach, expect, test } from "vitest";
import { outstandingOf } from "../../../core/accounts/account.ts";
import { heldUnits, type RuleAccount } from "../../../core/accounts/hold.ts";
import { RATE_WINDOWS } from "../../../core/algorithms/token-bucket.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import type { ReserveCall, Reserving } from "../../../core/protocol/calls.ts";
import { callerIn, ownKey } from "../../../core/protocol/names.ts";
import { MAX_MARGIN_MS } from "../../../core/reservations/sizing.ts";
import { Database } from "../../simulation/database.ts";
import { Oracle } from "../../simulation/laws.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { announcedSeed, seededRandom } from "../../support/random.ts";

const LIMIT = 1_000;
const ALGORITHMS = ["token-bucket", "sliding-log"] as const;
type Algorithm = (typeof ALGORITHMS)[number];
const database = new Database();
afterEach(() => database.clear());

type Said = Partial<ReserveCall> & { readonly rule?: Partial<Reserving> };

function start(algorithm: Algorithm = "token-bucket") {
  const clock = { ms: 1_000_000 };
  const policies = parsePolicies({ p: { algorithm, limit: LIMIT, window: "1s" } });
  const [ofKey] = (policies.get("p") as Policy).rules;
  const object = new SimulatedObject(database, policies, () => clock.ms);
  const turns = new Map<string, number>();
  const nextTurn = (holder: string) => {
    turns.set(holder, (turns.get(holder) ?? 0) + 1);
    return turns.get(holder) ?? 1;
  };
  const reserve = (holder: string, { rule = {}, ...more }: Said = {}) => {
    const about = { policy: "p", key: "key", cost: 0, ttlMs: 2_000, isShort: false } as const;
    const rules = { p: { used: 0, kept: 0, wanted: 60, demand: 100, ...rule } };
    const turn = nextTurn(holder);
    const answer = object.reserve({ ...about, holder, turn, takesBucket: true, rules, ...more });
    const { reserved } = JSON.parse(answer) as Decided;
    return { ...reserved, bucket: reserved?.buckets?.["p"], got: reserved?.units["p"] ?? 0 };
  };
  const giveBack = (holder: string, left: number) =>
    object.giveBack("p", [{ key: "key", holder, turn: nextTurn(holder), used: { p: 0 }, left: { p: left } }]);
  const account = () => {
    const { ruleStates } = object.open({ name: "p" }, "key");
    return (ruleStates[0] as RuleAccount).account;
  };
  const limit = (cost: number) => JSON.parse(object.limit("p", "key", cost)) as Decided;
  const remaining = () => limit(0).rules[0]?.remaining ?? 0;
  return { clock, ofKey, reserve, giveBack, account, limit, remaining };
}

const client = (name: string) => ownKey("token", name);
const has = ({
  bucket,
}: {
  readonly bucket?: { readonly most: number; readonly rate: { units: number } } | undefined;
}) => ({
  kept: bucket?.most ?? 0,
  rate: bucket?.rate.units ?? 0,
});

test("a client gets a bucket as an isolate does, and one that says less about it, or nothing, gets none", () => {
  const { reserve } = start();
  const { bucket, got } = reserve(client("a"));
  const isolate = start().reserve("isolate");
  expect({ bucket, got }).toEqual({ bucket: isolate.bucket, got: isolate.got });
  expect(bucket).toBeDefined();
  database.clear();
  expect(start().reserve(client("a"), { takesBucket: undefined }).bucket).toBeUndefined();
  expect(start().reserve(client("a"), { rule: { demand: undefined } }).bucket).toBeUndefined();
});

test("what a client gives back of its bucket is free again, and what it does not was used", () => {
  const { reserve, giveBack, remaining } = start();
  const { got, bucket } = reserve(client("a"));
  expect(got).toBeGreaterThan(10);
  giveBack(client("a"), got - 10);
  // Also what may have come early.
  const early = Math.ceil(((bucket?.rate.units ?? 0) * MAX_MARGIN_MS) / (RATE_WINDOWS * 1_000));
  expect(remaining()).toBe(LIMIT - 10 - early);
});

test("a client that claims a larger bucket, a faster one, or both together, gets a new hold, and nothing until the old one ends", () => {
  for (const more of [{ kept: 30 }, { rate: 50_000 }, { kept: 1, rate: 1 }]) {
    database.clear();
    const { clock, reserve, account } = start();
    const own = has(reserve(client("a")));
    // Less of one is no room for more of the other.
    const claimed = { kept: own.kept + (more.kept ?? 0), rate: own.rate + (more.rate ?? 0) };
    const again = reserve(client("a"), { rule: { ...claimed, level: 0 } });
    expect(again).toMatchObject({ isNew: true, got: 0, bucket: undefined });
    expect(outstandingOf(account())).toBeGreaterThanOrEqual(own.kept);
    clock.ms += 10_000;
    expect(reserve(client("a")).bucket).toBeDefined();
  }
});

test("a client that says that its bucket is full, which never got a unit, returns nothing", () => {
  const { giveBack, limit, reserve, remaining } = start();
  limit(LIMIT);
  const first = reserve(client("a"));
  reserve(client("a"), { rule: { ...has(first), level: 1e9 } });
  giveBack(client("a"), 1e9);
  expect(remaining()).toBe(0);
});

test("a client that gives up its rate keeps no more units than came", () => {
  const { limit, reserve, remaining } = start();
  limit(LIMIT);
  const first = reserve(client("a"), { cost: 0 });
  expect(first.got).toBe(0);
  expect(reserve(client("a"), { rule: { kept: has(first).kept } }).isNew).toBe(true);
  expect(remaining()).toBe(0);
});

/** Says anything of a bucket, in any order, with any number of clients. */
function lieAtRandom(random: () => number, nameOf: (name: string) => string, algorithm?: Algorithm) {
  const below = (most: number) => Math.floor(random() * most);
  const of = <Value>(values: readonly Value[]) => values[below(values.length)] as Value;
  const { clock, ofKey, reserve, giveBack, limit, account } = start(algorithm);
  const oracle = new Oracle(ofKey);
  let buckets = 0;
  const given = new Map<string, { kept: number; rate: number }>();
  let over = 0;
  for (let step = 0; step < 150; step += 1) {
    const holder = nameOf(`client ${below(4)}`);
    const own = given.get(holder) ?? { kept: 0, rate: 0 };
    if (below(4) === 0) {
      giveBack(holder, of([0, own.kept, 1e9]));
      given.delete(holder);
    } else {
      const kept = of([0, own.kept, own.kept, own.kept + 1, 2 * own.kept, 1e9]);
      const rate = of([undefined, own.rate, own.rate, own.rate >> 1, 2 * own.rate, 1e12]);
      const rule = { kept, rate, level: of([undefined, 0, kept, 1e9]), left: of([undefined, 0, 1e9]) };
      const demand = of([0.1, 100, 1e9]);
      const answer = reserve(holder, { rule: { ...rule, demand }, takesBucket: of([true, true, undefined]) });
      if (answer.bucket !== undefined) buckets += 1;
      if (answer.bucket !== undefined) given.set(holder, has(answer));
    }
    for (let call = below(4); call > 0; call -= 1) {
      const cost = 1 + below(400);
      const { rules } = limit(cost);
      if (rules.every(({ success }) => success)) over = Math.max(over, oracle.admit(cost, clock.ms));
    }
    const { all, rate } = heldUnits(account().holds);
    over = Math.max(over, all - LIMIT, rate.units / RATE_WINDOWS - LIMIT);
    clock.ms += of([0, 0, 1, 20, 300, 3_000]);
  }
  return { over, buckets };
}

test.each(ALGORITHMS)(
  "whatever clients say of what they have and return, others are never admitted over the limit: %s",
  (algorithm) => {
    const random = seededRandom(announcedSeed("lying clients"));
    let all = 0;
    for (let run = 0; run < depth(20, 60); run += 1) {
      database.clear();
      const { over, buckets } = lieAtRandom(random, client, algorithm);
      expect(over).toBe(0);
      all += buckets;
    }
    expect(all).toBeGreaterThan(depth(3, 30));
  },
);

test.each(ALGORITHMS)(
  "that finds numbers that are not bounded, as those of isolates are not: %s",
  (algorithm) => {
    const random = seededRandom(1);
    let found = 0;
    for (let run = 0; run < 400 && found === 0; run += 1) {
      database.clear();
      found = lieAtRandom(random, (name) => name, algorithm).over;
    }
    expect(found).toBeGreaterThan(0);
  },
);

/** Clients of one caller that say anything of what they need, beside one isolate that needs the whole rate. */
function shareAtRandom(random: () => number, nameOf: (name: string) => string, algorithm?: Algorithm) {
  const below = (most: number) => Math.floor(random() * most);
  const { clock, reserve, account } = start(algorithm);
  const given = new Map<string, { kept: number; rate: number }>();
  const ask = (holder: string, demand: number, wanted: number) => {
    const own = given.get(holder);
    const answer = reserve(holder, { rule: { ...own, ...(own && { level: 0 }), demand, wanted } });
    if (answer.bucket === undefined) given.delete(holder);
    else given.set(holder, has(answer));
  };
  const ofCaller = () => {
    const { all, rate } = heldUnits(account().holds.filter(({ id }) => id.includes("client")));
    return { units: all, rate: rate.units / RATE_WINDOWS };
  };
  let over = 0;
  for (let step = 0; step < 120; step += 1) {
    ask("isolate", LIMIT, 60);
    const before = ofCaller();
    // Each has names enough to begin anew.
    ask(nameOf(`client ${below(12)}`), 10 ** below(9), 10 ** below(9));
    const after = ofCaller();
    over = Math.max(
      over,
      after.units - Math.max(before.units, LIMIT / 2),
      after.rate - Math.max(before.rate, LIMIT / 2),
    );
    clock.ms += 1 + below(200);
  }
  return { over, ofIsolate: (given.get("isolate")?.rate ?? 0) / RATE_WINDOWS };
}

test.each(ALGORITHMS)(
  "all clients of one caller have at most half of what others want too, whatever they say that they need: %s",
  (algorithm) => {
    const random = seededRandom(announcedSeed("greedy clients"));
    for (let run = 0; run < depth(10, 30); run += 1) {
      database.clear();
      const { over, ofIsolate } = shareAtRandom(random, client, algorithm);
      expect(over).toBe(0);
      if (algorithm === "token-bucket") expect(ofIsolate).toBeGreaterThan(0.4 * LIMIT);
    }
  },
);

test("that finds a caller whose share is not bounded", () => {
  const random = seededRandom(1);
  database.clear();
  const { over, ofIsolate } = shareAtRandom(random, (name) => name);
  expect(over > 0 || ofIsolate < 0.4 * LIMIT).toBe(true);
  expect(callerIn(client("a"))).toBeDefined();
});

test("a caller may have more than half while nobody else wants any, and shrinks when others come", () => {
  const { clock, reserve, account } = start();
  const ofCaller = () => heldUnits(account().holds.filter(({ id }) => callerIn(id) !== undefined)).rate.units;
  const ask = (name: string, own?: ReturnType<typeof has>) =>
    has(reserve(client(name), { rule: { ...own, ...(own && { level: own.kept }), demand: LIMIT } }));
  const own = ["a", "b"].map((name) => ask(name));
  clock.ms += 1_000;
  const all = ["a", "b"].map((name, index) => ask(name, own[index]));
  expect(ofCaller()).toBeGreaterThan(0.7 * LIMIT * RATE_WINDOWS);
  reserve("isolate", { rule: { demand: LIMIT } });
  const shrunk = ["a", "b"].map((name, index) => ask(name, all[index]));
  expect(shrunk.reduce((sum, { rate }) => sum + rate, 0)).toBeLessThanOrEqual(0.5 * LIMIT * RATE_WINDOWS);
});

test("units that a client gets in place of a log's bucket are held once, beside that bucket", () => {
  const { clock, reserve, limit, account } = start("sliding-log");
  for (let call = 0; call < 100; call += 1) {
    limit(9);
    clock.ms += 10;
  }
  const { bucket } = reserve(client("a"), { rule: { demand: 2_000 } });
  const { kept, rate } = has({ bucket });
  expect(rate).toBeGreaterThan(0);
  // Its next message comes by an isolate that knows no buckets.
  clock.ms += 1_000;
  const rule = { kept, level: 0, rate, demand: 100 };
  const { bucket: second, got } = reserve(client("a"), { rule, takesBucket: undefined });
  expect(second).toBeUndefined();
  expect(got).toBeGreaterThan(0);
  expect(outstandingOf(account())).toBe(2 * kept + Math.floor(rate / RATE_WINDOWS) + got);
});
