/** The laws of the algorithms (../algorithms/laws.test.ts), through the script on a real server. */
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { broughtTo, refund, UNTOUCHED } from "../../../../core/accounts/account.ts";
import { tokenBucket } from "../../../../core/algorithms/token-bucket.ts";
import { algorithms } from "../../../../core/policies/algorithms.ts";
import type { Rule } from "../../../../core/policies/policy.ts";
import type { PoolAnswer } from "../../../../durable-objects/pool/protocol.ts";
import { ruleWith, specimens } from "../../../support/algorithms.ts";
import { decide } from "../../../support/decide.ts";
import { depth } from "../../../support/depth.ts";
import { worstExcess } from "../../../support/interval-bound.ts";
import { poolRule, startPools, type Pool, type Pools } from "../../../support/pools.ts";
import type { Given } from "../../../support/specimen.ts";

let pools: Pools;
beforeAll(async () => {
  pools = await startPools();
});
afterAll(() => pools.stop());

const call = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 50 }), fc.integer({ min: 0, max: 5_000_000 })),
  cost: fc.oneof(fc.integer({ min: 1, max: 5 }), fc.integer({ min: 0, max: 2_000_000 })),
});
const history = fc.array(call, { maxLength: 12 });
type Calls = readonly { afterMs: number; cost: number }[];
const START_MS = 1_760_000_000_000;
const OPTIONS = { numRuns: depth(4, 60) };

const admitted = ({ rules = [] }: PoolAnswer) => rules.every(({ success }) => success);
const figures = ({ rules = [] }: PoolAnswer) =>
  rules.map(({ remaining, resetAfterMs }) => ({ remaining, resetAfterMs }))[0];

describe.each([...algorithms.values()].filter(({ isPoolable }) => isPoolable))("$name", (algorithm) => {
  const specimen = specimens[algorithm.name];
  if (specimen === undefined) throw new Error(`no specimen of ${algorithm.name}`);
  const { fields } = specimen;
  const leases = algorithm.leasing !== undefined;
  let taken = 0;

  /** What is leased is a hold of its ttl, the rest is used at once. */
  function take(pool: Pool, given: Given, cost: number, nowMs: number): Promise<PoolAnswer> {
    if (!leases || cost === 0) return pool.limit([cost], nowMs);
    taken += 1;
    return pool.call({ op: "hold", cost: [cost], id: `${taken}`, ttlMs: Number(given["ttl"] ?? 0) }, nowMs);
  }

  async function play(
    given: Given,
    calls: Calls,
    seen?: (nowMs: number, cost: number, answer: PoolAnswer) => void,
  ) {
    const pool = pools.create([poolRule(ruleWith(algorithm, given))]);
    let nowMs = START_MS;
    for (const { afterMs, cost } of calls) {
      nowMs += afterMs;
      const answer = await take(pool, given, cost, nowMs);
      seen?.(nowMs, cost, answer);
    }
    return { pool, nowMs, capacity: ruleWith(algorithm, given).capacity };
  }

  /** The largest cost that would pass, found by asking. */
  async function largest(pool: Pool, capacity: number, nowMs: number): Promise<number> {
    let [passes, fails] = [0, capacity + 1];
    while (fails - passes > 1) {
      const cost = Math.floor((passes + fails) / 2);
      if (admitted(await pool.peek(nowMs, [cost]))) passes = cost;
      else fails = cost;
    }
    return passes;
  }

  test("never admits more than its bound in any interval", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, async (given, calls) => {
        const all: { nowMs: number; cost: number }[] = [];
        await play(given, calls, (nowMs, cost, answer) => {
          if (admitted(answer)) all.push({ nowMs, cost });
        });
        for (const [from, { nowMs: fromMs }] of all.entries()) {
          let units = 0;
          for (const { nowMs, cost } of all.slice(from)) {
            units += cost;
            expect(specimen.keepsBound(given, units, nowMs - fromMs)).toBe(true);
          }
        }
      }),
      { numRuns: depth(6, 150) },
    );
  });

  test("a denial changes nothing that is stored", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, call, async (given, calls, { afterMs, cost }) => {
        const { pool, nowMs } = await play(given, calls);
        const before = await pool.dump();
        const deadlines = await pool.deadlines();
        const answer = await take(pool, given, cost, nowMs + (afterMs % 3));
        if (admitted(answer)) return;
        expect(await pool.dump()).toEqual(before);
        expect(await pool.deadlines()).toEqual(deadlines);
      }),
      OPTIONS,
    );
  });

  test("the promised wait is exact, also with units held", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, call, fc.nat(3), async (given, calls, { cost }, held) => {
        const { pool, nowMs } = await play(given, calls);
        await pool.call({ op: "hold", cost: [held], id: "other", ttlMs: 500 }, nowMs);
        const { rules = [] } = await pool.peek(nowMs, [cost]);
        const retryAfterMs = rules[0]?.retryAfterMs ?? 0;
        if (retryAfterMs === 0) return;
        expect(admitted(await take(pool, given, cost, nowMs + retryAfterMs - 1))).toBe(false);
        expect(admitted(await take(pool, given, cost, nowMs + retryAfterMs))).toBe(true);
      }),
      { numRuns: depth(6, 150) },
    );
  });

  test("a cost over the capacity is refused for ever and touches nothing", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, fc.nat(2_000_000), async (given, calls, over) => {
        const { pool, nowMs, capacity } = await play(given, calls);
        const before = await pool.dump();
        const { rules } = await take(pool, given, capacity + 1 + over, nowMs);
        expect(rules).toMatchObject([{ success: false, reason: "cost-over-limit", retryAfterMs: null }]);
        expect(await pool.dump()).toEqual(before);
      }),
      OPTIONS,
    );
  });

  test("remaining is the largest cost that passes, admitted or denied", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, call, async (given, calls, { cost }) => {
        const { pool, nowMs, capacity } = await play(given, calls);
        const answer = await take(pool, given, cost, nowMs);
        expect(figures(answer)?.remaining).toBe(await largest(pool, capacity, nowMs));
      }),
      { numRuns: depth(2, 30) },
    );
  });

  test("the quota is whole at resetAfterMs, and nothing changes when it is forgotten then", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, fc.nat(1_000), call, async (given, calls, laterMs, { cost }) => {
        const { pool, nowMs, capacity } = await play(given, calls);
        const resetAfterMs = figures(await pool.peek(nowMs))?.resetAfterMs ?? 0;
        const untouched = { remaining: capacity, resetAfterMs: 0 };
        expect(figures(await pool.peek(nowMs + resetAfterMs))).toEqual(untouched);
        if (resetAfterMs > 0)
          expect(figures(await pool.peek(nowMs + resetAfterMs - 1))).not.toEqual(untouched);
        const atMs = nowMs + resetAfterMs + laterMs;
        const other = pools.create(pool.rules);
        const { rules } = await take(pool, given, cost, atMs);
        expect(rules).toEqual((await take(other, given, cost, atMs)).rules);
      }),
      OPTIONS,
    );
  });

  test("a cost of n is n costs of 1 at one instant", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, fc.integer({ min: 1, max: 20 }), async (given, calls, cost) => {
        if ("minInterval" in given) return;
        const { pool, nowMs } = await play(given, calls);
        const other = (await play(given, calls)).pool;
        const whole = await take(pool, given, cost, nowMs);
        let last: PoolAnswer = {};
        for (let one = 0; one < cost; one += 1) last = await take(other, given, 1, nowMs);
        expect(admitted(last)).toBe(admitted(whole));
        if (admitted(whole)) expect(figures(last)).toEqual(figures(whole));
      }),
      OPTIONS,
    );
  });

  test("a clock that runs backwards gains nothing", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, fc.nat(10_000_000), async (given, calls, backMs) => {
        const { pool, nowMs } = await play(given, calls);
        const there = figures(await pool.peek(nowMs))?.remaining ?? 0;
        const earlier = figures(await pool.peek(nowMs - backMs))?.remaining ?? 0;
        expect(earlier).toBeLessThanOrEqual(there);
        await take(pool, given, 1, nowMs - backMs);
        expect(figures(await pool.peek(nowMs))?.remaining).toBeLessThanOrEqual(there);
      }),
      OPTIONS,
    );
  });

  test("steady traffic within the quota is never denied", async () => {
    await fc.assert(
      fc.asyncProperty(fields, fc.integer({ min: 2, max: 30 }), async (given, count) => {
        const afterMs = specimen.paceMs(given);
        const calls = Array.from({ length: count }, () => ({ afterMs, cost: 1 }));
        await play(given, calls, (_, __, answer) => expect(admitted(answer)).toBe(true));
      }),
      OPTIONS,
    );
  });

  test("a refund never mints, and gives back no more than was taken", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, call, fc.nat(2_000_000), async (given, calls, { cost }, units) => {
        const { pool, nowMs, capacity } = await play(given, calls);
        const before = figures(await pool.peek(nowMs));
        const answer = await take(pool, given, cost, nowMs);
        const used = admitted(answer) && !leases ? cost : 0;
        const after = figures(await pool.call({ op: "refund", cost: [units] }, nowMs))?.remaining ?? 0;
        expect(after).toBeLessThanOrEqual(capacity);
        const most = (before?.remaining ?? 0) - used + units;
        if (!("minInterval" in given)) expect(after).toBeLessThanOrEqual(Math.max(most, 0));
        if (leases) expect(after).toBe(figures(answer)?.remaining);
      }),
      OPTIONS,
    );
  });

  test("units of a hold are as good as taken; settled with fewer, the rest is free again", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, fc.integer({ min: 1, max: 40 }), async (given, calls, cost) => {
        const { pool, nowMs } = await play(given, calls);
        const before = figures(await pool.peek(nowMs))?.remaining ?? 0;
        const answer = await pool.call({ op: "hold", cost: [cost], id: "held", ttlMs: 1_000 }, nowMs);
        expect(admitted(answer)).toBe(cost <= before);
        if (!admitted(answer)) return;
        if (!("minInterval" in given)) expect(figures(answer)?.remaining).toBe(before - cost);
        const settled = await pool.call({ op: "settle", used: [cost - 1], id: "held" }, nowMs);
        if (!("minInterval" in given))
          expect(figures(settled)?.remaining).toBe(before - (leases ? 0 : cost - 1));
      }),
      OPTIONS,
    );
  });

  test("no key is without an expiry, and all are gone a day and a minute after everything is whole", async () => {
    await fc.assert(
      fc.asyncProperty(fields, history, call, async (given, calls, { cost }) => {
        const { pool, nowMs } = await play(given, calls);
        const held = { op: "hold", cost: [cost], id: "held", request: "hold", ttlMs: 700 } as const;
        await pool.call(held, nowMs);
        const { resetAfterMs = 0 } = figures(await pool.peek(nowMs)) ?? {};
        expect(Object.keys(await pool.deadlines()).toSorted((a, b) => (a < b ? -1 : 1))).toEqual(
          await pool.keys(),
        );
        await pool.peek(nowMs + resetAfterMs + 86_400_000 + 61_000);
        expect(await pool.keys()).toEqual([]);
      }),
      OPTIONS,
    );
  });

  test("a policy that changes keeps what was consumed, and takes the new limit", async () => {
    await fc.assert(
      fc.asyncProperty(fields, fields, async (given, other) => {
        if ("minInterval" in other) return;
        const [before, after] = [ruleWith(algorithm, given), ruleWith(algorithm, other)];
        const pool = pools.create([poolRule(before)]);
        await take(pool, given, before.capacity, START_MS);
        pool.rules = [poolRule(after)];
        const { remaining } = figures(await pool.peek(START_MS)) ?? {};
        expect(remaining).toBe(Math.max(0, after.capacity - before.capacity));
      }),
      OPTIONS,
    );
  });
});

test.each([
  { limit: 1_000, windowMs: 60, burst: 1_000 },
  { limit: 7, windowMs: 3, burst: 1 },
  { limit: 1, windowMs: 1_000, burst: 1 },
  { limit: 3, windowMs: 1_000, burst: 5 },
])("a bucket of %j that is always asked for gives its rate and never more", async (config) => {
  const pool = pools.create([{ name: "rate", algorithm: "token-bucket", ...config }]);
  const calls: { sentAtMs: number; receivedAtMs: number; units: number }[] = [];
  for (let nowMs = 0; nowMs < 500; nowMs += 1) {
    const { remaining = 0 } = figures(await pool.peek(START_MS + nowMs)) ?? {};
    if (remaining === 0) continue;
    await pool.limit([remaining], START_MS + nowMs);
    calls.push({ sentAtMs: nowMs, receivedAtMs: nowMs, units: remaining });
  }
  expect(worstExcess(calls, config)).toBeLessThanOrEqual(0);
  expect(worstExcess(calls, config)).toBeGreaterThan(-1);
});

test("a bucket's consumption under each further policy is what the algorithm says, to the part, at the rates until then", async () => {
  const { fields } = specimens["token-bucket"] ?? {};
  if (fields === undefined) throw new Error("no specimen of a bucket");
  const use = fc.record({
    given: fields,
    cost: fc.oneof(fc.nat(20), fc.nat(1_000_000)),
    laterMs: fc.nat(5_000),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(use, { minLength: 2, maxLength: 6 }), async (uses) => {
      const pool = pools.create([]);
      let [account, nowMs] = [UNTOUCHED, START_MS];
      let before: Rule | undefined;
      for (const { given, cost, laterMs } of uses) {
        const rule = { ...ruleWith(tokenBucket, given), name: "rate" };
        pool.rules = [poolRule(rule)];
        nowMs += laterMs;
        if (before !== undefined) account = broughtTo(before, account, nowMs);
        // What is left may be small, so as much is taken as there is, and a unit returned.
        const { remaining } = decide(rule, account, nowMs, 0);
        const decision = decide(rule, account, nowMs, Math.min(cost, remaining));
        if (decision.allowed) ({ account } = decision);
        await pool.limit([Math.min(cost, remaining)], nowMs);
        // A call that takes nothing puts no rate in force.
        if (Math.min(cost, remaining) > 0) before = rule;
        account = refund(rule, account, nowMs, 1);
        const { remaining: left, resetAfterMs } = decide(rule, account, nowMs, 0);
        const returned = await pool.call({ op: "refund", cost: [1] }, nowMs);
        expect(figures(returned)).toEqual({ remaining: left, resetAfterMs });
      }
    }),
    { numRuns: depth(13, 500) },
  );
});

const BUCKET = {
  name: "rate",
  algorithm: "token-bucket",
  limit: 40,
  windowMs: 86_400_000,
  burst: 40,
} as const;
const LOG = { name: "rate", algorithm: "sliding-log", limit: 50, windowMs: 86_400_000 } as const;

test("under another algorithm the used units count, as if taken at its first call, also if that is denied", async () => {
  const pool = pools.create([BUCKET]);
  await pool.limit([30], START_MS);
  pool.rules = [LOG];
  expect(admitted(await pool.limit([21], START_MS + 5))).toBe(false);
  await pool.limit([4], START_MS + 7);
  expect(figures(await pool.peek(START_MS + 86_400_004))).toMatchObject({ remaining: 16 });
  expect(figures(await pool.peek(START_MS + 86_400_005))).toMatchObject({ remaining: 46 });
  await pool.call({ op: "refund", cost: [1], request: "back" }, START_MS + 8);
  pool.rules = [BUCKET];
  expect(figures(await pool.peek(START_MS + 9))).toMatchObject({ remaining: 7 });
  // Of a log with more used than the new limit has, all count when it is raised again.
  pool.rules = [{ ...LOG, limit: 10 }];
  expect(figures(await pool.peek(START_MS + 10))).toMatchObject({ remaining: 0 });
  pool.rules = [LOG];
  expect(figures(await pool.peek(START_MS + 11))).toMatchObject({ remaining: 17 });
});

test("a rule that had no state, or one of an algorithm that this script does not know, begins untouched", async () => {
  const pool = pools.create([{ name: "rate", algorithm: "concurrency", limit: 3 }]);
  await pool.call({ op: "hold", id: "a", cost: [2], ttlMs: 1_000 }, START_MS);
  pool.rules = [BUCKET];
  // What was leased counts until its lease ends, and then as used.
  expect(figures(await pool.peek(START_MS + 1))).toMatchObject({ remaining: 38 });
  const other = pools.create([BUCKET]);
  await other.client.hSet(other.name, "s:rate", "newer 1 2 3");
  expect(figures(await other.peek(START_MS))).toEqual({ remaining: 40, resetAfterMs: 0 });
});
