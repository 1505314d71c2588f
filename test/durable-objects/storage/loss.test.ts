/** What a crash and a vanished isolate may cost: the bound, and the table of docs/guarantees.md. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { parseDurationMs } from "../../../core/policies/policy-fields.ts";
import { maxLost, maxUnits } from "../../../core/reservations/sizing.ts";
import { aheadUnits } from "../../../durable-objects/storage/write-behind.ts";
import { bucket } from "../../support/rules.ts";

const LIMITS = [1, 5, 31, 32, 49, 50, 100, 1_000, 20_000, 1_000_000];
const WINDOWS = ["1s", "1m", "15m", "1h", "1d", "30d"];

/** What is lost at most to a crash, and to a vanished isolate. */
function lost(limit: number, window: string): readonly [crash: number, isolate: number] {
  const rule = bucket({ limit, window: Number(parseDurationMs(window)) });
  const most = maxUnits(rule);
  // A reservation of a single unit is not made.
  return [aheadUnits(rule), most < 2 ? 0 : Math.floor(most)];
}

test("it is what comes back within 10 s, or 0.1 % of the limit; and never more than 2 % or a sixteenth", () => {
  for (const limit of LIMITS)
    for (const window of WINDOWS) {
      const rule = bucket({ limit, window: Number(parseDurationMs(window)) });
      const [crash, isolate] = lost(limit, window);
      expect(Math.max(crash, isolate)).toBeLessThanOrEqual(maxLost(rule));
      expect(maxLost(rule)).toBe(Math.max((limit * 10_000) / Number(parseDurationMs(window)), limit / 1_000));
      expect(crash).toBeLessThanOrEqual(limit / 50);
      expect(isolate).toBeLessThanOrEqual(limit / 16);
    }
});

test("the table says so", () => {
  const page = readFileSync(join(import.meta.dirname, "../../../docs/guarantees.md"), "utf8");
  const rows = [
    ...page.matchAll(/^\| (?<limit>[\d,]+) per (?<window>\w+) \| (?<crash>\S+) \| (?<isolate>\S+) \|$/gm),
  ];
  expect(rows.length).toBeGreaterThan(10);
  const number = (text = "") => Number(text.replaceAll(",", ""));
  for (const { groups = {} } of rows)
    expect([groups["limit"], groups["window"], number(groups["crash"]), number(groups["isolate"])]).toEqual([
      groups["limit"],
      groups["window"],
      ...lost(number(groups["limit"]), groups["window"] ?? ""),
    ]);
});
