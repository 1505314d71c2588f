import { afterEach, expect, test, vi } from "vitest";
import { slidingLog } from "../../core/algorithms/log/sliding-log.ts";
import { countedAt } from "../../core/algorithms/log/unit-log.ts";
import { depth } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";
import { Database } from "./database.ts";
import { fullLogs, type Happened } from "./full-logs.ts";

const HISTORIES = depth(10, 500);
const { evenPace } = slidingLog;
afterEach(() => void vi.restoreAllMocks());

function histories(seed: number, count: number): Happened {
  const database = new Database();
  const sum = { over: 0, admitted: 0, cut: 0, ended: 0, most: 0 };
  for (let index = 0; index < count; index += 1) {
    const each = fullLogs(seed + index, database);
    for (const name of ["admitted", "cut", "ended"] as const) sum[name] += each[name];
    for (const name of ["over", "most"] as const) sum[name] = Math.max(sum[name], each[name]);
  }
  return sum;
}

test(`in ${HISTORIES} random histories of far isolates no window of a full log has more than the limit`, () => {
  const { over, most, cut, ended } = histories(announcedSeed("full logs"), HISTORIES);
  expect(over).toBe(0);
  // The test is meaningless unless all of this happens often.
  expect(most).toBeGreaterThan(590);
  expect(cut).toBeGreaterThan(HISTORIES);
  expect(ended).toBeGreaterThan(HISTORIES / 4);
});

/** Whether one of these histories is over, from a seed on at which one is. */
function isFound(seed: number): boolean {
  for (let each = seed; each < seed + 60; each += 1) if (histories(each, 1).over > 0) return true;
  return false;
}

test("it finds a bucket that begins as if no unit still counted, and one whose end is forgotten", () => {
  if (evenPace === undefined) throw new Error("there is no even pace");
  const most = vi.spyOn(evenPace, "most");
  most.mockImplementation(({ windowMs }, log, nowMs, units) =>
    Math.min(countedAt(log, windowMs, nowMs), units),
  );
  expect(isFound(1)).toBe(true);
  most.mockRestore();
  vi.spyOn(evenPace, "debit").mockImplementation((_, log) => log);
  expect(isFound(9)).toBe(true);
});
