import { describe, expect, test } from "vitest";
import {
  UNTOUCHED,
  decideTogether,
  place,
  refund,
  remainingOf,
  untouchedAtMs,
} from "../../../core/accounts/account.ts";
import { END_MS } from "../../../core/algorithms/credits.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import { forced } from "../../../durable-objects/operations/limits.ts";
import { record } from "../../../durable-objects/storage/records.ts";
import { restore } from "../../../durable-objects/storage/write-behind.ts";
import { decide } from "../../support/decide.ts";
import { ruleOf } from "../../support/rules.ts";

const NEVER = {
  allowed: false,
  reason: "cost-over-limit",
  retryAfterMs: null,
  remaining: 0,
  resetAfterMs: END_MS,
};
const limited = [...algorithms.values()].filter(({ fields }) => fields["limit"] === "units");

describe.each(limited)("$name with a limit of 0", ({ name, fields }) => {
  const given = {
    algorithm: name,
    ...(["duration", "period"].includes(String(fields["window"])) && { window: "1s" }),
    ...(fields["warmup"] !== undefined && { warmup: "1s" }),
  };
  const shut = ruleOf({ ...given, limit: 0 });
  const open = ruleOf({ ...given, limit: 7 });

  test("denies every cost for ever, and a look finds nothing", () => {
    expect(shut).toMatchObject({ capacity: 0, quota: { units: 0 }, config: { limit: 0 } });
    for (const cost of [1, 2, 1_000_000_000]) expect(decide(shut, UNTOUCHED, 0, cost)).toEqual(NEVER);
    expect(decide(shut, UNTOUCHED, 0, 0)).toMatchObject({
      allowed: true,
      remaining: 0,
      resetAfterMs: END_MS,
    });
  });

  test("says that its limit is 0", () => {
    const { rules } = decideTogether([{ rule: shut, account: UNTOUCHED }], 0, 1);
    expect(rules).toMatchObject([{ limit: 0, remaining: 0, success: false }]);
  });

  test("is left as it was by units that are forced or given back, and denies while units are held", () => {
    const held = place(UNTOUCHED, { id: "a", units: 3, expiresAtMs: 50 });
    expect(decide(shut, held, 0, 1)).toEqual(NEVER);
    expect(untouchedAtMs(shut, held, 0)).toBe(50);
    for (const account of [forced(shut, UNTOUCHED, 0, 5), refund(shut, UNTOUCHED, 0, 5)])
      expect(account).toEqual(UNTOUCHED);
  });

  test("reads what was stored while it was open, and what it stores is read when it is open again", () => {
    const taken = decide(open, UNTOUCHED, 5, 1);
    if (!taken.allowed) throw new Error("1 of 7 fits");
    const { stored } = record(open, taken.account, 2, 5, { leastMs: 1_000, mostMs: 1_000 }, undefined);
    const closing = restore(shut, structuredClone(stored), [], 6, 1_000);
    expect(decide(shut, closing, 6, 1)).toMatchObject({ allowed: false, retryAfterMs: null });
    const again = record(shut, closing, 0, 6, { leastMs: 1_000, mostMs: 1_000 }, stored);
    const laterMs = 10_000_000;
    const reopened = restore(open, structuredClone(again.stored), [], laterMs, 1_000);
    expect(remainingOf(open, reopened, laterMs)).toBe(remainingOf(open, UNTOUCHED, laterMs));
    expect(untouchedAtMs(shut, UNTOUCHED, 9)).toBe(9);
  });
});

test("other fields are checked, a burst has to go, and pools have none", () => {
  const shut = { algorithm: "token-bucket", limit: 0, window: "1s" };
  expect(() => ruleOf({ ...shut, burst: 5 })).toThrow("burst is 5: must be left out with a limit of 0");
  expect(() => ruleOf({ ...shut, window: "1w" })).toThrow('window is "1w": must be a duration');
  expect(() => ruleOf({ ...shut, pool: "redis" })).toThrow(
    'pool is "redis": must be left out with a limit of 0',
  );
  expect(() => ruleOf({ algorithm: "concurrency", limit: 0, ttl: "2m", maxTtl: "1m" })).toThrow("maxTtl");
  expect(ruleOf({ algorithm: "concurrency", limit: 0, ttl: "2m" }).lease).toMatchObject({ ttlMs: 120_000 });
});
