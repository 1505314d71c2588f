/** Laws of charges that are given back on a key whose calls name plans: the object, with each algorithm. */
import { describe, expect, test } from "vitest";
import type { Decided } from "../../../core/protocol/answers.ts";
import { depth } from "../../support/depth.ts";
import { HIGH, Key, LOW, TABLES, window } from "../../support/planned-keys.ts";
import { announcedSeed, seededRandom, whole } from "../../support/random.ts";

const OWN_LIMIT = '{"requests":25}';
const NAMES = ["", "pro", OWN_LIMIT] as const;

function charge(key: Key, plan: string, cost: number): boolean {
  const { rules } = key.call(plan, { op: "limit", cost, idempotencyKey: "order" }) as Decided;
  return rules.every(({ success }) => success);
}

/** @param plan `undefined`: the refund names none */
function giveBack(key: Key, plan: string | undefined, units: number, idempotencyKey = "back"): unknown {
  return key.call(plan, { op: "refund", units, idempotencyKey, charge: "order" });
}

describe.each(Object.entries(TABLES))("%s", (_, given) => {
  const table = { ...given, limitInCall: { max: 1_000 } };

  test("a refund gives back the units of its charge, whatever plan was, is or will be named", () => {
    const random = seededRandom(announcedSeed("refunds under plans"));
    const any = <Value>(values: readonly Value[]) => values[whole(random, values.length)] as Value;
    for (let round = 0; round < depth(25, 200); round += 1) {
      const [key, twin] = [new Key(table), new Key(table)];
      const name = (plan: string | undefined) => [key, twin].forEach((each) => each.peek(plan));
      const before = whole(random, LOW);
      for (const each of [key, twin]) for (let unit = 0; unit < before; unit += 1) each.takes("pro", 1);
      const [at, cost] = [any(NAMES), 1 + whole(random, HIGH)];
      name(at);
      if (!charge(key, at, cost)) continue;
      const between = any(NAMES);
      name(between);
      if (random() < 0.3) key.crash();
      const [named, units] = [any([...NAMES, undefined]), 1 + whole(random, HIGH + 10)];
      const left = Math.max(0, cost - units);
      for (let unit = 0; unit < left; unit += 1) twin.takes("pro", 1);
      giveBack(key, named, units);
      const seen = { at, between, named, before, cost, units };
      for (const plan of NAMES)
        expect({ ...seen, plan, remaining: key.remaining(plan) }).toEqual({
          ...seen,
          plan,
          remaining: twin.remaining(plan),
        });
      expect(giveBack(key, any(NAMES), units, "again")).toEqual({ missing: true });
    }
  });

  test("a refund under another plan never gives back what the plan of the charge has returned", () => {
    for (const [at, then] of [
      ["pro", ""],
      ["", "pro"],
    ] as const) {
      const key = new Key(table);
      charge(key, at, LOW);
      key.nowMs += 2 * window;
      const capacity = key.remaining(at);
      key.takes(at, capacity);
      giveBack(key, then, LOW);
      // Credits never return by themselves.
      expect(key.remaining(at)).toBe(given.algorithm === "credits" ? LOW : 0);
    }
  });
});

test("of a bucket comes back what it has not refilled at the rate of the plan that the key had", () => {
  const { gcra: table } = TABLES;
  for (const [at, then] of [
    ["pro", ""],
    ["", "pro"],
  ] as const) {
    const key = new Key(table);
    charge(key, at, LOW);
    key.nowMs += window / 10;
    const before = key.remaining("pro");
    for (let unit = 0; unit < before; unit += 1) key.takes("pro", 1);
    giveBack(key, then, LOW);
    expect(key.remaining("pro")).toBe(LOW - (at === "pro" ? HIGH : LOW) / 10);
  }
});

test("a charge under rules that the policy no longer has is not given back, and stays: it can be when they return", () => {
  const key = new Key(TABLES["sliding-log"]);
  charge(key, "pro", 5);
  key.replace({ ...TABLES["sliding-log"], plans: { pro: { limit: HIGH + 1 } } });
  giveBack(key, "pro", 5, "too early");
  expect(key.remaining("pro")).toBe(HIGH + 1 - 5);
  expect(charge(key, "pro", 5)).toBe(true);
  expect(key.remaining("pro")).toBe(HIGH + 1 - 5);
  key.replace(TABLES["sliding-log"]);
  giveBack(key, undefined, 5);
  expect(key.remaining("pro")).toBe(HIGH);
  expect(giveBack(key, undefined, 5, "again")).toEqual({ missing: true });
});

test("a repeated call has the answer and the plan of the first one, whatever plan it names", () => {
  const key = new Key({ ...TABLES.gcra, limitInCall: { max: 100 } });
  for (const [first, other] of [
    ["pro", ""],
    ["", "pro"],
    [OWN_LIMIT, "pro"],
  ] as const) {
    const call = { op: "limit", cost: 2, idempotencyKey: `first by ${first}` };
    const { rules } = key.call(first, call) as Decided;
    expect(key.call(other, call)).toEqual({ rules, plan: first });
    key.crash();
    expect(key.call(other, call)).toEqual({ rules, plan: first });
  }
});

test("a charge whose window has ended takes no units of later calls out of a plan's longer window", () => {
  const plans = { pro: { limit: HIGH, window: 30_000 } };
  const key = new Key({ algorithm: "fixed-window", limit: LOW, window: 60_000, plans });
  key.nowMs -= key.nowMs % 60_000;
  charge(key, "pro", 5);
  key.nowMs += 31_000;
  for (let unit = 0; unit < 5; unit += 1) key.takes("pro", 1);
  giveBack(key, "", 5);
  expect(key.remaining("")).toBe(LOW - 5);
});
