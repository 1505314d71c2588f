import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { picture } from "../../bench/choosing-picture.ts";
import { algorithms } from "../../core/policies/algorithms.ts";
import { admissionsOf, LANES, STEP_MS, trafficMs } from "./same-traffic.ts";

const DOCS = join(import.meta.dirname, "..", "..", "docs");
const sum = (values: readonly number[]) => values.reduce((total, each) => total + each, 0);

test("the picture is drawn from these decisions", () => {
  expect(readFileSync(join(DOCS, "images", "choosing.svg"), "utf8")).toBe(picture());
});

test("the page names every algorithm", () => {
  const page = readFileSync(join(DOCS, "choosing.md"), "utf8");
  for (const name of algorithms.keys()) expect(page).toContain(`\`${name}\``);
});

test.each(LANES)("%s decides on every call, and admits some and not others", (_, fields) => {
  const { goOn, denied } = admissionsOf(fields);
  expect(sum(goOn) + sum(denied)).toBe(trafficMs().length);
  expect(sum(goOn)).toBeGreaterThan(50);
  expect(sum(denied)).toBeGreaterThan(50);
});

test("a leaky bucket lets calls go on one by one, a token bucket a burst at once", () => {
  const most = (fields: object | undefined) => Math.max(...admissionsOf(fields ?? {}).goOn);
  const rate = { limit: 10, window: "2s" };
  // Two windows of steps touch, so one more may begin within a step.
  expect(most({ algorithm: "leaky-bucket", ...rate, burst: 9 })).toBeLessThanOrEqual(STEP_MS / 200 + 1);
  expect(most({ algorithm: "token-bucket", ...rate })).toBeGreaterThanOrEqual(10);
});
