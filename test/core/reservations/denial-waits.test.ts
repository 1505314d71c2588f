/** What a repeated denial says of its wait, whatever the same holder had admitted since the object denied. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { decideTogether } from "../../../core/accounts/account.ts";
import type { RuleAccount } from "../../../core/accounts/hold.ts";
import type { RuleDecision } from "../../../core/protocol/answers.ts";
import { Reservation } from "../../../core/reservations/reservation.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { denied, granting, said, withUnits } from "../../support/reservations.ts";

const RATE = { limit: 20, window: "20s" };
const POLICIES = parsePolicies({
  bucket: { algorithm: "token-bucket", ...RATE },
  log: { algorithm: "sliding-log", ...RATE },
  window: { algorithm: "fixed-window", ...RATE },
  counter: { algorithm: "sliding-window-counter", ...RATE },
  cycles: { algorithm: "permits-per-cycle", limit: 2, window: "2s" },
  credits: { algorithm: "credits", limit: 40 },
  two: {
    rules: {
      calls: { algorithm: "token-bucket", ...RATE, burst: 30 },
      tokens: { algorithm: "sliding-log", ...RATE, unit: "tokens" },
    },
  },
});
const TTL_MS = 1_000;
const call = fc.record({
  cost: fc.constantFrom(1, 3, 5, 6),
  gapMs: fc.oneof(fc.constant(0), fc.nat(200), fc.nat(2_000)),
  /** Units that come with the object's answer. */
  granted: fc.oneof(fc.constant(0), fc.nat(6)),
});

const waitOf = (rules: readonly RuleDecision[]) =>
  Math.max(0, ...rules.map((rule) => (rule.success ? 0 : (rule.retryAfterMs ?? Infinity))));

test.each([...POLICIES])(
  "of %s is never shorter than the exact wait, and its call is denied by the object too",
  (_, policy) => {
    let repeated = 0;
    const plays = (calls: readonly { cost: number; gapMs: number; granted: number }[]) => {
      const made = new Reservation(policy, "key", "holder", 0);
      // What was admitted and spent: units that are held, and not spent yet, may still be returned.
      let all: readonly RuleAccount[] = policy.rules.map((rule) => ({
        rule,
        account: { state: undefined, holds: [] },
      }));
      let nowMs = 0;
      for (const { cost: units, gapMs, granted } of calls) {
        nowMs += gapMs;
        const cost = policy.rules.length > 1 ? { calls: 1, tokens: units } : units;
        const exact = decideTogether(all, nowMs, cost);
        const isOwn = made.spend(cost, nowMs);
        const repeats = isOwn ? undefined : made.deny(cost, nowMs, true);
        if (repeats !== undefined) {
          repeated += 1;
          expect(exact.admitted).toBe(false);
          expect(waitOf(repeats.rules)).toBeGreaterThanOrEqual(waitOf(exact.rules));
          continue;
        }
        if (exact.admitted)
          all = all.map(({ rule, account }, index) => ({
            rule,
            account: exact.accounts?.[index] ?? account,
          }));
        if (isOwn) {
          expect(exact.admitted).toBe(true);
          continue;
        }
        const left = exact.rules.map(({ remaining }) => remaining);
        const grant = Math.min(granted, ...left);
        const answer = { ...granting(policy, grant, { ttlMs: TTL_MS }), rules: exact.rules };
        made.answered(
          made.ask(cost, nowMs),
          policy.localDecisions.admits ? answer : { rules: exact.rules },
          nowMs,
        );
      }
    };
    fc.assert(fc.property(fc.array(call, { minLength: 30, maxLength: 60 }), plays), {
      numRuns: depth(300, 20_000),
    });
    expect(repeated).toBeGreaterThan(100);
  },
);

test("is asked for again once the object has admitted any cost, and so is that of units that were spent here", () => {
  const made = withUnits(0);
  const denies = (cost: number) => made.learn(cost, { rules: denied(made.policy, 900) }, 1);
  for (const cost of [1, 5, 6]) denies(cost);
  made.learn(5, { rules: said(made.policy, { remaining: 1 }) }, 2);
  expect([1, 5, 6].map((cost) => made.deny(cost, 3))).toEqual(Array.from({ length: 3 }));
  made.answered(made.ask(0, 1), granting(made.policy, 4), 2);
  for (const cost of [5, 6]) denies(cost);
  made.spend(5, 3);
  expect([5, 6].map((cost) => made.deny(cost, 3) !== undefined)).toEqual([true, true]);
  made.spend(1, 3);
  expect([5, 6].map((cost) => made.deny(cost, 3))).toEqual([undefined, undefined]);
});

test("of calls of one cost on a hot key is kept: an admission comes with the denial of the next, and units come with none", () => {
  const made = withUnits(0);
  const next = denied(made.policy, 60);
  made.learn(1, { rules: said(made.policy), next }, 1);
  expect(made.deny(1, 2)).toBeDefined();
  made.answered(made.ask(0, 2), granting(made.policy, 1), 3);
  expect(made.spend(1, 4)).toBe(true);
  expect(made.deny(1, 5)?.rules).toMatchObject([{ retryAfterMs: 56 }]);
});
