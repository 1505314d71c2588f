/** Laws of every algorithm that tells admitted calls to wait (`delayMs`), beside those in laws.test.ts. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  UNTOUCHED,
  advance,
  decideTogether,
  place,
  settle,
  withoutTaking,
} from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { ruleWith, specimens } from "../../support/algorithms.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { bucket } from "../../support/rules.ts";

/** A call some milliseconds after the one before it; of a hold, how long it lasts and which part of it is used. */
const call = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.nat(50), fc.nat(5_000), fc.nat(5_000_000)),
  cost: fc.oneof(fc.integer({ min: 1, max: 5 }), fc.nat(2_000_000)),
  held: fc.option(fc.record({ forMs: fc.integer({ min: 1, max: 9_000 }), part: fc.nat(10) }), { freq: 3 }),
});
const history = fc.array(call, { maxLength: 25 });
type Call = typeof call extends fc.Arbitrary<infer Value> ? Value : never;
const START_MS = 1_760_000_000_000;

/** When a caller went on that waited as told, and with how many units. */
interface Going {
  readonly nowMs: number;
  readonly goesMs: number;
  readonly cost: number;
}

/** Plays a history; calls with `held` take a hold, and settle it when the next call comes after a part of its time. */
function play(rule: Rule, calls: readonly Call[]): { account: Account; nowMs: number; going: Going[] } {
  let [account, nowMs] = [UNTOUCHED, START_MS];
  const going: Going[] = [];
  const open: { id: string; atMs: number; cost: number }[] = [];
  for (const [index, { afterMs, cost, held }] of calls.entries()) {
    nowMs += afterMs;
    for (const due of open.splice(0).toSorted((one, other) => one.atMs - other.atMs)) {
      if (due.atMs > nowMs) open.push(due);
      else account = settle(rule, advance(rule, account, due.atMs), due.atMs, due.id, due.cost);
    }
    account = advance(rule, account, nowMs);
    const taking = held === null ? {} : { hold: { id: `${index}`, expiresAtMs: nowMs + held.forMs } };
    const { accounts, rules } = decideTogether([{ rule, account }], nowMs, cost, taking);
    if (accounts === undefined || cost === 0) continue;
    account = accounts[0] ?? account;
    going.push({ nowMs, goesMs: nowMs + (rules[0]?.delayMs ?? 0), cost });
    if (held !== null)
      open.push({ id: `${index}`, atMs: nowMs + Math.floor((held.forMs * held.part) / 10), cost });
  }
  return { account, nowMs, going };
}

/** How long an account tells a call to wait. */
const delayOf = (rule: Rule, account: Account, nowMs: number, cost: number): number => {
  const decision = decide(rule, account, nowMs, cost);
  return decision.allowed ? (decision.delayMs ?? 0) : 0;
};

const delaying = [...algorithms.values()].filter(({ name }) => specimens[name]?.delays !== undefined);

describe.each(delaying)("$name", (algorithm) => {
  const specimen = specimens[algorithm.name];
  if (specimen?.delays === undefined) throw new Error("no delays");
  const { fields, delays } = specimen;

  test("callers that wait as told go on within the bound, in any interval, with holds or without", () => {
    fc.assert(
      fc.property(fields, history, (given, calls) => {
        const { going } = play(ruleWith(algorithm, given), calls);
        const gone = going.toSorted((one, other) => one.goesMs - other.goesMs);
        for (const [index, last] of gone.entries()) {
          let [units, largest] = [0, 0];
          for (const first of gone.slice(0, index + 1).toReversed()) {
            units += first.cost;
            largest = Math.max(largest, first.cost);
            expect(delays.keepsPace(given, units, last.goesMs - first.goesMs, largest)).toBe(true);
          }
        }
      }),
      { numRuns: depth(50, 5_000) },
    );
  });

  test("nobody that takes units at once is told to go on before those that came earlier", () => {
    fc.assert(
      fc.property(fields, history, (given, calls) => {
        const rule = ruleWith(algorithm, given);
        const { going } = play(
          rule,
          calls.map((each) => ({ ...each, held: null })),
        );
        for (const [index, { goesMs }] of going.entries())
          expect(goesMs).toBeGreaterThanOrEqual(going[index - 1]?.goesMs ?? 0);
      }),
    );
  });

  test("a delay is a whole number of milliseconds, 1 or more, and never over the longest", () => {
    fc.assert(
      fc.property(fields, history, call, (given, calls, { cost }) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const decision = decide(rule, account, nowMs, cost);
        if (!decision.allowed) {
          expect(decision).not.toHaveProperty("delayMs");
          return;
        }
        if (decision.delayMs === undefined) return;
        expect(cost).toBeGreaterThan(0);
        expect(Number.isSafeInteger(decision.delayMs)).toBe(true);
        expect(decision.delayMs).toBeGreaterThan(0);
        expect(decision.delayMs).toBeLessThanOrEqual(delays.mostMs(given));
      }),
    );
  });

  test("units that are held delay a call as units that were taken do", () => {
    fc.assert(
      fc.property(
        fields,
        history,
        fc.nat(20),
        fc.integer({ min: 1, max: 20 }),
        (given, calls, units, cost) => {
          const rule = ruleWith(algorithm, given);
          const { nowMs, ...played } = play(
            rule,
            calls.map((each) => ({ ...each, held: null })),
          );
          const taken = decide(rule, played.account, nowMs, units);
          if (!taken.allowed || units === 0) return;
          const held = place(played.account, { id: "held", units, expiresAtMs: nowMs + 9_000 });
          expect(delayOf(rule, held, nowMs, cost)).toBe(delayOf(rule, taken.account, nowMs, cost));
        },
      ),
    );
  });

  test("after a cost of n, everybody is told what is told after n costs of 1", () => {
    const later = fc.array(fc.record({ afterMs: fc.nat(2_000), cost: fc.integer({ min: 1, max: 9 }) }));
    fc.assert(
      fc.property(fields, history, fc.integer({ min: 2, max: 30 }), later, (given, calls, cost, others) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const whole = decide(rule, account, nowMs, cost);
        if (!whole.allowed) return;
        let [one, all, atMs] = [account, whole.account, nowMs];
        for (let count = 0; count < cost; count += 1) {
          const single = decide(rule, one, nowMs, 1);
          if (!single.allowed) throw new Error("n costs of 1 pass where a cost of n does");
          one = single.account;
        }
        for (const { afterMs, cost: other } of others) {
          atMs += afterMs;
          const answers = [one, all].map((each) => decide(rule, advance(rule, each, atMs), atMs, other));
          const [first, second] = answers.map((each) => ({ ...each, account: undefined }));
          expect(first).toEqual(second);
          [one, all] = answers.map((each, index) =>
            each.allowed ? each.account : ([one, all][index] ?? UNTOUCHED),
          ) as [Account, Account];
        }
      }),
    );
  });

  test("what is stored, when it covers, tells nobody a shorter delay than what was lost", () => {
    const part = fc.array(call, { maxLength: 6 });
    fc.assert(
      fc.property(fields, history, part, fc.nat(400), (given, first, second, ahead) => {
        const rule = ruleWith(algorithm, given);
        const atOnce = (calls: readonly Call[]) => calls.map((each) => ({ ...each, held: null }));
        const before = play(rule, atOnce(first));
        const { account, nowMs } = play(rule, atOnce([...first, ...second]));
        const { state } = before.account;
        const record = state && algorithm.pack(rule.config, state, before.nowMs, undefined).record;
        if (!algorithm.covers(rule.config, record, ahead, account.state, 0, nowMs)) return;
        const restored = place(before.account, { id: "lost", units: ahead, expiresAtMs: nowMs + 9_000 });
        const decision = decide(rule, restored, nowMs, 1);
        if (decision.allowed)
          expect(decision.delayMs ?? 0).toBeGreaterThanOrEqual(delayOf(rule, account, nowMs, 1));
      }),
      { numRuns: depth(50, 3_000) },
    );
  });

  test("of several rules each says its delay, also of a hold, and a look says it beforehand", () => {
    const plain = bucket({ limit: 1_000_000, window: 1_000 });
    fc.assert(
      fc.property(fields, history, fc.boolean(), (given, calls, isHold) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const both = [
          { rule: plain, account: UNTOUCHED },
          { rule, account },
        ];
        const look = withoutTaking(both, nowMs, 1);
        const hold = { id: "hold", expiresAtMs: nowMs + 1_000 };
        const { admitted, rules } = decideTogether(both, nowMs, 1, isHold ? { hold } : {});
        if (!admitted) return;
        expect(rules.map(({ delayMs: told }) => told)).toEqual(look.map(({ delayMs: told }) => told));
        expect(rules[0]).not.toHaveProperty("delayMs");
        expect(rules[1]?.delayMs ?? 0).toBe(delayOf(rule, account, nowMs, 1));
      }),
    );
  });

  test("some of these histories are told to wait, or no law here says anything", () => {
    const waits = fc.sample(fc.tuple(fields, history), { seed: 1, numRuns: 200 }).filter(([given, calls]) => {
      const { going } = play(ruleWith(algorithm, given), calls);
      return going.some(({ nowMs, goesMs }) => goesMs > nowMs);
    });
    expect(waits.length).toBeGreaterThan(20);
  });
});
