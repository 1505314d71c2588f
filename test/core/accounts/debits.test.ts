import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  advance,
  broughtTo,
  decideTogether,
  place,
  remainingOf,
  settle,
  UNTOUCHED,
} from "../../../core/accounts/account.ts";
import { type Account, capacityOf, seenByGroup } from "../../../core/accounts/hold.ts";
import { MAX_PARTS } from "../../../core/algorithms/token-bucket.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { forced, type TooMany, withUsed } from "../../../durable-objects/operations/limits.ts";
import { specimens, ruleWith } from "../../support/algorithms.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { ruleOf } from "../../support/rules.ts";

const START_MS = 1_760_000_000_000;
const calls = fc.array(fc.record({ afterMs: fc.nat(5_000), cost: fc.nat(2_000) }), { maxLength: 12 });
const rates = [...algorithms.values()].filter(
  ({ name, leasing }) => leasing === undefined && specimens[name]?.countsNothing !== true,
);

function played(rule: Rule, history: readonly { afterMs: number; cost: number }[]): [Account, number] {
  let [account, nowMs]: [Account, number] = [UNTOUCHED, START_MS];
  for (const { afterMs, cost } of history) {
    nowMs += afterMs;
    const decision = decide(rule, account, nowMs, cost);
    if (decision.allowed) ({ account } = decision);
  }
  return [account, nowMs];
}

function done(account: Account | TooMany): Account {
  if ("most" in account) throw new Error(`only ${account.most} units can be counted`);
  return account;
}

/** Without the instant of the last call, which a debit moves and a set forgets. */
const quotaOf = (rule: Rule, account: Account, nowMs: number) => {
  const { remaining, quotaRemaining = remaining } = decide(rule, account, nowMs, 0);
  return quotaRemaining;
};

describe.each(rates)("$name", (algorithm) => {
  const specimen = specimens[algorithm.name];
  if (specimen === undefined) throw new Error(`no specimen of ${algorithm.name}`);

  test("a forced debit takes all of its units, and a debt is paid at the quota's own pace", () => {
    fc.assert(
      fc.property(specimen.fields, calls, fc.integer({ min: 1, max: 5_000 }), (given, history, units) => {
        const rule = ruleWith(algorithm, given);
        const [account, nowMs] = played(rule, history);
        const free = quotaOf(rule, account, nowMs);
        const after = forced(rule, account, nowMs, units);
        if ("most" in after) return;
        expect(quotaOf(rule, after, nowMs)).toBe(Math.max(0, free - units));
        const next = decide(rule, after, nowMs, 1);
        if (next.allowed) return;
        const waitMs = next.retryAfterMs;
        expect(waitMs === null).toBe(specimen.neverRefills === true);
        if (waitMs === null) return;
        expect(decide(rule, after, nowMs + waitMs - 1, 1).allowed).toBe(false);
        expect(decide(rule, after, nowMs + waitMs, 1).allowed).toBe(true);
      }),
      { numRuns: depth(100, 500) },
    );
  });

  test("two forced debits are one of both units", () => {
    fc.assert(
      fc.property(specimen.fields, calls, fc.nat(3_000), fc.nat(3_000), (given, history, first, second) => {
        const rule = ruleWith(algorithm, given);
        const [account, nowMs] = played(rule, history);
        const once = forced(rule, account, nowMs, first + second);
        if ("most" in once) return;
        const twice = done(forced(rule, done(forced(rule, account, nowMs, first)), nowMs, second));
        for (const laterMs of [0, 1, 999, 1_000_000])
          expect(decide(rule, twice, nowMs + laterMs, 1)).toEqual(decide(rule, once, nowMs + laterMs, 1));
      }),
    );
  });

  test("a key whose consumption is set is as one of which that much was taken now", () => {
    fc.assert(
      fc.property(
        specimen.fields,
        calls,
        fc.nat(2_000_000),
        fc.nat(1_000_000),
        (given, history, wanted, later) => {
          if ("minInterval" in given) return;
          const rule = ruleWith(algorithm, given);
          const [account, nowMs] = played(rule, history);
          const used = Math.min(wanted, rule.capacity);
          const taken = decide(rule, UNTOUCHED, nowMs, used);
          if (!taken.allowed) throw new Error("what is within the capacity fits");
          const set = done(withUsed(rule, account, nowMs, used));
          for (const atMs of [nowMs, nowMs + later])
            expect(decide(rule, set, atMs, 1)).toEqual(decide(rule, taken.account, atMs, 1));
          expect(remainingOf(rule, set, nowMs)).toBe(rule.capacity - used);
        },
      ),
    );
  });

  test("units that are held stay apart, whatever is forced or set", () => {
    fc.assert(
      fc.property(specimen.fields, (given) => {
        const rule = ruleWith(algorithm, given);
        const { capacity } = rule;
        if (capacity < 10) return;
        const holding = place(UNTOUCHED, { id: "a", units: 4, expiresAtMs: START_MS + 60_000 });
        for (const account of [forced(rule, holding, START_MS, 2), withUsed(rule, holding, START_MS, 2)])
          expect(done(account)).toMatchObject({ holds: holding.holds });
        const left = (account: Account | TooMany) => quotaOf(rule, done(account), START_MS);
        expect(left(forced(rule, holding, START_MS, 2))).toBe(capacity - 6);
        expect(left(withUsed(rule, holding, START_MS, capacity - 2))).toBe(0);
      }),
    );
  });
});

/** Their debts outlast a window. */
const BUCKETS = [
  "token-bucket",
  "gcra",
  "leaky-bucket",
  "smooth-bursty",
  "smooth-warming-up",
  "permits-per-cycle",
];

test.each(rates.filter(({ name }) => BUCKETS.includes(name)))(
  "$name: units held while a quota shrinks count as if they had been used before it",
  (algorithm) => {
    const fields = specimens[algorithm.name]?.fields.map((given) => ruleWith(algorithm, given));
    if (fields === undefined) throw new Error(`no specimen of ${algorithm.name}`);
    const units = fc.integer({ min: 1, max: 3_000 });
    // Permits that a shorter timeout does not reach were promised to callers, and count until their cycle.
    const timeoutOf = ({ config }: Rule) => (config as { readonly timeoutMs?: number }).timeoutMs ?? 0;
    const shrinking = fc
      .tuple(fields, fields)
      .filter(([a, b]) => capacityOf(a) > capacityOf(b) && timeoutOf(a) <= timeoutOf(b));
    const run = [shrinking, calls, units, fc.nat(5), fc.nat(100_000), fc.nat(100_000)] as const;
    fc.assert(
      fc.property(...run, ([rule, smaller], history, cost, over, heldMs, laterMs) => {
        const [account, nowMs] = played(rule, history);
        const hold = { id: "a", expiresAtMs: nowMs + 1_000_000_000 };
        const { accounts: [after = UNTOUCHED] = [] } = decideTogether([{ rule, account }], nowMs, cost, {
          hold,
        });
        const used = decide(rule, account, nowMs, cost);
        if (!used.allowed) return;
        const held = broughtTo(rule, after, nowMs);
        const settled = settle(smaller, held, nowMs, "a", cost);
        // What is missing in a storage of permits is rounded when a policy changes.
        for (const atMs of algorithm.name === "smooth-warming-up" ? [] : [nowMs, nowMs + laterMs])
          expect(decide(smaller, settled, atMs, 1)).toEqual(decide(smaller, used.account, atMs, 1));
        // Later, and with more than was held: at most a used quota, and what was used beyond the hold.
        const atMs = nowMs + heldMs;
        const late = settle(smaller, held, atMs, "a", cost + over);
        const mostMs = smaller.algorithm.refillMs(smaller.config, capacityOf(smaller) + over);
        expect(decide(smaller, late, atMs, 0).resetAfterMs).toBeLessThanOrEqual(mostMs);
        // A caller that is denied meanwhile is told so too.
        const denied = decide(smaller, held, nowMs, 1);
        if (denied.allowed || denied.retryAfterMs === null) return;
        const atExactlyMs = nowMs + denied.retryAfterMs;
        expect(decide(smaller, advance(smaller, held, atExactlyMs - 1), atExactlyMs - 1, 1).allowed).toBe(
          false,
        );
        expect(decide(smaller, advance(smaller, held, atExactlyMs), atExactlyMs, 1).allowed).toBe(true);
      }),
      { numRuns: depth(200, 3_000) },
    );
  },
);

test.each([...BUCKETS.slice(0, 4), "fair token-bucket"])(
  "%s: whatever is held and used under two quotas, none is in debt",
  (name) => {
    const isFair = name.startsWith("fair ");
    const algorithm = name.replace("fair ", "");
    const fields = specimens[algorithm]?.fields.map((given) =>
      seenByGroup(ruleOf({ algorithm, ...given, ...(isFair && { fair: true }) }), "a"),
    );
    if (fields === undefined) throw new Error(`no specimen of ${name}`);
    const step = fc.record({
      op: fc.constantFrom("take", "hold", "settle"),
      isOther: fc.boolean(),
      share: fc.constantFrom(0.1, 0.5, 1),
      which: fc.nat(3),
      afterMs: fc.oneof(fc.constant(0), fc.nat(500)),
    });
    fc.assert(
      fc.property(fields, fields, fc.array(step, { maxLength: 12 }), (one, other, steps) => {
        let [before, last, nowMs]: [Rule, Account, number] = [one, UNTOUCHED, START_MS];
        for (const [index, { op, isOther, share, which, afterMs }] of steps.entries()) {
          nowMs += afterMs;
          const rule = isOther ? other : one;
          const account = broughtTo(before, advance(before, last, nowMs), nowMs);
          const cost = Math.max(1, Math.floor(remainingOf(rule, account, nowMs) * share));
          const hold = op === "hold" && { hold: { id: `${index}`, expiresAtMs: nowMs + 700, group: "a" } };
          const { id = "", units = 0 } = account.holds[which] ?? {};
          const after =
            op === "settle"
              ? settle(rule, account, nowMs, id, Math.ceil(units * share))
              : decideTogether([{ rule, account }], nowMs, cost, hold || {}).accounts?.[0];
          if (after === undefined || after === account) continue;
          [before, last] = [rule, after];
          for (const each of [one, other]) {
            const next = decide(each, { state: after.state, holds: [] }, nowMs, 1);
            const waitMs = next.allowed ? 0 : (next.retryAfterMs ?? Infinity);
            expect(Math.max(waitMs, next.resetAfterMs)).toBeLessThanOrEqual(
              each.algorithm.refillMs(each.config, each.capacity + 1),
            );
          }
        }
      }),
      { numRuns: depth(300, 5_000) },
    );
  },
);

test("a debt ends where doubles stop to be exact, and is refused beyond: nothing is cut", () => {
  const rule = ruleOf({ algorithm: "token-bucket", limit: 1, window: "30d" });
  const most = Math.floor(MAX_PARTS / 2_592_000_000);
  expect(forced(rule, UNTOUCHED, START_MS, most + 1)).toEqual({ most });
  const owing = done(forced(rule, UNTOUCHED, START_MS, most - 1));
  expect(forced(rule, owing, START_MS, 2)).toEqual({ most });
  expect(decide(rule, done(forced(rule, owing, START_MS, 1)), START_MS, 0)).toMatchObject({
    resetAfterMs: most * 2_592_000_000,
  });
});

test("a log that has as many runs as it may have takes no more of them", () => {
  const rule = ruleOf({ algorithm: "sliding-log", limit: 1, window: "30d" });
  let account: Account = UNTOUCHED;
  let nowMs = START_MS;
  for (; nowMs <= START_MS + 1_000_000; nowMs += 1) account = done(forced(rule, account, nowMs, 1));
  expect(forced(rule, account, nowMs, 1)).toHaveProperty("most");
  expect(rule.algorithm.bytes?.(account.state)).toBeLessThan(17_000_000);
});

test("a forced call keeps the next one at its distance, and a set begins none", () => {
  const rule = ruleOf({ algorithm: "sliding-log", limit: 5, window: "1h", minInterval: "1s" });
  const after = done(forced(rule, UNTOUCHED, START_MS, 7));
  expect(decide(rule, after, START_MS + 500, 1)).toMatchObject({ reason: "quota", remaining: 0 });
  const one = done(forced(rule, UNTOUCHED, START_MS, 1));
  expect(decide(rule, one, START_MS + 400, 1)).toMatchObject({ reason: "min-interval", retryAfterMs: 600 });
  expect(decide(rule, done(withUsed(rule, one, START_MS, 2)), START_MS, 1).allowed).toBe(true);
});
