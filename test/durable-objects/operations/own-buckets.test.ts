/** Buckets that a key's object cuts for holders: how they begin, and that a renewed one is not lost. */
import { afterEach, expect, test } from "vitest";
import { outstandingOf } from "../../../core/accounts/account.ts";
import { dualConfig } from "../../../core/algorithms/dual-config.ts";
import { slidingLog } from "../../../core/algorithms/log/sliding-log.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import type { ReserveCall } from "../../../core/protocol/calls.ts";
import { leastForRegions } from "../../../durable-objects/keys/leaving.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { announcedSeed, seededRandom } from "../../support/random.ts";

const LIMIT = 1_000;
const POLICIES = parsePolicies({
  p: { algorithm: "token-bucket", limit: LIMIT, window: "1s" },
  log: { algorithm: "sliding-log", limit: LIMIT, window: "2s" },
  window: { algorithm: "fixed-window", limit: LIMIT, window: "2s" },
});
const WINDOWS = 1_000;
/** So many holders of a burst of 1,000 are the last ones that do not ask objects in their regions. */
const FEW = 128;
const database = new Database();
afterEach(() => database.clear());

interface Message extends Partial<ReserveCall> {
  readonly demand?: number;
  readonly kept?: number;
  readonly rate?: number;
  readonly level?: number;
}

function start() {
  const clock = { ms: 1_000_000 };
  const object = new SimulatedObject(database, POLICIES, () => clock.ms);
  const reserve = ({ demand = 1, kept = 0, rate, level, ...more }: Message = {}) => {
    const bucket = rate === undefined ? {} : { rate, level: level ?? kept };
    const rules = { p: { used: 0, kept, wanted: 0, demand, ...bucket } };
    const to = {
      policy: "p",
      key: "key",
      cost: 0,
      holder: "a",
      turn: 1,
      ttlMs: 2_000,
      isShort: false,
    } as const;
    return JSON.parse(object.reserve({ ...to, rules, ...more })) as Decided;
  };
  const isolates = (count: number, from = 0, ttlMs = 2_000, near?: ReserveCall["near"]) => {
    const asks = { cost: 1, ttlMs, near, mayAskRegion: true, takesBucket: false } as const;
    return Array.from({ length: count }, (_, index) =>
      reserve({ ...asks, holder: `isolate ${from + index}` }),
    );
  };
  const bucketOf = ({ reserved }: Decided) => reserved?.buckets?.["p"];
  return { clock, object, reserve, isolates, bucketOf };
}

test("holders are sent to their regions before their buckets take the whole burst, and not sooner", () => {
  const { isolates } = start();
  const answers = isolates(FEW + 2);
  const sent = answers.map(({ reserved }) => reserved?.asksRegion === true);
  expect(sent.indexOf(true)).toBe(FEW);
  expect(sent.slice(FEW)).toEqual([true, true]);
});

test("few calls of many holders are one object's, also when regions have objects by then", () => {
  const { isolates, reserve, bucketOf, clock } = start();
  for (let index = 0; index < 2 * FEW; index += 1) {
    const [answer] = isolates(1, index, 8_000);
    expect(answer?.reserved?.asksRegion).toBeUndefined();
    clock.ms += 30;
  }
  clock.ms += 12_000;
  isolates(2 * FEW, 1_000);
  const region = { holder: "region", takesBucket: true, holders: 2 * FEW, ttlMs: 12_000 };
  const bucket = bucketOf(reserve({ ...region, demand: 30 }));
  expect(bucket).toBeDefined();
  clock.ms += 5_100;
  const has = { kept: bucket?.most ?? 0, rate: bucket?.rate.units ?? 0 };
  expect(bucketOf(reserve({ ...region, ...has, turn: 2, demand: 30 }))).toBeDefined();
  clock.ms += 1_000;
  expect(bucketOf(reserve({ ...region, ...has, turn: 3, demand: 20 }))).toBeDefined();
  expect(bucketOf(reserve({ ...region, ...has, turn: 4, demand: 20 }))).toBeUndefined();
});

test("a region's object gets a sixteenth before it knows its holders, though few holders are left by then", () => {
  const { isolates, reserve, bucketOf } = start();
  isolates(FEW);
  const asks = { holder: "region", takesBucket: true, holders: 2, turn: 1 };
  const bucket = bucketOf(reserve({ ...asks, demand: 1 }));
  expect((bucket?.rate.units ?? 0) / WINDOWS).toBeCloseTo(LIMIT / 16, -1);
  const more = bucketOf(
    reserve({ ...asks, turn: 2, demand: 400, kept: bucket?.most ?? 0, rate: bucket?.rate.units ?? 0 }),
  );
  expect((more?.rate.units ?? 0) / WINDOWS).toBeGreaterThan(400);
});

test("regions have 5 s to say how many holders they have, and are no longer asked if these are few", () => {
  const { isolates, reserve, bucketOf, clock } = start();
  isolates(FEW + 1);
  clock.ms += 4_900;
  const asks = { holder: "region", takesBucket: true, holders: 2 };
  expect(bucketOf(reserve(asks))).toBeDefined();
  clock.ms += 10_000;
  expect(bucketOf(reserve({ ...asks, turn: 2 }))).toBeUndefined();
});

test("the first region gets no more than its holders' part of all that were sent to their regions, for 5 s", () => {
  const { isolates, reserve, bucketOf, clock } = start();
  // Some come back, and are sent there again.
  for (let time = 0; time < 3; time += 1) isolates(FEW + 400);
  const asks = { holder: "region", takesBucket: true, demand: 10_000, holders: 100, ttlMs: 12_000 };
  const ask = (turn: number, before?: ReturnType<typeof bucketOf>) =>
    bucketOf(reserve({ ...asks, turn, kept: before?.most ?? 0, rate: before?.rate.units ?? 0 }));
  const share = (bucket: ReturnType<typeof bucketOf>) => (bucket?.rate.units ?? 0) / (LIMIT * WINDOWS);
  // Its first message may have waited until it knew all of them (regions/region-keys.ts).
  const first = ask(0);
  const second = ask(1, first);
  for (const bucket of [first, second])
    expect([share(bucket) > 0.2, share(bucket) < 0.3]).toEqual([true, true]);
  clock.ms += 5_100;
  expect(share(ask(2, second))).toBeGreaterThan(0.5);
});

test.each([
  ["auto", 200],
  ["always", 0],
  ["off", Infinity],
] as const)(
  "with regions = %s holders ask there from %d on, whatever they have heard of it",
  (regions, from) => {
    const policy = parsePolicies({
      p: { algorithm: "token-bucket", limit: 20_000, window: 1_000, regions },
    }).get("p");
    expect(policy && leastForRegions(policy, 200)).toBe(from);
  },
);

// Of 1,000 that started at once 0.9 was admitted after 3.5 s: regions' first messages know few of their holders.
test("a region's first bucket is for all holders that were sent there, and it hears how many these are", () => {
  const { isolates, reserve, bucketOf, clock } = start();
  isolates(FEW + 300, 0, 2_000, "weur");
  isolates(100, 1_000, 2_000, "apac");
  const asks = { takesBucket: true, holders: 2, demand: 1, ttlMs: 12_000 } as const;
  const [apac, weur] = (["apac", "weur"] as const).map((near) => reserve({ ...asks, holder: near, near }));
  const share = (answer: Decided | undefined) =>
    ((answer && bucketOf(answer))?.rate.units ?? 0) / (LIMIT * WINDOWS);
  expect([apac?.reserved?.sentThere, weur?.reserved?.sentThere]).toEqual([100, 300]);
  // The burst that isolates have by then bounds the rate; one that is not known to have holders gets a sixteenth.
  expect([share(apac) > 2 / 16, share(apac) <= 1 / 4]).toEqual([true, true]);
  expect(share(weur)).toBeGreaterThan(2 * share(apac));
  clock.ms += 5_100;
  expect(reserve({ ...asks, holder: "late", near: "apac" }).reserved?.sentThere).toBeUndefined();
});

// Of 3,000 that started at once 42 had the first bucket of 125 for two seconds.
test("a region's first bucket is no more than the part of its holders, if it is known how few these are", () => {
  const { isolates, reserve, bucketOf, clock } = start();
  isolates(FEW + 137, 0, 2_000, "weur");
  isolates(3, 1_000, 2_000, "oc");
  clock.ms += 900;
  reserve({ takesBucket: true, holders: 137, demand: 137, near: "weur", holder: "weur" });
  const bucket = bucketOf(reserve({ takesBucket: true, holders: 3, demand: 12, near: "oc", holder: "oc" }));
  expect((bucket?.rate.units ?? 0) / (LIMIT * WINDOWS)).toBeLessThan(1.1 * (3 / 140));
});

// The one that was heard twice first had half as much again as others for two seconds.
test("holders in regions that have said little need as much as those in one that has said more", () => {
  const { isolates, reserve, bucketOf } = start();
  for (const [index, near] of (["weur", "eeur", "apac"] as const).entries())
    isolates(index === 0 ? FEW + 200 : 200, 1_000 * index, 2_000, near);
  const asks = { takesBucket: true, holders: 200, ttlMs: 12_000 } as const;
  const ask = (near: ReserveCall["near"], more: Message) =>
    bucketOf(reserve({ ...asks, holder: String(near), near, ...more }));
  const first = ask("weur", { demand: 300 });
  ask("eeur", { demand: 300 });
  const kept = { kept: first?.most ?? 0, rate: first?.rate.units ?? 0 };
  const second = ask("weur", { demand: 10 * LIMIT, turn: 2, ...kept });
  const share = (second?.rate.units ?? 0) / (LIMIT * WINDOWS);
  expect([share > 0.28, share < 0.36]).toEqual([true, true]);
});

// Of 3,000 holders whose rates changed with each message 4 % of the limit were counted twice.
test("a rate that is hardly above the fair one stays, and nothing is counted twice; one far above it shrinks", () => {
  const { reserve, bucketOf } = start();
  const far = { takesBucket: true, demand: LIMIT };
  const rateOf = (answer: Decided) => bucketOf(answer)?.rate.units ?? 0;
  const before = bucketOf(reserve(far));
  expect(before).toBeDefined();
  const has = { kept: before?.most ?? 0, rate: before?.rate.units ?? 0 };
  // Of another one's calls it knows before that one has a bucket: alike in need, each has half.
  const renewed = (turn: number, demandOfOther: number) => {
    reserve({ takesBucket: true, demand: demandOfOther, holder: "b", turn });
    return rateOf(reserve({ ...far, ...has, turn }));
  };
  const all = has.rate;
  expect(renewed(2, LIMIT / 20)).toBe(all);
  const shrunk = renewed(3, LIMIT / 2);
  expect(shrunk).toBeLessThan(0.8 * all);
  expect(shrunk).toBeGreaterThan(0.5 * all);
});

test("while more was used than there was, no bucket grows, and none is lost", () => {
  const { object, reserve, bucketOf, clock } = start();
  const far = { takesBucket: true, demand: 10 };
  const before = bucketOf(reserve(far));
  expect(before).toBeDefined();
  if (before === undefined) return;
  const keyState = object.open({ name: "p" }, "key");
  const accounts = keyState.ruleStates.map(({ rule, account: { state, holds } }) => ({
    state: rule.algorithm.debit(rule.config, state, clock.ms, 2 * LIMIT),
    holds,
  }));
  keyState.replaceAccounts(accounts, true);
  const has = { kept: before.most, rate: before.rate.units };
  const after = bucketOf(reserve({ ...far, ...has, turn: 2, demand: 900 }));
  expect(after).toBeDefined();
  expect(after?.rate.units).toBeLessThanOrEqual(before.rate.units);
  expect(after?.most).toBeLessThanOrEqual(before.most);
  // One that has none gets none.
  expect(bucketOf(reserve({ ...far, holder: "b" }))).toBeUndefined();
});

/** What a region's object has of these policies, in one window: its rate, and its burst once and once more. */
test.each([
  ["log", 0, 0, false],
  ["log", 2_000, 0, false],
  ["log", 400, 600, false],
  ["log", 1_500, 1_000, false],
  ["log", 700, 500, true],
  ["window", 0, 0, false],
  ["window", 2_000, 0, false],
] as const)(
  "of a %s a region gets no more than nobody used in the last window, and may have used what it gives up %d ms later (with the object's clock put back by %d ms: all)",
  (policy, laterMs, backMs, isBackBefore) => {
    const { object, clock } = start();
    const reserve = (more: Partial<ReserveCall>, rule: object) => {
      const about = { policy, key: "key", cost: 0, ttlMs: 2_000, isShort: false, takesBucket: true } as const;
      const rules = { [policy]: { used: 0, kept: 0, wanted: 0, demand: 1_000, ...rule } };
      const call = { ...about, holder: "region", holders: 200, turn: 1, rules, ...more };
      const { reserved } = JSON.parse(object.reserve(call)) as Decided;
      const { rate = { units: 0 }, most = 0 } = reserved?.buckets?.[policy] ?? {};
      return { rate: rate.units, kept: most };
    };
    const held = ({ rate, kept }: { readonly rate: number; readonly kept: number }) =>
      Math.floor(rate / WINDOWS + 2 * kept);
    const free = () => (JSON.parse(object.limit(policy, "key", 0)) as Decided).rules[0]?.remaining;
    for (let index = 0; index < 140; index += 1)
      reserve(
        { holder: `isolate ${index}`, holders: undefined, mayAskRegion: true, takesBucket: false },
        { demand: 1 },
      );
    object.limit(policy, "key", 900);
    const first = reserve({}, {});
    expect(held(first)).toBeGreaterThan(80);
    expect(held(first)).toBeLessThanOrEqual(100);
    expect(free()).toBe(100 - held(first));
    // It has not heard of that bucket, and returns it: nothing of it counts as used.
    const again = reserve({ turn: 2 }, { left: LIMIT });
    expect(held(again)).toBeGreaterThan(80);
    expect(free()).toBe(100 - held(again));
    // The window is over, and so is what was used in it.
    clock.ms += 2_000;
    const putBack = () => {
      reserve({ holder: "another", turn: 1 }, { demand: 0 });
      clock.ms -= backMs;
    };
    if (isBackBefore) putBack();
    const second = reserve({ turn: 3 }, again);
    expect(held(second)).toBeGreaterThan(800);
    clock.ms += laterMs;
    if (!isBackBefore) putBack();
    const less = { rate: second.rate / 10, kept: second.kept };
    reserve({ turn: 4 }, { ...less, demand: 1 });
    // The object's clock may have been put back by 250 ms since then, unnoticed.
    const usedMs = backMs > 0 ? 2_000 : Math.min(2_000, laterMs + 250);
    const used = ((second.rate - less.rate) * usedMs) / (2_000 * WINDOWS);
    const most = LIMIT - Math.floor(less.rate / WINDOWS + 2 * less.kept + used);
    expect(free()).toBeLessThanOrEqual(most);
    expect(free()).toBeGreaterThan(most - LIMIT / 50);
  },
);

test("two versions of a log are cut together only if their windows are the same", () => {
  const both = dualConfig(slidingLog, slidingLog);
  const log = (windowMs: number) => ({ limit: LIMIT, windowMs, minIntervalMs: 0, countDenied: false });
  const rate = { units: 100_000, windowMs: 2_000 * WINDOWS };
  expect(both.lessRate?.({ own: log(2_000), other: log(2_000) }, rate)).toBeDefined();
  expect(both.lessRate?.({ own: log(2_000), other: log(5_000) }, rate)).toBeUndefined();
});

test("whatever regions need, whose answers may be lost: what they hold is together no more than the limit", () => {
  const random = seededRandom(announcedSeed("own buckets"));
  const below = (most: number) => Math.floor(random() * most);
  for (let run = 0; run < 40; run += 1) {
    database.clear();
    const { object, reserve, bucketOf, isolates, clock } = start();
    isolates(FEW + 1);
    const has = Array.from({ length: 6 }, () => ({ kept: 0, rate: 0, turn: 0 }));
    for (let message = 0; message < 60; message += 1) {
      const holder = below(has.length);
      const { kept, rate, turn } = has[holder] ?? { kept: 0, rate: 0, turn: 0 };
      const need = { demand: 1 + below(10 ** (1 + below(3))), holders: 1 + below(200) };
      const bucket = bucketOf(
        reserve({
          ...need,
          ...(rate > 0 && { kept, rate }),
          holder: `region ${holder}`,
          turn: turn + 1,
          takesBucket: true,
          ttlMs: 12_000,
        }),
      );
      const isLost = below(4) === 0;
      const given =
        isLost || bucket === undefined ? { kept, rate } : { kept: bucket.most, rate: bucket.rate.units };
      has[holder] = { ...given, turn: turn + 1 };
      clock.ms += below(200);
      for (const { account } of object.open({ name: "p" }, "key").ruleStates)
        expect(outstandingOf(account)).toBeLessThanOrEqual(LIMIT);
    }
  }
});
