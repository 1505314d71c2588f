import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  UNTOUCHED,
  advance,
  decideTogether,
  endLease,
  place,
  placeNoted,
  settle,
  withoutTaking,
} from "../../../core/accounts/account.ts";
import type { Account, RuleAccount } from "../../../core/accounts/hold.ts";
import { type QueuedCost, waitBehindMs } from "../../../core/accounts/queue-waits.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import * as plain from "../../support/plain-accounts.ts";
import { log, reachable, ruleOf } from "../../support/rules.ts";

const units = fc.integer({ min: 1, max: 12 });
const limit = fc.integer({ min: 1, max: 40 });
/** With the long one, a debt has more parts than a bucket can count. */
const window = fc.oneof({ weight: 9, arbitrary: fc.integer({ min: 1, max: 900 }) }, fc.constant(5_000_000));
const carrying = fc
  .record({ limit, window, carry: units })
  .map((fields) => ({ algorithm: "fixed-window", ...fields }));
const rate = fc.oneof(
  carrying,
  fc
    .record({ limit, window, burst: limit })
    .map((fields) => ({ algorithm: "token-bucket", ...reachable(fields) })),
  fc
    .record({ limit, window, minInterval: fc.constantFrom(0, 0, 7, 60), countDenied: fc.boolean() })
    .map(({ minInterval, ...fields }) => ({
      algorithm: "sliding-log",
      ...fields,
      ...(minInterval > 0 && { minInterval }),
    })),
  fc
    .record({
      limit,
      window,
      windows: fc.constantFrom("epoch", "first", "jitter"),
    })
    .map(({ windows, ...fields }) => ({
      algorithm: "fixed-window",
      ...fields,
      ...(windows === "first" && { align: windows }),
      ...(windows === "jitter" && fields.window > 1 && { jitter: Math.floor(fields.window / 2) }),
    })),
  fc.record({ limit, window }).map((fields) => ({ algorithm: "sliding-window-counter", ...fields })),
);
/** So quick to learn and to forget that both happen on the way. */
const LEARNING = { adapt: "aimd", backoffRatio: 0.5, forgetAfter: 300 };
const slots = fc.tuple(limit, limit, fc.boolean()).map(([one, other, adapts]) =>
  adapts
    ? {
        algorithm: "adaptive-concurrency",
        limit: Math.max(one, other),
        initial: Math.min(one, other),
        ...LEARNING,
      }
    : { algorithm: "concurrency", limit: one },
);
/** A rule, and that of a larger plan. */
interface Planned {
  readonly own: Rule;
  readonly larger: Rule;
}
const rules = planned(fc.oneof(rate, slots));

function planned(fields: fc.Arbitrary<Readonly<Record<string, unknown>>>): fc.Arbitrary<Planned[]> {
  return fc
    .array(fc.tuple(fields, fc.integer({ min: 1, max: 5 })), { minLength: 1, maxLength: 3 })
    .map((tables) =>
      tables.map(([each, times], index) => {
        const own = { ...each, unit: `u${index % 2}` };
        return { own: ruleOf(own), larger: ruleOf(enlarged(own, times)) };
      }),
    );
}

function enlarged(fields: Readonly<Record<string, unknown>>, times: number): Record<string, unknown> {
  const larger = Object.entries(fields).map(([name, value]) => [
    name,
    ["limit", "burst", "carry"].includes(name) ? times * Number(value) : value,
  ]);
  return Object.fromEntries(larger);
}

/** A cost for every rule, or one by unit. */
const cost = fc.oneof(
  fc.nat(12),
  units.map((u0) => ({ u0 })),
  fc.record({ u0: fc.nat(6), u1: fc.nat(6) }),
);

/** What happened to a key: units used, held or leased, or taken without a decision, holds settled with as many units or far more. */
const event = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.nat(20), fc.nat(300)),
  kind: fc.constantFrom("use", "hold", "hold", "hold", "settle", "overspend", "force"),
  units,
  isLarger: fc.oneof({ weight: 3, arbitrary: fc.constant(false) }, fc.constant(true)),
  // Few instants, so that many things end at the same one.
  lifeMs: fc.oneof(fc.constantFrom(100, 200, 500), fc.integer({ min: 1, max: 1_500 })),
});
const events = fc.array(event, { maxLength: 20 });
type Event = typeof event extends fc.Arbitrary<infer Value> ? Value : never;

const START_MS = 10_000;
const REPORTS = {
  settle: { outcome: "ok", durationMs: 1 },
  overspend: { outcome: "dropped", durationMs: 1 },
} as const;

/** The accounts after these events, advanced to the instant after the last. */
function played(rulesOfKey: readonly Planned[], happened: readonly Event[], debt: number, backMs: number) {
  let nowMs = START_MS;
  let accounts = rulesOfKey.map(() => UNTOUCHED);
  for (const [index, happening] of happened.entries()) {
    nowMs += happening.afterMs;
    accounts = rulesOfKey.map(({ own, larger }, each) => {
      const rule = happening.isLarger ? larger : own;
      const account = advance(rule, accounts[each] ?? UNTOUCHED, nowMs);
      return after(rule, account, nowMs, { ...happening, id: `${index}`, debt });
    });
  }
  const atMs = nowMs - backMs;
  return {
    nowMs: atMs,
    ruleAccounts: rulesOfKey.map(({ own: rule }, each): RuleAccount => ({
      rule,
      account: advance(rule, accounts[each] ?? UNTOUCHED, atMs),
    })),
  };
}

function after(
  rule: Rule,
  account: Account,
  nowMs: number,
  { kind, units: asked, lifeMs, id, debt }: Event & { readonly id: string; readonly debt: number },
): Account {
  const decision = decide(rule, account, nowMs, asked);
  const [first] = account.holds;
  if (first && rule.algorithm.limitNow && (kind === "settle" || kind === "overspend"))
    return endLease(rule, account, nowMs, first.id, REPORTS[kind]);
  if (kind === "settle" && first) return settle(rule, account, nowMs, first.id, asked);
  if (kind === "overspend" && first) return settle(rule, account, nowMs, first.id, debt);
  if (kind === "force" && rule.lease === undefined)
    return { ...account, state: rule.algorithm.debit(rule.config, account.state, nowMs, 4 * asked) };
  if (!decision.allowed) return decision.counted?.account ?? account;
  const hold = { id, units: asked, expiresAtMs: nowMs + lifeMs };
  if (rule.lease) return place(decision.account, hold);
  return kind === "hold" ? placeNoted(rule, account, nowMs, hold) : decision.account;
}

const debts = fc.oneof(fc.integer({ min: 0, max: 50 }), fc.constantFrom(2 ** 31, 2 ** 32 - 9));
const backwards = fc.oneof({ weight: 4, arbitrary: fc.constant(0) }, fc.nat(400));
const key = fc.tuple(rules, events, debts, backwards).map((drawn) => played(...drawn));

/** Whether a rule admits a cost at an instant, if no call comes until then. */
function passesAt({ rule, account }: RuleAccount, atMs: number, asked: number): boolean {
  return decide(rule, advance(rule, account, atMs), atMs, asked).allowed;
}

describe("with holds that expire on the way", () => {
  test.each([
    ["any", rules, depth(300, 10_000)],
    ["a fixed window with carry", planned(carrying), depth(1_500, 10_000)],
  ])(
    "a denied cost passes after the wait that is said, and not a millisecond before: %s",
    (_, of, numRuns) => {
      const forwards = fc.tuple(of, events, fc.nat(50), fc.constant(0)).map((drawn) => played(...drawn));
      fc.assert(
        fc.property(forwards, units, ({ ruleAccounts, nowMs }, asked) => {
          for (const each of ruleAccounts) {
            const [said] = withoutTaking([each], nowMs, asked);
            if (said === undefined || said.success) continue;
            const waitMs = said.retryAfterMs;
            if (waitMs !== null) expect(passesAt(each, nowMs + waitMs, asked)).toBe(true);
            expect(passesAt(each, nowMs + (waitMs ?? 1e12) - 1, asked)).toBe(false);
          }
        }),
        { numRuns },
      );
    },
  );

  test("what the rules say of a cost is what looking at one hold after another says", () => {
    fc.assert(
      fc.property(key, cost, ({ ruleAccounts, nowMs }, asked) => {
        expect(withoutTaking(ruleAccounts, nowMs, asked)).toEqual(
          plain.withoutTaking(ruleAccounts, nowMs, asked),
        );
      }),
      { numRuns: depth(100, 4_000) },
    );
  });

  test.each(["nothing", "lease", "hold"])(
    "a cost that is taken, with a new hold (%s), leaves the same behind",
    (kind) => {
      fc.assert(
        fc.property(key, cost, ({ ruleAccounts, nowMs }, asked) => {
          // Other holds often end at that instant too.
          const expiresAtMs = 100 * Math.floor(nowMs / 100 + 1);
          const taking = { [kind]: { id: "new", expiresAtMs } };
          const { rules: said, admitted, accounts } = decideTogether(ruleAccounts, nowMs, asked, taking);
          const expected = plain.decideTogether(ruleAccounts, nowMs, asked, taking);
          expect({ said, admitted }).toEqual({ said: expected.rules, admitted: expected.admitted });
          for (const [index, { rule }] of ruleAccounts.entries()) {
            const [found, wanted] = [accounts?.[index], expected.accounts?.[index]];
            expect(found === undefined).toBe(wanted === undefined);
            if (found === undefined || wanted === undefined) continue;
            expect(found.holds).toEqual(wanted.holds);
            for (const laterMs of [nowMs, nowMs + 1, nowMs + 250, nowMs + 2_000])
              expect(
                plain.withoutTaking([{ rule, account: advance(rule, found, laterMs) }], laterMs, 3),
              ).toEqual(plain.withoutTaking([{ rule, account: advance(rule, wanted, laterMs) }], laterMs, 3));
          }
        }),
        { numRuns: depth(50, 2_000) },
      );
    },
  );
});

test("of a debt that is too large for a log, what is cut off is cut off in the figures too", () => {
  const hold = fc.record({ units, expiresAtMs: fc.integer({ min: START_MS, max: START_MS + 400 }) });
  fc.assert(
    fc.property(limit, fc.nat(12), fc.array(hold, { maxLength: 4 }), units, (most, room, holds, asked) => {
      const rule = log({ limit: most, window: 300 });
      const debt = 2 ** 32 - 1 - room;
      let account: Account = {
        state: rule.algorithm.debit(rule.config, undefined, START_MS, debt),
        holds: [],
      };
      for (const [id, each] of holds.entries()) account = place(account, { id: `${id}`, ...each });
      account = advance(rule, account, START_MS);
      const ruleAccounts = [{ rule, account }];
      expect(withoutTaking(ruleAccounts, START_MS, asked)).toEqual(
        plain.withoutTaking(ruleAccounts, START_MS, asked),
      );
    }),
    { numRuns: depth(400, 4_000) },
  );
});

describe("behind a queue", () => {
  const queue = fc.array(
    fc.record({
      cost,
      ttlMs: fc.oneof(fc.constantFrom(100, 400), fc.integer({ min: 1, max: 1_000 })),
      waitsMs: fc.oneof(fc.constantFrom(0, 100, 5_000), fc.nat(1_500)),
    }),
    { maxLength: 8 },
  );
  const waiting = (drawn: readonly (Omit<QueuedCost, "untilMs"> & { waitsMs: number })[], nowMs: number) =>
    drawn.map(({ waitsMs, ...waiter }): QueuedCost => ({ ...waiter, untilMs: nowMs + waitsMs }));

  test("the wait is that of playing the queue through, waiter by waiter", () => {
    fc.assert(
      fc.property(key, queue, cost, ({ ruleAccounts, nowMs }, drawn, asked) => {
        const waiters = waiting(drawn, nowMs);
        expect(waitBehindMs(ruleAccounts, waiters, asked, nowMs)).toBe(
          plain.waitBehindMs(ruleAccounts, waiters, asked, nowMs),
        );
      }),
      { numRuns: depth(130, 6_000) },
    );
  });

  test("without waiters it is the wait for all rules", () => {
    fc.assert(
      fc.property(key, cost, ({ ruleAccounts, nowMs }, asked) => {
        const waitMs = plain.waitBehindMs(ruleAccounts, [], asked, nowMs);
        expect(waitBehindMs(ruleAccounts, [], asked, nowMs)).toBe(waitMs);
      }),
      { numRuns: depth(50, 2_000) },
    );
  });
});
