import { expect, test } from "vitest";
import { UNTOUCHED, decideTogether } from "../../../core/accounts/account.ts";
import { forced, withUsed } from "../../../durable-objects/operations/limits.ts";
import { ruleOf } from "../../support/rules.ts";

const FREE = ruleOf({ algorithm: "unlimited" });
const MAX = 1_000_000_000;

test("every cost passes, and the figures stay what they are", () => {
  let account = UNTOUCHED;
  for (const cost of [1, MAX, MAX]) {
    const { admitted, accounts, rules } = decideTogether([{ rule: FREE, account }], 0, cost);
    const left = { limit: MAX, remaining: MAX, resetAfterMs: 0, retryAfterMs: 0, reason: "ok" };
    expect({ admitted, rules }).toEqual({
      admitted: true,
      rules: [{ name: "test", success: true, ...left }],
    });
    account = accounts?.[0] ?? account;
  }
  expect(account).toEqual(UNTOUCHED);
});

test("units that are held, forced or set make no difference", () => {
  const held = { state: undefined, holds: [{ id: "a", units: MAX, expiresAtMs: 50 }] };
  const { admitted, rules } = decideTogether([{ rule: FREE, account: held }], 0, MAX);
  expect({ admitted, rules }).toMatchObject({ admitted: true, rules: [{ remaining: MAX }] });
  expect(forced(FREE, UNTOUCHED, 0, MAX)).toEqual(UNTOUCHED);
  expect(withUsed(FREE, UNTOUCHED, 0, MAX)).toEqual(UNTOUCHED);
});

test("it decides beside rules that count, which decide alone then", () => {
  const counted = ruleOf({ algorithm: "sliding-log", limit: 2, window: "1s" });
  const both = (cost: number) =>
    [FREE, counted].map((rule) => ({ rule, account: UNTOUCHED, cost })) satisfies { cost: number }[];
  expect(decideTogether(both(2), 0, 2).admitted).toBe(true);
  expect(decideTogether(both(3), 0, 3)).toMatchObject({
    admitted: false,
    rules: [{ success: true }, { reason: "cost-over-limit" }],
  });
});

test("it has no fields", () => {
  expect(() => ruleOf({ algorithm: "unlimited", limit: 5 })).toThrow("limit is not a field");
  expect(() => ruleOf({ algorithm: "unlimited", pool: "redis" })).toThrow(
    'pool is "redis": must be left out with algorithm "unlimited"',
  );
});
