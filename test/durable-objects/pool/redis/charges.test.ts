/** Charges that are given back by name, through the script on a real server. */
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { PoolCall } from "../../../../durable-objects/pool/protocol.ts";
import { specimens } from "../../../support/algorithms.ts";
import { depth } from "../../../support/depth.ts";
import { poolRule, startPools, type Pool, type Pools } from "../../../support/pools.ts";
import { ruleOf } from "../../../support/rules.ts";

let pools: Pools;
beforeAll(async () => {
  pools = await startPools();
});
afterAll(() => pools.stop());

const T = 1_760_000_000_000;
const DAY_MS = 86_400_000;
const MISSING = { missing: true };
const BUCKET = { name: "rate", algorithm: "token-bucket", limit: 10, windowMs: 1_000, burst: 10 } as const;
const LOG = { name: "rate", algorithm: "sliding-log", limit: 10, windowMs: 1_000 } as const;

type Planned = Pick<PoolCall, "plan" | "plans">;

function take(pool: Pool, name: string, cost: number, nowMs: number, planned: Planned = {}) {
  const request = `limit of ${cost}`;
  return pool.call({ op: "limit", cost: [cost], request, answerName: name, ...planned }, nowMs);
}

function back(
  pool: Pool,
  chargeName: string,
  units: number,
  nowMs: number,
  answerName = "back",
  planned: Planned = {},
) {
  const request = `refund of ${units} of the charge "${chargeName}"`;
  const call = { op: "refund", cost: [units], isNamed: true, request, chargeName, answerName } as const;
  return pool.call({ ...call, ...planned }, nowMs);
}

async function remaining(pool: Pool, nowMs: number): Promise<number | undefined> {
  return (await pool.peek(nowMs)).rules?.[0]?.remaining;
}

test("each rule says what came back of it, and those say nothing of which nothing was taken", async () => {
  const pool = pools.create([
    { ...LOG, name: "quick" },
    { ...BUCKET, name: "slow", windowMs: DAY_MS },
    { ...BUCKET, name: "none", windowMs: DAY_MS },
  ]);
  await pool.call({ op: "limit", cost: [1, 4, 0], request: "limit", answerName: "order" }, T);
  const named = { isNamed: true, request: "back", chargeName: "order", answerName: "back" } as const;
  const { rules } = await pool.call({ op: "refund", cost: [1, 4, 1], ...named }, T + 1_000);
  expect(rules?.map(({ refunded }) => refunded)).toEqual([0, 4, undefined]);
});

describe.each([BUCKET, LOG])("$algorithm", (rule) => {
  test("a charge is given back once, and at most as it was", async () => {
    const pool = pools.create([rule]);
    await take(pool, "other", 4, T);
    await take(pool, "order", 3, T);
    const first = await back(pool, "order", 9, T);
    expect(first.rules).toMatchObject([{ remaining: 6, refunded: 3 }]);
    expect(await back(pool, "order", 9, T)).toEqual(first);
    expect(await back(pool, "order", 9, T, "again")).toEqual(MISSING);
    expect(await back(pool, "order", 3, T)).toHaveProperty("conflict");
    expect(await remaining(pool, T)).toBe(6);
  });

  test("when all of it was given back, its call is decided anew; when a part was, it is answered as before", async () => {
    const pool = pools.create([rule]);
    await take(pool, "order", 3, T);
    await back(pool, "order", 3, T);
    expect((await take(pool, "order", 3, T)).rules).toMatchObject([{ remaining: 7 }]);
    expect(await remaining(pool, T)).toBe(7);
    await back(pool, "order", 1, T, "part");
    await take(pool, "order", 3, T);
    expect(await remaining(pool, T)).toBe(8);
  });

  test("what was denied, is unknown, was taken without a name or before a reset cannot be given back", async () => {
    const pool = pools.create([rule]);
    await take(pool, "order", 8, T);
    await take(pool, "denied", 3, T);
    const before = await pool.dump();
    for (const name of ["denied", "unknown", "back"])
      expect(await back(pool, name, 1, T, `of ${name}`)).toEqual(MISSING);
    expect(await pool.dump()).toEqual(before);
    await pool.call({ op: "reset" }, T);
    await pool.limit([8], T);
    expect(await back(pool, "order", 8, T)).toEqual(MISSING);
  });

  test("when a part was given back its call is answered as before, for as long as it would have been", async () => {
    const pool = pools.create([rule]);
    const first = await take(pool, "order", 3, T);
    await back(pool, "order", 2, T + DAY_MS / 2);
    expect(await take(pool, "order", 3, T + DAY_MS - 1)).toEqual(first);
    expect((await take(pool, "order", 4, T + DAY_MS)).rules).toMatchObject([{ success: true }]);
  });

  test("what time has given back is not given back again: 10, a window, 10, a refund and 10 are not 30", async () => {
    const pool = pools.create([rule]);
    await take(pool, "first", 10, T);
    await take(pool, "second", 10, T + 1_000);
    expect((await back(pool, "first", 10, T + 1_004)).rules).toMatchObject([{ remaining: 0 }]);
    expect((await take(pool, "third", 10, T + 1_008)).rules).toMatchObject([{ success: false }]);
  });

  test("under other terms than those of the charge nothing is given back", async () => {
    const pool = pools.create([rule]);
    await take(pool, "order", 3, T);
    pool.rules = [{ ...rule, limit: 9 }];
    expect((await back(pool, "order", 3, T)).rules).toMatchObject([{ remaining: rule === LOG ? 6 : 7 }]);
  });

  test("a charge of another plan is given back, if the policy still has that plan's rules: whatever plan is named", async () => {
    const plans = {
      "": [rule],
      pro: [rule === LOG ? { ...rule, limit: 40 } : { ...rule, limit: 40, burst: 40 }],
    };
    for (const [at, then] of [
      ["pro", ""],
      ["", "pro"],
    ] as const) {
      const pool = pools.create(plans["pro"]);
      await pool.limit([5], T);
      pool.rules = plans[at];
      const first = await take(pool, "order", 5, T, { plan: at });
      expect(first).toHaveProperty("plan", at);
      pool.rules = plans[then];
      expect(await take(pool, "order", 5, T, { plan: then })).toEqual(first);
      const other = { ...plans, [at]: [{ ...rule, limit: 39 }] };
      await back(pool, "order", 5, T, "too early", { plan: then, plans: other });
      expect(await take(pool, "order", 5, T, { plan: then })).toEqual(first);
      await back(pool, "order", 3, T, "back", { plan: then, plans });
      expect(await back(pool, "order", 5, T, "again", { plan: then, plans })).toEqual(MISSING);
      pool.rules = plans["pro"];
      expect(await remaining(pool, T)).toBe(33);
    }
  });

  test("of a charge comes back what time has not returned, by the plan that was in force", async () => {
    const own = { ...rule, limit: 10, windowMs: 1_000 };
    const fast = { ...own, windowMs: 500 };
    const plans = { "": [own], fast: [fast] };
    for (const [at, then] of [
      ["fast", ""],
      ["", "fast"],
    ] as const) {
      const pool = pools.create(plans[at]);
      await take(pool, "order", 10, T, { plan: at });
      pool.rules = [fast];
      const left = (await remaining(pool, T + 250)) ?? 0;
      if (left > 0) await pool.limit([left], T + 250);
      pool.rules = plans[then];
      await back(pool, "order", 10, T + 250, "back", { plan: then, plans });
      pool.rules = [fast];
      expect(await remaining(pool, T + 250)).toBe(rule === LOG ? 10 : at === "fast" ? 5 : 8);
      pool.rules = plans[at];
      await take(pool, "later", 10, T + 2_000, { plan: at });
      await pool.limit([10], T + 3_000);
      pool.rules = plans[then];
      await back(pool, "later", 10, T + 3_000, "late", { plan: then, plans });
      pool.rules = [own];
      expect(await remaining(pool, T + 3_000)).toBe(0);
    }
  });

  test("units and instants beyond 14 digits are exact", async () => {
    const limit = rule === LOG ? 1_000_000 : 2 ** 52 - 1;
    const rules = [
      rule === LOG ? { ...LOG, limit, windowMs: DAY_MS } : { ...BUCKET, limit, burst: limit, windowMs: 1 },
    ];
    const pool = pools.create(rules);
    const late = 2 ** 52 + 1;
    await take(pool, "order", limit, late);
    expect((await back(pool, "order", limit - 1, late)).rules).toMatchObject([{ remaining: limit - 1 }]);
  });
});

const step = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.nat(20), fc.nat(2_000)),
  cost: fc.integer({ min: 1, max: 12 }),
  back: fc.option(fc.nat(20), { freq: 2 }),
});
const fields = fc.record({
  algorithm: fc.constantFrom("token-bucket", "sliding-log"),
  limit: fc.integer({ min: 1, max: 12 }),
  window: fc.integer({ min: 1, max: 3_000 }),
});

test(
  "never more than the bound is admitted in any interval and not given back",
  { timeout: 300_000 },
  async () => {
    await fc.assert(
      fc.asyncProperty(fields, fc.array(step, { maxLength: 25 }), async (given, steps) => {
        const { algorithm, limit, window } = given;
        const pool = pools.create([poolRule(ruleOf(given))]);
        const charges: { name: string; nowMs: number; cost: number }[] = [];
        let nowMs = T;
        for (const [index, { afterMs, cost, back: which }] of steps.entries()) {
          nowMs += afterMs;
          const { rules = [] } = await take(pool, `${index}`, cost, nowMs);
          if (rules[0]?.success === true) charges.push({ name: `${index}`, nowMs, cost });
          let units = 0;
          for (const charge of charges.toReversed()) {
            units += charge.cost;
            const bound = { limit, window, burst: limit };
            const keeps = specimens[algorithm]?.keepsBound(bound, units, nowMs - charge.nowMs);
            expect(keeps).toBe(true);
          }
          const charge = which === null ? undefined : charges[which % charges.length];
          if (charge === undefined) continue;
          await back(pool, charge.name, charge.cost, nowMs, `back ${index}`);
          charge.cost = 0;
        }
      }),
      { numRuns: depth(50, 3_000) },
    );
  },
);

test("a script that knows no holes changes a log: they are forgotten, and nothing is admitted twice", async () => {
  const pool = pools.create([LOG]);
  await pool.limit([2], T);
  await take(pool, "order", 3, T + 1);
  await back(pool, "order", 3, T + 2);
  expect(await remaining(pool, T + 2)).toBe(8);
  // It logs one unit more, as a version from before there were holes would.
  await pool.client.hSet(pool.name, "s:rate", `sliding-log 6 5 0 ${T + 3} ${T + 3}`);
  await pool.client.zAdd(`${pool.name}:log:rate`, [
    { score: T, value: `${T}:2` },
    { score: T + 1, value: `${T + 1}:5` },
  ]);
  expect(await remaining(pool, T + 3)).toBe(4);
  await pool.limit([1], T + 4);
  expect(await remaining(pool, T + 4)).toBe(3);
  expect(await pool.client.hExists(pool.name, "g:rate")).toBe(0);
});
