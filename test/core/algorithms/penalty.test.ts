import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  UNTOUCHED,
  advance,
  decideTogether,
  placeNoted,
  remainingOf,
  untouchedAtMs,
} from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { forced, withUsed } from "../../../durable-objects/operations/limits.ts";
import { record } from "../../../durable-objects/storage/records.ts";
import { covers, restore } from "../../../durable-objects/storage/write-behind.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { ruleOf } from "../../support/rules.ts";

const START_MS = 1_760_000_000_000;
const MINUTE_MS = 60_000;
const LOGIN = { algorithm: "sliding-log", limit: 5, window: MINUTE_MS, blockFor: 15 * MINUTE_MS };

/** Calls a rule, one call after another, and counts what it denies. */
class Key {
  readonly rule: Rule;
  account: Account = UNTOUCHED;

  constructor(fields: Parameters<typeof ruleOf>[0]) {
    this.rule = ruleOf(fields);
  }

  call(nowMs: number, cost = 1) {
    const ruleAccount = { rule: this.rule, account: this.account };
    const decided = decideTogether([ruleAccount], START_MS + nowMs, cost);
    this.account = decided.accounts?.[0] ?? this.account;
    const [said] = decided.rules;
    if (said === undefined) throw new Error("one rule says one thing");
    return said;
  }
}

describe("a block", () => {
  test("begins with a denial, which names its end, and denies everything until then", () => {
    const key = new Key(LOGIN);
    for (let call = 0; call < 5; call += 1) expect(key.call(call).success).toBe(true);
    const wait = { success: false, reason: "quota", retryAfterMs: 15 * MINUTE_MS, remaining: 0 };
    expect(key.call(1_000)).toMatchObject(wait);
    const endMs = 1_000 + 15 * MINUTE_MS;
    expect(key.call(endMs - 1)).toMatchObject({ success: false, reason: "blocked", retryAfterMs: 1 });
    expect(key.call(endMs)).toMatchObject({ success: true });
  });

  test("grows for who keeps on, up to the longest, and is forgotten after as long as it lasted", () => {
    const key = new Key({ ...LOGIN, limit: 1, window: 1_000, maxBlock: 50 * MINUTE_MS });
    const lasts: number[] = [];
    let nowMs = 0;
    for (let block = 0; block < 4; block += 1) {
      key.call(nowMs);
      const waitMs = key.call(nowMs).retryAfterMs ?? 0;
      lasts.push(waitMs / MINUTE_MS);
      nowMs += waitMs;
    }
    expect(lasts).toEqual([15, 30, 50, 50]);
    nowMs += 50 * MINUTE_MS - 1;
    key.call(nowMs);
    expect(key.call(nowMs).retryAfterMs).toBe(50 * MINUTE_MS);
    nowMs += 100 * MINUTE_MS;
    key.call(nowMs);
    expect(key.call(nowMs).retryAfterMs).toBe(15 * MINUTE_MS);
  });

  test("is not begun by what can never pass, nor by what is kept for more important calls", () => {
    const key = new Key(LOGIN);
    expect(key.call(0, 6)).toMatchObject({ reason: "cost-over-limit", retryAfterMs: null });
    expect(key.account).toBe(UNTOUCHED);
    const policy = parsePolicies({ a: { ...LOGIN, reserve: { high: "40%" } } }).get("a");
    const [rule] = policy?.priorities.seen.get("low")?.rules ?? [];
    if (rule === undefined) throw new Error("low calls see less");
    expect(decideTogether([{ rule, account: UNTOUCHED }], START_MS, 4)).not.toHaveProperty("accounts");
    expect(decide(rule, UNTOUCHED, START_MS, 4)).toMatchObject({ reason: "cost-over-limit" });
  });

  test("stands beside several rules: whichever denied blocks them all, and the others take nothing", () => {
    const rules = [
      { rule: ruleOf(LOGIN), account: UNTOUCHED },
      { rule: ruleOf({ algorithm: "token-bucket", limit: 2, window: MINUTE_MS }), account: UNTOUCHED },
    ];
    const first = decideTogether(rules, START_MS, 2);
    const accounts = rules.map(({ rule }, index) => ({
      rule,
      account: first.accounts?.[index] ?? UNTOUCHED,
    }));
    // The bucket denies, and has no penalty.
    expect(decideTogether(accounts, START_MS, 1)).toMatchObject({ admitted: false });
    expect(decideTogether(accounts, START_MS, 1)).not.toHaveProperty("accounts");
  });

  test("is longer than the quota's own wait, or the wait is the quota's", () => {
    const key = new Key({ algorithm: "token-bucket", limit: 1, window: 60 * MINUTE_MS, blockFor: 1_000 });
    key.call(0);
    expect(key.call(0).retryAfterMs).toBe(60 * MINUTE_MS);
    expect(key.call(500)).toMatchObject({ reason: "blocked", retryAfterMs: 60 * MINUTE_MS - 500 });
    expect(key.call(2_000)).toMatchObject({ reason: "quota", retryAfterMs: 60 * MINUTE_MS - 2_000 });
  });
});

describe("storage", () => {
  const penal = ruleOf({ ...LOGIN, algorithm: "token-bucket", limit: 3, window: 1_000 });
  const plain = ruleOf({ algorithm: "token-bucket", limit: 3, window: 1_000 });
  const key = new Key({ algorithm: "token-bucket", limit: 3, window: 1_000, blockFor: 15 * MINUTE_MS });
  key.call(0, 3);
  const unblocked = key.account;
  key.call(0);
  const stored = JSON.parse(
    JSON.stringify(record(penal, key.account, 0, START_MS, { leastMs: 0, mostMs: 0 }, undefined).stored),
  ) as ReturnType<typeof record>["stored"];

  test("keeps a block through a crash, and a record without it does not cover it", () => {
    expect(restore(penal, stored, [], START_MS, 0)).toEqual(key.account);
    expect(covers(penal, stored, key.account, START_MS)).toBe(true);
    const before = record(penal, unblocked, 0, START_MS, { leastMs: 0, mostMs: 0 }, undefined).stored;
    expect(covers(penal, before, unblocked, START_MS)).toBe(true);
    expect(covers(penal, before, key.account, START_MS)).toBe(false);
  });

  test("a policy that gains or loses its penalty keeps what was consumed", () => {
    const asPlain = restore(plain, stored, [], START_MS, 0);
    expect(decide(plain, asPlain, START_MS, 1)).toMatchObject({ allowed: false, retryAfterMs: 334 });
    const again = record(plain, asPlain, 0, START_MS, { leastMs: 0, mostMs: 0 }, stored).stored;
    expect(decide(penal, restore(penal, again, [], START_MS, 0), START_MS, 1)).toMatchObject({
      allowed: false,
      reason: "quota",
    });
  });

  test("forgets a key when its block is no more remembered", () => {
    expect(untouchedAtMs(penal, key.account, START_MS) - START_MS).toBe(30 * MINUTE_MS);
  });
});

const call = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.nat(30), fc.nat(400)),
  cost: fc.integer({ min: 1, max: 7 }),
});

test.each(["token-bucket", "sliding-log"])(
  "under %s every history is that of a naive limiter that is told to stay away",
  (algorithm) => {
    let blocks = 0;
    fc.assert(
      fc.property(fc.array(call, { maxLength: 60 }), fc.integer({ min: 1, max: 200 }), (calls, blockFor) => {
        const limit = { algorithm, limit: 6, window: 100 };
        const [key, inner] = [new Key({ ...limit, blockFor, maxBlock: 5 * blockFor }), new Key(limit)];
        let [nowMs, untilMs, lastMs] = [0, -Infinity, 0];
        for (const { afterMs, cost } of calls) {
          nowMs += afterMs;
          const said = key.call(nowMs, cost);
          if (nowMs < untilMs) {
            expect(said.success).toBe(false);
            expect(said.reason).toBe(cost > 6 ? "cost-over-limit" : "blocked");
            if (cost <= 6) expect(said.retryAfterMs).toBeGreaterThanOrEqual(untilMs - nowMs);
            continue;
          }
          const expected = inner.call(nowMs, cost);
          expect(said.success).toBe(expected.success);
          if (said.success || cost > 6) continue;
          blocks += 1;
          lastMs = nowMs < untilMs + lastMs ? Math.min(5 * blockFor, 2 * lastMs) : blockFor;
          untilMs = nowMs + lastMs;
          expect(said.retryAfterMs).toBe(Math.max(lastMs, expected.retryAfterMs ?? 0));
        }
      }),
      { numRuns: depth(500, 5_000) },
    );
    expect(blocks).toBeGreaterThan(200);
  },
);

test.each(["token-bucket", "sliding-log"])(
  "under %s each call, also a denied one beside a hold, is told when all units can be had",
  (algorithm) => {
    let blocked = 0;
    const holding = fc.record({ afterMs: fc.nat(120), holdsForMs: fc.constantFrom(0, 0, 40, 150) });
    fc.assert(
      fc.property(fc.array(fc.tuple(call, holding), { maxLength: 20 }), fc.nat(200), (steps, blockFor) => {
        const key = new Key({ algorithm, limit: 6, window: 100, blockFor: blockFor + 1 });
        let nowMs = 0;
        const isWholeAt = (atMs: number) =>
          decide(key.rule, advance(key.rule, key.account, START_MS + atMs), START_MS + atMs, 6).allowed;
        for (const [{ cost }, { afterMs, holdsForMs }] of steps) {
          nowMs += afterMs;
          key.account = advance(key.rule, key.account, START_MS + nowMs);
          const { resetAfterMs, reason } = key.call(nowMs, cost);
          blocked += reason === "blocked" ? 1 : 0;
          expect(isWholeAt(nowMs + resetAfterMs)).toBe(true);
          if (resetAfterMs > 0) expect(isWholeAt(nowMs + resetAfterMs - 1)).toBe(false);
          if (holdsForMs === 0 || !decide(key.rule, key.account, START_MS + nowMs, 1).allowed) continue;
          const hold = { id: `${nowMs}`, units: 1, expiresAtMs: START_MS + nowMs + holdsForMs };
          key.account = placeNoted(key.rule, key.account, START_MS + nowMs, hold);
        }
      }),
      { numRuns: depth(500, 5_000) },
    );
    expect(blocked).toBeGreaterThan(200);
  },
);

const rates = [...algorithms.values()].filter(
  ({ leasing, fields, neverRefills }) =>
    leasing === undefined && fields["limit"] !== undefined && neverRefills !== true,
);

test.each(rates)(
  "$name works with a penalty: it admits, blocks, is forced and set, and is stored",
  (algorithm) => {
    const needed = { window: "1s", warmup: "1s" };
    const given = Object.entries(needed).filter(([field]) => algorithm.fields[field] !== undefined);
    const fields = { algorithm: algorithm.name, limit: 20, ...Object.fromEntries(given) };
    const [key, plain] = [new Key({ ...fields, blockFor: "1h" }), ruleOf(fields)];
    expect(key.call(0).success).toBe(true);
    while (key.call(0).success);
    expect(key.call(3_599_999)).toMatchObject({ success: false, reason: "blocked" });
    const nowMs = START_MS + 3_600_000;
    for (const account of [
      forced(key.rule, key.account, nowMs, 5),
      withUsed(key.rule, key.account, nowMs, 5),
    ]) {
      if ("most" in account) throw new Error("5 units can be counted");
      expect(remainingOf(key.rule, account, nowMs)).toBeGreaterThanOrEqual(0);
      const { stored } = record(key.rule, account, 0, nowMs, { leastMs: 0, mostMs: 0 }, undefined);
      expect(restore(key.rule, structuredClone(stored), [], nowMs, 0).state).toBeDefined();
    }
    const mostOf = ({ algorithm: own, config }: Rule) => own.maxDebit?.(config, undefined, nowMs);
    expect(mostOf(key.rule)).toBe(mostOf(plain));
  },
);
