import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  UNTOUCHED,
  advance,
  decideTogether,
  endLease,
  place,
  waitMs,
  untouchedAtMs,
  withoutTaking,
} from "../../../core/accounts/account.ts";
import { waitBehindMs } from "../../../core/accounts/queue-waits.ts";
import {
  adaptiveConcurrency,
  type AdaptiveConfig,
  type AdaptiveState,
} from "../../../core/algorithms/adaptive/adaptive-concurrency.ts";
import type { Outcome } from "../../../core/algorithms/algorithm.ts";
import { parsePolicy } from "../../../core/policies/parse-policy.ts";
import { relaxedRule, type Rule } from "../../../core/policies/policy.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { PlainLimit } from "../../support/plain-limits.ts";
import { ruleOf } from "../../support/rules.ts";

const AIMD = ruleOf({ algorithm: "adaptive-concurrency", adapt: "aimd", limit: 20, initial: 10, ttl: "1h" });
const START_MS = 1_760_000_000_000;

/** An account with so many leases of one unit each, called 0, 1, 2. */
function leased(rule: Rule, count: number, nowMs: number) {
  let account = UNTOUCHED;
  for (let id = 0; id < count; id += 1) {
    const decision = decide(rule, account, nowMs, 1);
    if (!decision.allowed) throw new Error(`${id} leases fit`);
    account = place(decision.account, { id: `${id}`, units: 1, expiresAtMs: nowMs + 3_600_000 });
  }
  return account;
}

const limitOf = (rule: Rule, state: unknown, nowMs: number) =>
  rule.algorithm.limitNow?.(rule.config, state, nowMs) ?? 0;

test("the example of the essay: a drop takes no lease away, and the next waits until enough are back", () => {
  const full = leased(AIMD, 10, 0);
  const dropped = endLease(AIMD, full, 1_000, "0", { outcome: "dropped", durationMs: 1_000 });
  expect(decide(AIMD, dropped, 1_000, 1)).toMatchObject({ allowed: false, remaining: 0, reason: "quota" });
  expect(dropped.holds).toHaveLength(9);
  const back = endLease(AIMD, dropped, 1_001, "1", { outcome: "ok", durationMs: 5 });
  expect(limitOf(AIMD, back.state, 1_001)).toBe(10);
  expect(decide(AIMD, back, 1_001, 2)).toMatchObject({ allowed: true, remaining: 0 });
  expect(decide(AIMD, back, 1_001, 3).allowed).toBe(false);
});

test.each([9, 10, 200])(
  "with a ceiling of %d no holder leases by itself: it does not know the limit",
  (limit) => {
    const table = { algorithm: "adaptive-concurrency", limit, ttl: "10s" };
    const plain = parsePolicy("p", table);
    // As it may be stored. It is not written any more.
    const ordered = parsePolicy("p", { ...table, order: "relaxed" });
    if ("problems" in plain || "problems" in ordered) throw new Error("both can be read");
    expect([relaxedRule(plain), relaxedRule(ordered)]).toEqual([undefined, undefined]);
    for (const order of ["strict", "relaxed"])
      for (const fields of [{ ...table, order }, { rules: { a: { ...table, order } } }])
        expect(() => parsePolicies({ p: fields })).toThrow(
          `order is "${order}": must be left out with algorithm "adaptive-concurrency"`,
        );
  },
);

test("the limit of a decision is the present one", () => {
  const dropped = endLease(AIMD, leased(AIMD, 1, 0), 10, "0", { outcome: "dropped", durationMs: 10 });
  const ruleAccounts = [{ rule: AIMD, account: dropped }];
  expect(withoutTaking(ruleAccounts, 10, 1)).toMatchObject([{ limit: 9, remaining: 9 }]);
  const lease = { id: "a", expiresAtMs: 5_000 };
  const granted = decideTogether(ruleAccounts, 10, 4, { lease });
  expect(granted.rules).toMatchObject([{ success: true, limit: 9, remaining: 5 }]);
  expect(decideTogether(ruleAccounts, 10, 10).rules).toMatchObject([{ success: false, limit: 9 }]);
  expect(withoutTaking([{ rule: AIMD, account: UNTOUCHED }], 10, 1)).toMatchObject([{ limit: 10 }]);
});

test("a lease that is ignored, that expires, or whose duration is not known teaches nothing", () => {
  const one = leased(AIMD, 1, 0);
  for (const report of [
    { outcome: "ignore", durationMs: 10 } as const,
    { outcome: "dropped", durationMs: undefined } as const,
  ]) {
    const ended = endLease(AIMD, one, 10, "0", report);
    expect(ended).toMatchObject({ holds: [], state: { reclaimed: 0 } });
    expect(ended.state).not.toHaveProperty("learned");
  }
  const expired = advance(AIMD, one, 3_600_000);
  expect(expired.state).toMatchObject({ reclaimed: 1 });
  expect(expired.state).not.toHaveProperty("learned");
  expect(endLease(AIMD, expired, 3_600_000, "0", { outcome: "dropped", durationMs: 1 })).toBe(expired);
});

test("what was learned is kept ten minutes after the last report, and is then forgotten; waits know that", () => {
  const full = leased(AIMD, 1, 0);
  const dropped = endLease(AIMD, full, 1_000, "0", { outcome: "dropped", durationMs: 10 });
  expect(untouchedAtMs(AIMD, dropped, 1_000)).toBe(601_000);
  expect(decide(AIMD, dropped, 600_999, 10)).toMatchObject({ allowed: false, retryAfterMs: 1 });
  expect(decide(AIMD, dropped, 601_000, 10)).toMatchObject({ allowed: true });
  expect(waitBehindMs([{ rule: AIMD, account: dropped }], [], 10, 2_000)).toBe(599_000);
  // 11 units were never possible, and nothing but reports makes them possible.
  expect(decide(AIMD, dropped, 600_999, 11)).toMatchObject({ reason: "cost-over-limit", retryAfterMs: null });
  // Once it is forgotten, learning begins anew.
  const again = decide(AIMD, dropped, 700_000, 1);
  if (!again.allowed) throw new Error("a unit is free");
  const held = place(again.account, { id: "b", units: 1, expiresAtMs: 800_000 });
  const later = endLease(AIMD, held, 700_010, "b", { outcome: "dropped", durationMs: 10 });
  expect(later.state).toMatchObject({ learned: { limit: 9, samples: 1 } });
});

test("a policy that changes keeps the limit within the new bounds; another rule begins from the limit alone", () => {
  const full = leased(AIMD, 10, 0);
  const risen = endLease(AIMD, full, 10, "0", { outcome: "ok", durationMs: 10 });
  expect(limitOf(AIMD, risen.state, 10)).toBe(11);
  const lower = ruleOf({ algorithm: "adaptive-concurrency", adapt: "aimd", limit: 8 });
  const higher = ruleOf({ algorithm: "adaptive-concurrency", adapt: "aimd", limit: 50, floor: 15 });
  expect(limitOf(lower, risen.state, 10)).toBe(8);
  expect(limitOf(higher, risen.state, 10)).toBe(15);
  const vegas = ruleOf({ algorithm: "adaptive-concurrency", adapt: "vegas", limit: 50 });
  const first = endLease(vegas, risen, 20, "1", { outcome: "ok", durationMs: 7 });
  expect(first.state).toMatchObject({ learned: { by: "vegas", limit: 11, noLoadMs: 7, samples: 2 } });
});

describe("a random history of grants, releases and expiries", () => {
  const fields = fc
    .record({
      adapt: fc.constantFrom("aimd", "vegas", "gradient2"),
      limit: fc.integer({ min: 1, max: 60 }),
      floor: fc.integer({ min: 1, max: 6 }),
      initial: fc.integer({ min: 1, max: 60 }),
      ttl: fc.integer({ min: 50, max: 3_000 }),
      forgetAfter: fc.integer({ min: 20, max: 3_000 }),
    })
    .map(({ limit, floor, initial, ...rest }) => {
      const least = Math.min(floor, limit);
      return { ...rest, limit, floor: least, initial: Math.max(least, Math.min(initial, limit)) };
    });
  const step = fc.record({
    afterMs: fc.oneof({ weight: 4, arbitrary: fc.nat(20) }, fc.nat(1_500)),
    units: fc.oneof({ weight: 5, arbitrary: fc.constant(1) }, fc.integer({ min: 1, max: 12 })),
    /** Which lease is released before the grant; by most steps one is. */
    index: fc.option(fc.nat(30), { freq: 4 }),
    outcome: fc.constantFrom<Outcome>("ok", "ok", "ok", "ignore", "dropped"),
    durationMs: fc.oneof(
      fc.integer({ min: 5, max: 15 }),
      fc.nat(300),
      fc.double({ min: 0, max: 1, noNaN: true }),
    ),
  });

  test("decides as a naive program does, and each wait is exact", () => {
    fc.assert(
      fc.property(fields, fc.array(step, { maxLength: 60 }), (given, steps) => {
        const rule = ruleOf({ algorithm: "adaptive-concurrency", ...given });
        const config = rule.config as AdaptiveConfig;
        const { floor, initial, limit, forgetAfterMs, ttlMs } = config;
        const fresh = () => new PlainLimit(config, floor, initial, limit);
        let plain = fresh();
        let reportedAtMs = -Infinity;
        let leases: { id: string; units: number; endsAtMs: number }[] = [];
        let account = UNTOUCHED;
        let nowMs = START_MS;
        let token = 0;
        for (const [number, { afterMs, units, index, outcome, durationMs }] of steps.entries()) {
          nowMs += afterMs;
          leases = leases.filter(({ endsAtMs }) => endsAtMs > nowMs);
          if (nowMs >= reportedAtMs + forgetAfterMs) plain = fresh();
          account = advance(rule, account, nowMs);
          const ended = index === null ? undefined : leases[index % leases.length];
          if (ended !== undefined) {
            const inFlight = leases.reduce((sum, each) => sum + each.units, 0);
            account = endLease(rule, account, nowMs, ended.id, { outcome, durationMs });
            leases = leases.filter((each) => each !== ended);
            if (outcome !== "ignore") {
              const isDropped = outcome === "dropped";
              const known = (account.state as AdaptiveState).learned?.limit ?? 0;
              expect(known).toBeCloseTo(
                plain.add({ durationMs: Math.max(0.001, durationMs), inFlight, isDropped }),
                6,
              );
              plain.limit = known;
              reportedAtMs = nowMs;
            }
          }
          const present = Math.floor(plain.limit);
          expect(limitOf(rule, account.state, nowMs)).toBe(present);
          const inFlight = leases.reduce((sum, each) => sum + each.units, 0);
          const decision = decide(rule, account, nowMs, units);
          expect(decision.allowed).toBe(inFlight + units <= present);
          expect(decision.remaining).toBe(Math.max(0, present - inFlight - (decision.allowed ? units : 0)));
          if (decision.allowed) {
            const state = decision.account.state as AdaptiveState;
            expect(state.fencingToken).toBeGreaterThan(token);
            token = state.fencingToken;
            const endsAtMs = nowMs + ttlMs;
            account = place(decision.account, { id: `${number}`, units, expiresAtMs: endsAtMs });
            leases.push({ id: `${number}`, units, endsAtMs });
          } else if (decision.retryAfterMs !== null) {
            const passes = (atMs: number) => decide(rule, advance(rule, account, atMs), atMs, units).allowed;
            expect(passes(nowMs + decision.retryAfterMs)).toBe(true);
            expect(passes(nowMs + decision.retryAfterMs - 1)).toBe(false);
          } else {
            const atMs = Math.max(...leases.map(({ endsAtMs }) => endsAtMs), reportedAtMs + forgetAfterMs);
            expect(waitMs(rule, account, nowMs, units)).toBe(null);
            expect(decide(rule, advance(rule, account, atMs), atMs, units).allowed).toBe(false);
          }
          if (account.state !== undefined) {
            const { fencingToken, ...known } = account.state as AdaptiveState;
            const packed = adaptiveConcurrency.pack(
              rule.config as AdaptiveConfig,
              { fencingToken, ...known },
              nowMs,
              undefined,
            );
            const stored = JSON.parse(JSON.stringify(packed.record)) as AdaptiveState;
            expect(stored).toMatchObject(known);
            // Later tokens are in the record too, so that not each grant writes one.
            expect(stored.fencingToken).toBeGreaterThan(fencingToken);
          }
          const atMs = untouchedAtMs(rule, account, nowMs);
          expect(decide(rule, advance(rule, account, atMs), atMs, 0)).toMatchObject({ remaining: initial });
        }
      }),
      { numRuns: depth(300, 5_000) },
    );
  });

  test("storage covers a key only as it was written: each grant and each report is written", () => {
    const config = AIMD.config as AdaptiveConfig;
    const covers = (stored: unknown, state: unknown, nowMs: number) =>
      adaptiveConcurrency.covers(config, stored, 0, state as AdaptiveState, 0, nowMs);
    const granted = leased(AIMD, 2, 0);
    const reported = endLease(AIMD, granted, 10, "0", { outcome: "dropped", durationMs: 10 });
    expect(covers(granted.state, granted.state, 10)).toBe(true);
    expect(covers(granted.state, reported.state, 10)).toBe(false);
    const ignored = endLease(AIMD, granted, 10, "0", { outcome: "ignore", durationMs: 10 });
    expect(covers(granted.state, ignored.state, 10)).toBe(true);
    const again = endLease(AIMD, reported, 10, "1", { outcome: "ok", durationMs: 10 });
    expect(covers(reported.state, again.state, 10)).toBe(false);
  });
});

describe("fields", () => {
  const configure = (fields: Readonly<Record<string, number | string>>) =>
    adaptiveConcurrency.configure({ limit: 100, ...fields });

  test.each([
    [{ floor: 101 }, "floor", "at most the limit, which is 100"],
    [{ floor: 5, initial: 4 }, "initial", "from the floor of 5 to the limit of 100"],
    [{ initial: 101 }, "initial", "from the floor of 1 to the limit of 100"],
    [{ maxWait: 600_001 }, "maxWait", "at most 600000 ms"],
    [{ alpha: 3, beta: 6 }, "alpha", 'left out with adapt = "gradient2": it is for vegas'],
    [
      { adapt: "aimd", smoothing: 0.5 },
      "smoothing",
      'left out with adapt = "aimd": it is for vegas and gradient2',
    ],
    [{ adapt: "vegas", alpha: 7, beta: 6 }, "beta", "at least alpha, which is 7"],
    [{ adapt: "vegas", alpha: 3 }, "beta", "given with alpha"],
    [{ adapt: "vegas", beta: 3 }, "alpha", "given with beta"],
    [{ adapt: "aimd", backoffRatio: 0.4 }, "backoffRatio", "from 0.5 to below 1"],
    [{ adapt: "aimd", backoffRatio: 1 }, "backoffRatio", "from 0.5 to below 1"],
    [{ smoothing: 1.5 }, "smoothing", "a number above 0 and at most 1"],
    [{ rttTolerance: 0.9 }, "rttTolerance", "at least 1"],
  ])("%j is refused: %s must be %s", (fields, field, allowed) => {
    expect(configure(fields)).toEqual({ problem: { field, allowed } });
  });

  test("a policy that says only its limit gets Gradient2 with Netflix's defaults, from 20", () => {
    const terms = { adapt: "gradient2", rttTolerance: 1.5, smoothing: 0.2, longWindow: 600, queueSize: 4 };
    expect(configure({})).toMatchObject({
      limit: 100,
      floor: 1,
      initial: 20,
      forgetAfterMs: 600_000,
      ...terms,
    });
    expect(configure({ limit: 8 })).toMatchObject({ initial: 8 });
    expect(configure({ floor: 30 })).toMatchObject({ initial: 30 });
    expect(configure({ adapt: "vegas" })).toMatchObject({
      adapt: "vegas",
      smoothing: 1,
      probeMultiplier: 30,
    });
    expect(configure({ adapt: "aimd" })).toMatchObject({
      adapt: "aimd",
      backoffRatio: 0.9,
      timeoutMs: 5_000,
    });
  });

  test("a pool is refused, since no region sees all that is in flight", () => {
    const fields = { algorithm: "adaptive-concurrency", limit: 10, pool: "redis" };
    expect(() => ruleOf(fields)).toThrow(
      'pool is "redis": must be left out with algorithm "adaptive-concurrency"',
    );
  });

  test("a part of it is a part of all three limits", () => {
    const config = configure({ floor: 5, initial: 40 }) as AdaptiveConfig;
    expect(adaptiveConcurrency.scale(config, 0.5)).toMatchObject({ limit: 50, floor: 2, initial: 20 });
    expect(adaptiveConcurrency.scale(config, 0.001)).toBe(undefined);
  });
});
