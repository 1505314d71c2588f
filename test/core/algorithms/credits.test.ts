import fc from "fast-check";
import { expect, test } from "vitest";
import {
  UNTOUCHED,
  fullAtMs,
  place,
  refund,
  remainingOf,
  untouchedAtMs,
} from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import { credits, END_MS } from "../../../core/algorithms/credits.ts";
import { forced, withUsed } from "../../../durable-objects/operations/limits.ts";
import { record } from "../../../durable-objects/storage/records.ts";
import { aheadUnits, restore } from "../../../durable-objects/storage/write-behind.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { ruleOf } from "../../support/rules.ts";

const NOW_MS = 1_760_000_000_000;
const TEN_YEARS_MS = 3_653 * 86_400_000;
const TRIAL = ruleOf({ algorithm: "credits", limit: 10, initial: 2 });

function taken(account: Account, cost: number, nowMs = NOW_MS): Account {
  const decision = decide(TRIAL, account, nowMs, cost);
  if (!decision.allowed) throw new Error(`${cost} should pass`);
  return decision.account;
}

test("the example of the essay: two pass, no time helps, and a refund of 5 makes 5 more pass", () => {
  const empty = taken(taken(UNTOUCHED, 1), 1);
  const never = { allowed: false, reason: "quota", retryAfterMs: null, remaining: 0 };
  for (const laterMs of [0, 1, TEN_YEARS_MS])
    expect(decide(TRIAL, empty, NOW_MS + laterMs, 1)).toMatchObject(never);
  const bought = refund(TRIAL, empty, NOW_MS, 5);
  expect(remainingOf(TRIAL, bought, NOW_MS + TEN_YEARS_MS)).toBe(5);
  expect(decide(TRIAL, taken(bought, 5), NOW_MS, 1)).toMatchObject(never);
});

test("a key never has more than the limit, and more than that never passes", () => {
  const full = refund(TRIAL, UNTOUCHED, NOW_MS, 1_000);
  expect(remainingOf(TRIAL, full, NOW_MS)).toBe(10);
  expect(decide(TRIAL, full, NOW_MS, 11)).toMatchObject({ allowed: false, reason: "cost-over-limit" });
  // A limit that is lowered counts at once, and what was over it is gone when the key is used next.
  const lower = ruleOf({ algorithm: "credits", limit: 4, initial: 2 });
  expect(remainingOf(lower, full, NOW_MS)).toBe(4);
});

test("a balance that is back where it began is as untouched, and needs no row", () => {
  const bought = refund(TRIAL, UNTOUCHED, NOW_MS, 3);
  expect(decide(TRIAL, bought, NOW_MS, 0)).toMatchObject({ remaining: 5 });
  expect(untouchedAtMs(TRIAL, bought, NOW_MS)).toBe(END_MS);
  expect(taken(bought, 3)).toEqual(UNTOUCHED);
  expect(untouchedAtMs(TRIAL, UNTOUCHED, NOW_MS)).toBe(NOW_MS);
});

test("the quota is whole with as many units as its limit, and with fewer it never is, however it began", () => {
  const fields = fc
    .record({ limit: fc.nat(20), initial: fc.nat(20) })
    .map(({ limit, initial }) => ({ limit, initial: Math.min(limit, initial) }));
  const changes = fc.array(fc.integer({ min: -8, max: 8 }), { maxLength: 8 });
  fc.assert(
    fc.property(fields, changes, fc.nat(8), fc.nat(3), ({ limit, initial }, each, cost, held) => {
      const rule = ruleOf({ algorithm: "credits", limit, ...(limit > 0 && { initial }) });
      let account: Account = UNTOUCHED;
      for (const units of each) {
        if (units > 0) account = refund(rule, account, NOW_MS, units);
        const decision = decide(rule, account, NOW_MS, Math.max(0, -units));
        if (decision.allowed) ({ account } = decision);
      }
      const decision = decide(rule, account, NOW_MS, cost);
      if (decision.allowed) ({ account } = decision);
      const isWhole = limit > 0 && decision.remaining === limit;
      expect(decision.resetAfterMs).toBe(isWhole ? 0 : END_MS - NOW_MS);
      expect(Number.isSafeInteger(NOW_MS + decision.resetAfterMs)).toBe(true);
      const units = Math.min(held, decision.remaining);
      if (units === 0) return;
      // Held units are used when the hold expires.
      const holding = place(account, { id: "a", units, expiresAtMs: NOW_MS + 7 });
      expect(fullAtMs(rule, holding, NOW_MS)).toBe(END_MS);
    }),
    { numRuns: depth(1_000, 5_000) },
  );
});

test("every history of taking, buying, giving back, debts and sets is that of a number in a purse", () => {
  const kinds = fc.constantFrom("take", "take", "take", "buy", "back", "force", "set", "hold", "store");
  const step = fc.record({ kind: kinds, units: fc.integer({ min: 1, max: 8 }), afterMs: fc.nat(9_000_000) });
  const fields = fc
    .record({ limit: fc.integer({ min: 1, max: 20 }), initial: fc.nat(20) })
    .map(({ limit, initial }) => ({ limit, initial: Math.min(limit, initial) }));
  fc.assert(
    fc.property(fields, fc.array(step, { maxLength: 40 }), ({ limit, initial }, steps) => {
      const rule = ruleOf({ algorithm: "credits", limit, initial });
      let account: Account = UNTOUCHED;
      let [purse, held, nowMs] = [initial, 0, NOW_MS];
      for (const { kind, units, afterMs } of steps) {
        nowMs += afterMs;
        if (kind === "take") {
          const decision = decide(rule, account, nowMs, units);
          expect(decision.allowed).toBe(units <= purse - held);
          if (decision.allowed) [account, purse] = [decision.account, purse - units];
          else expect(decision.retryAfterMs).toBe(null);
        } else if (kind === "hold") {
          if (units > purse - held) continue;
          account = place(account, { id: `${nowMs} ${held}`, units, expiresAtMs: 2 ** 51 });
          held += units;
        } else if (kind === "store") {
          const { stored } = record(
            rule,
            { ...account, holds: [] },
            0,
            nowMs,
            { leastMs: 0, mostMs: 0 },
            undefined,
          );
          const { state } = restore(rule, JSON.parse(JSON.stringify(stored)), [], nowMs, 0);
          account = { ...account, state };
        } else {
          const changed =
            kind === "buy"
              ? refund(rule, account, nowMs, units)
              : kind === "back"
                ? refund(rule, account, nowMs, units, nowMs - 5_000)
                : (kind === "force" ? forced : withUsed)(rule, account, nowMs, units);
          if ("most" in changed) throw new Error("so few units can be counted");
          account = changed;
          purse =
            kind === "set"
              ? initial - units
              : kind === "force"
                ? purse - units
                : Math.min(limit, purse + units);
        }
        expect(remainingOf(rule, account, nowMs)).toBe(Math.max(0, purse - held));
      }
    }),
    { numRuns: depth(1_000, 5_000) },
  );
});

test("neither a crash nor an isolate may cost units: memory is never ahead, and nothing is reserved", () => {
  expect(aheadUnits(ruleOf({ algorithm: "credits", limit: 1_000_000 }))).toBe(0);
  expect(credits.localDecisions({ limit: 5, initial: 5 })).toEqual({ admits: false, denies: true });
});

test("a key may begin with nothing, and with no more than its limit; pools have none", () => {
  const bought = ruleOf({ algorithm: "credits", limit: 10, initial: 0 });
  expect(decide(bought, UNTOUCHED, NOW_MS, 1)).toMatchObject({
    allowed: false,
    reason: "quota",
    resetAfterMs: END_MS - NOW_MS,
  });
  expect(() => ruleOf({ algorithm: "credits", limit: 10, initial: 11 })).toThrow(
    "initial is 11: must be at most the limit of 10",
  );
  expect(() => ruleOf({ algorithm: "credits", limit: 0, initial: 1 })).toThrow(
    "initial is 1: must be left out",
  );
  expect(() => ruleOf({ algorithm: "credits", limit: 9, pool: "redis" })).toThrow(
    'must be left out with algorithm "credits"',
  );
});
