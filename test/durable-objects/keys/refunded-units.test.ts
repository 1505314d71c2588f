/** What the answer to a refund says came back. */
import { describe, expect, test } from "vitest";
import type { Decided } from "../../../core/protocol/answers.ts";
import { Key } from "../../support/planned-keys.ts";

const ask = (key: Key, call: object) => key.call("", call) as Decided;

const window = "10s";
const TABLES = {
  "token-bucket": { algorithm: "token-bucket", limit: 10, window },
  gcra: { algorithm: "gcra", limit: 10, window },
  "sliding-log": { algorithm: "sliding-log", limit: 10, window },
  "sliding-log with pauses": { algorithm: "sliding-log", limit: 10, window, minInterval: "1s" },
  "fixed-window": { algorithm: "fixed-window", limit: 10, window },
  "sliding-window-counter": { algorithm: "sliding-window-counter", limit: 10, window },
  "leaky-bucket": { algorithm: "leaky-bucket", limit: 10, window, burst: 10 },
  "permits-per-cycle": { algorithm: "permits-per-cycle", limit: 10, window },
  "smooth-bursty": { algorithm: "smooth-bursty", limit: 10, window, maxDelay: "10s" },
  "smooth-warming-up": { algorithm: "smooth-warming-up", limit: 10, window, warmup: 100, maxDelay: "10s" },
  "with blocks": { algorithm: "token-bucket", limit: 10, window, blockFor: "1s" },
  "of groups": { algorithm: "token-bucket", limit: 10, window, fair: true },
  credits: { algorithm: "credits", limit: 10 },
} as const;

describe.each(Object.entries(TABLES))("%s", (name, table) => {
  const of = name === "of groups" ? { group: "a" } : {};
  const take = (key: Key, cost: number, idempotencyKey: string) =>
    ask(key, { op: "limit", cost, idempotencyKey, ...of });
  const back = (key: Key, units: number, charge: string, idempotencyKey = `back of ${charge}`) =>
    ask(key, { op: "refund", units, charge, idempotencyKey, ...of }).rules[0]?.refunded;

  test("all that was taken a moment ago, or the part that is asked for, and the same when it is repeated", () => {
    const key = new Key(table);
    take(key, 3, "a");
    expect(back(key, 3, "a")).toBe(3);
    expect(back(key, 3, "a")).toBe(3);
    key.nowMs += 2_000;
    take(key, 3, "b");
    expect(back(key, 2, "b")).toBe(2);
    expect(ask(key, { op: "refund", units: 1, charge: "b", idempotencyKey: "more" })).toEqual({
      missing: true,
    });
  });

  test.runIf(name !== "credits")("nothing, once time has returned it", () => {
    const key = new Key(table);
    take(key, 3, "a");
    key.nowMs += 20_000;
    expect(back(key, 3, "a")).toBe(0);
  });

  test("what leaves a debt, too", () => {
    const key = new Key(table);
    ask(key, { op: "limit", force: true, cost: 25, idempotencyKey: "a", ...of });
    expect(back(key, 5, "a")).toBe(5);
  });
});

test("units that are gone under other figures stay taken: 0, and the charge can come back under the old ones", () => {
  const key = new Key(TABLES.credits);
  ask(key, { op: "limit", cost: 3, idempotencyKey: "a" });
  key.replace({ ...TABLES.credits, limit: 9 });
  const refund = { op: "refund", units: 3, charge: "a", idempotencyKey: "one" };
  expect(ask(key, refund)).toMatchObject({ rules: [{ refunded: 0 }] });
  key.replace(TABLES.credits);
  expect(ask(key, { ...refund, idempotencyKey: "two" })).toMatchObject({
    rules: [{ refunded: 3 }],
  });
});

test("each rule says what came back of it in whole units, and those say nothing of which nothing was taken", () => {
  const key = new Key({
    rules: {
      quick: { algorithm: "sliding-log", limit: 10, window: "1s" },
      slow: { algorithm: "token-bucket", limit: 10, window: "1h", unit: "tokens" },
      none: { algorithm: "token-bucket", limit: 10, window: "1h", unit: "images" },
    },
  });
  const cost = { requests: 1, tokens: 4, images: 0 };
  ask(key, { op: "limit", cost, idempotencyKey: "a" });
  key.nowMs += 1_000;
  const units = { ...cost, images: 1 };
  const { rules } = ask(key, { op: "refund", units, charge: "a", idempotencyKey: "b" });
  expect(rules.map(({ refunded }) => refunded)).toEqual([0, 4, undefined]);
});

test("a key that is blocked does not show it", () => {
  const key = new Key(TABLES["with blocks"]);
  ask(key, { op: "limit", cost: 9, idempotencyKey: "a" });
  ask(key, { op: "limit", cost: 9 });
  const refund = { op: "refund", units: 9, charge: "a", idempotencyKey: "b" };
  expect(ask(key, refund).rules[0]).not.toHaveProperty("refunded");
  key.nowMs += 1_000;
  expect(key.remaining()).toBe(10);
});
