/** A policy changes under keys that are in use: what was consumed stays consumed, and a change creates no units. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { UNTOUCHED, remainingOf } from "../../../core/accounts/account.ts";
import type { AnyAlgorithm } from "../../../core/algorithms/algorithm.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";
import { specimens } from "../../support/algorithms.ts";
import { depth } from "../../support/depth.ts";

const NOW_MS = 1_760_000_000_000;
const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;

const RATES = [...algorithms.values()].filter(
  ({ leasing, isStateless }) => leasing === undefined && isStateless !== true,
);
/** States that are stored under one name are one algorithm's, whose own tests have changes of its configuration. */
const nameOf = ({ name, storedAs = name }: AnyAlgorithm) => storedAs;
const PAIRS = RATES.flatMap((from) =>
  RATES.filter((to) => nameOf(to) !== nameOf(from)).map((to): [string, string] => [from.name, to.name]),
);

/** A policy's fields, durations as texts. */
function policyOf({ name, fields: kinds }: AnyAlgorithm): fc.Arbitrary<object> {
  const drawn: fc.Arbitrary<object> = specimens[name]?.fields ?? fc.constant({});
  return drawn.map((fields) => {
    const counted = Object.entries(fields).filter(([field]) => field !== "minInterval");
    const texts = counted.map(([field, value]: [string, unknown]) => {
      const isDuration = /^(duration|period)/.test(String(kinds[field]));
      return [field, isDuration && typeof value === "number" ? `${value}ms` : value];
    });
    return { algorithm: name, ...Object.fromEntries(texts) };
  });
}

const find = (name: string) => algorithms.get(name) as AnyAlgorithm;

/** What the object says is used of a rule of a key, and the most that could be used at this instant. */
function usedOf(object: AlarmedObject, index = 0, policy = "p") {
  return object.ask(
    "a",
    (_, keyState, nowMs) => {
      const { rule, account } = keyState.ruleStates[index] as { rule: Rule; account: typeof UNTOUCHED };
      const most = remainingOf(rule, UNTOUCHED, nowMs);
      return { used: most - remainingOf(rule, account, nowMs), most };
    },
    policy,
  );
}

describe.each(PAIRS)("%s becomes %s", (from, to) => {
  test("what is used stays used, is charged once, and going back creates nothing", async () => {
    const calls = fc.array(
      fc.record({ afterMs: fc.nat(5_000), part: fc.double({ min: 0, max: 1, noNaN: true }) }),
      {
        minLength: 1,
        maxLength: 6,
      },
    );
    await fc.assert(
      fc.asyncProperty(policyOf(find(from)), policyOf(find(to)), calls, async (before, after, history) => {
        const [old, young] = [known({ p: before }), known({ p: after })];
        const object = new AlarmedObject(old, NOW_MS);
        for (const { afterMs, part } of history) {
          await object.pass(afterMs);
          const { most } = usedOf(object);
          object.limit("a", Math.min(1_000_000_000, Math.ceil(most * part)));
        }
        const { used } = usedOf(object);
        await object.restart(young);
        const now = usedOf(object);
        expect(now.used).toBeGreaterThanOrEqual(Math.min(used, now.most));
        const record = object.storage.read("a");
        await object.restart(young);
        object.nowMs += 1;
        usedOf(object);
        expect(object.storage.read("a"), "charged again").toEqual(record);
        object.nowMs -= 1;
        await object.restart(old);
        expect(usedOf(object).used).toBeGreaterThanOrEqual(Math.min(used, now.most));
      }),
      { numRuns: depth(2, 120) },
    );
  });
});

const BUCKET = { p: { algorithm: "token-bucket", limit: 10, window: "1h" } };
const LOG = { p: { algorithm: "sliding-log", limit: 10, window: "2h" } };

test("3 used of a bucket are 3 of a log, until the log's window is over, however often the object starts", async () => {
  const object = new AlarmedObject(known(BUCKET), NOW_MS);
  object.limit("a", 3);
  for (let starts = 0; starts < 10; starts += 1) {
    await object.restart(known(LOG));
    // A denial changes nothing, and what was charged must not begin anew with each start.
    expect(object.limit("a", 8).rules).toMatchObject([{ success: false, remaining: 7 }]);
    await object.pass(12 * MINUTE_MS - 1);
  }
  await object.pass(10);
  await object.restart(known(LOG));
  expect(object.limit("a", 0).rules).toMatchObject([{ remaining: 10 }]);
});

test("nothing is charged of what had come back when the policy changed", async () => {
  const object = new AlarmedObject(known(BUCKET), NOW_MS);
  object.limit("a", 3);
  object.nowMs += HOUR_MS;
  await object.restart(known(LOG));
  expect(object.limit("a", 0).rules).toMatchObject([{ remaining: 10 }]);
});

test("a key without a record is charged with what its memory may have been ahead by", async () => {
  const object = new AlarmedObject(known({ p: { ...BUCKET.p, limit: 10_000 } }), NOW_MS);
  object.limit("a", 5);
  expect(object.storage.read("a")).toBeUndefined();
  await object.restart(known({ p: { ...LOG.p, limit: 10_000 } }));
  const { remaining } = object.limit("a", 0).rules[0] ?? {};
  expect(remaining).toBeLessThanOrEqual(9_995);
  expect(remaining).toBeGreaterThan(9_900);
});

test("units that isolates may still be spending stay held", async () => {
  const object = new AlarmedObject(known({ p: { ...BUCKET.p, limit: 10_000 } }), NOW_MS);
  let units = 0;
  for (const holder of ["first", "second", "third", "fourth"]) {
    const rules = { p: { used: 0, kept: 0, wanted: 400 } };
    const call = { cost: 1, holder, turn: 1, ttlMs: 8_000, isShort: true, rules };
    const answer = object.ask("a", (each, keyState, nowMs) => each.reserve(keyState, call, nowMs)) as Decided;
    units += 1 + (answer.reserved?.units["p"] ?? 0);
  }
  expect(units).toBeGreaterThan(100);
  await object.restart(known({ p: { ...LOG.p, limit: 10_000 } }));
  expect(object.limit("a", 0).rules[0]?.remaining).toBeLessThanOrEqual(10_000 - units);
});

test("a block goes on under another algorithm", async () => {
  const blocking = { blockFor: "30m" };
  const object = new AlarmedObject(known({ p: { ...BUCKET.p, ...blocking } }), NOW_MS);
  object.limit("a", 10);
  object.limit("a", 1);
  await object.restart(known({ p: { ...LOG.p, limit: 1_000, ...blocking } }));
  expect(object.limit("a", 1).rules).toMatchObject([{ success: false, reason: "blocked" }]);
});

describe("rules by other names", () => {
  const second = { algorithm: "token-bucket", limit: 100, window: "1h" };
  const day = { algorithm: "sliding-log", limit: 1_000, window: "1d" };
  const tokens = { algorithm: "sliding-log", limit: 50, window: "1h", unit: "tokens" };
  const figures = (object: AlarmedObject) =>
    Object.fromEntries(object.limit("a", 0).rules.map(({ name, remaining }) => [name, remaining]));

  test("one rule becomes several: each of the same unit counts what it counted", async () => {
    const object = new AlarmedObject(known({ p: second }), NOW_MS);
    object.limit("a", 40);
    await object.restart(known({ p: { rules: { second, day, tokens } } }));
    expect(figures(object)).toEqual({ second: 60, day: 960, tokens: 50 });
  });

  test("several become one: it counts the most that any of them counted", async () => {
    const object = new AlarmedObject(known({ p: { rules: { second, day, tokens } } }), NOW_MS);
    const cost = { requests: 30, tokens: 45 };
    object.limit("a", cost);
    await object.restart(known({ p: second }));
    expect(figures(object)).toEqual({ p: 70 });
  });

  test("a rule is renamed, whatever its unit", async () => {
    const object = new AlarmedObject(known({ p: { rules: { second, tokens } } }), NOW_MS);
    const cost = { requests: 30, tokens: 45 };
    object.limit("a", cost);
    await object.restart(known({ p: { rules: { first: second, spent: tokens } } }));
    expect(figures(object)).toEqual({ first: 70, spent: 5 });
  });

  test("a rule that is added counts what the others have counted of its unit", async () => {
    const object = new AlarmedObject(known({ p: { rules: { second } } }), NOW_MS);
    object.limit("a", 40);
    await object.restart(known({ p: { rules: { second, day, tokens } } }));
    expect(figures(object)).toEqual({ second: 60, day: 960, tokens: 50 });
  });

  // Versions before wrote no unit: 45 tokens of a rule that is gone may be 45 of anything.
  test("of records without a unit, nothing is lost where no rule counts requests any more", async () => {
    const object = new AlarmedObject(known({ p: tokens }), NOW_MS);
    object.limit("a", 45);
    expect(object.storage.read("a")?.rules["p"]?.unit).toBe("tokens");
    object.database.rewrite((rules) => rules.replace('"unit":"tokens"', '"ttlMs":1'));
    await object.restart(known({ p: { rules: { spent: tokens } } }));
    expect(figures(object)).toEqual({ spent: 5 });
  });
});

describe("leases", () => {
  const jobs = { algorithm: "concurrency", limit: 1, ttl: "10m" };
  const isDenied = { rules: [{ success: false }] };
  const LEARNING: Record<string, object> = { "adaptive-concurrency": { initial: 9 } };

  test("a slot stays taken when its rule is renamed, and comes back when the lease is released", async () => {
    const object = new AlarmedObject(known({ p: jobs }), NOW_MS);
    object.acquire("a", { id: "first" });
    await object.restart(known({ p: { rules: { slots: jobs } } }));
    expect(object.acquire("a", { id: "second" })).toMatchObject(isDenied);
    expect(object.renew("a", "first")).toMatchObject({ id: "first" });
    expect(object.ask("a", (each, keyState, nowMs) => each.release(keyState, { id: "first" }, nowMs))).toBe(
      true,
    );
    expect(object.acquire("a", { id: "second" })).toMatchObject({ rules: [{ success: true }] });
  });

  test("fencing tokens go on rising under another algorithm, though the clock is put back", async () => {
    const object = new AlarmedObject(known({ p: jobs }), NOW_MS);
    const tokenOf = (answer: unknown) => (answer as { lease: { fencingToken: number } }).lease.fencingToken;
    const before = tokenOf(object.acquire("a", { id: "first" }));
    object.nowMs -= HOUR_MS;
    await object.restart(known({ p: { ...jobs, algorithm: "adaptive-concurrency", limit: 9, initial: 9 } }));
    expect(tokenOf(object.acquire("a", { id: "second" }))).toBeGreaterThan(before);
  });

  test("a hold under a rule that was renamed is settled under the new one", async () => {
    const object = new AlarmedObject(known(BUCKET), NOW_MS);
    const { hold } = object.hold("a", 8, HOUR_MS);
    await object.restart(known({ p: { rules: { other: BUCKET.p } } }));
    expect(object.limit("a", 0).rules).toMatchObject([{ remaining: 2 }]);
    const settled = object.ask("a", (each, keyState, nowMs) =>
      each.settle(keyState, { id: hold?.id ?? "", used: 3 }, nowMs),
    );
    expect(settled).toMatchObject({ rules: [{ remaining: 7 }] });
  });

  test.each(["concurrency", "adaptive-concurrency"])(
    "a hold of a rate that has become %s leaves its slots when it is settled",
    async (algorithm) => {
      const object = new AlarmedObject(known(BUCKET), NOW_MS);
      const { hold } = object.hold("a", 8, HOUR_MS);
      await object.restart(known({ p: { ...jobs, algorithm, limit: 9, ...LEARNING[algorithm] } }));
      expect(object.acquire("a", { id: "first", cost: 2 })).toMatchObject(isDenied);
      const settled = object.ask("a", (each, keyState, nowMs) =>
        each.settle(keyState, { id: hold?.id ?? "", used: 3 }, nowMs),
      );
      expect(settled).toMatchObject({ rules: [{ remaining: 9, resetAfterMs: 0 }] });
      expect(object.acquire("a", { id: "second", cost: 9 })).toMatchObject({ rules: [{ success: true }] });
    },
  );
});
