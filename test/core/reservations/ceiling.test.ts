import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import { ceilingMs } from "../../../core/reservations/ceiling.ts";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

function ceilingOf(fields: object): (wholeMs: number) => number {
  const policy = parsePolicies({ a: { limit: 500, ...fields } }).get("a") as Policy;
  return (wholeMs) => ceilingMs(policy, policy.rules[0], wholeMs);
}

test("of a fixed window it is the end that the object named, until what is held now may be used after it", () => {
  const ceiling = ceilingOf({ algorithm: "fixed-window", window: "1 day" });
  expect(ceiling(5 * HOUR_MS)).toBe(5 * HOUR_MS);
  // Units are held for 9 s at most, and the answer may have been 500 ms late.
  expect(ceiling(9_501)).toBe(9_501);
  expect(ceiling(9_500)).toBeGreaterThanOrEqual(25 * HOUR_MS + 9_000);
  expect(ceiling(-1)).toBe(ceiling(9_500));
});

test("with jitter another end may be so much later", () => {
  const ceiling = ceilingOf({ algorithm: "fixed-window", window: "1 day", jitter: "1h" });
  expect(ceiling(5 * HOUR_MS)).toBe(6 * HOUR_MS);
  expect(ceiling(HOUR_MS)).toBeGreaterThanOrEqual(26 * HOUR_MS);
});

test("where uses move the end, it is that of a quota that others have emptied", () => {
  expect(ceilingOf({ algorithm: "fixed-window", window: DAY_MS, align: "first" })(HOUR_MS)).toBe(
    DAY_MS + 9_000,
  );
  expect(ceilingOf({ algorithm: "token-bucket", window: DAY_MS })(HOUR_MS)).toBe(DAY_MS + 9_000);
  expect(ceilingOf({ algorithm: "sliding-window-counter", window: DAY_MS })(HOUR_MS)).toBe(
    2 * DAY_MS + 9_000,
  );
});
