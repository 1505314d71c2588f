import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { freeCallsADay, withoutLinks } from "../../bench/free-plan.ts";
import { dollarsOf } from "../../bench/prices.ts";

const page = readFileSync(join(import.meta.dirname, "..", "..", "docs", "costs.md"), "utf8");
/** The rows of the table with this first heading, by cells. */
function rowsOf(heading: string): string[][] {
  const lines = page.split("\n");
  const begin = lines.findIndex((line) => line.startsWith(`| ${heading} |`)) + 2;
  const length = lines.slice(begin).findIndex((line) => !line.startsWith("|"));
  return lines.slice(begin, begin + length).map((line) =>
    line
      .split("|")
      .map((cell) => cell.trim())
      .slice(1, -1),
  );
}
const number = (cell = "") => (cell.startsWith("under") ? 0 : Number(cell.replaceAll(",", "")));

test("what is used up first says how many calls a day are free", () => {
  const needed = { calls: 100, workerRequests: 100, objectRequests: 100, rowsWritten: 0 };
  const nothing = { objectRequests: 0, rowsWritten: 0 };
  const free = (further: object, background: object = {}) =>
    freeCallsADay({ ...needed, ...further }, { ...nothing, ...background });
  expect(free({})).toEqual({ calls: 100_000, bound: "worker requests" });
  expect(free({ rowsWritten: 300 })).toEqual({ calls: 33_000, bound: "rows written" });
  expect(free({ objectRequests: 250 })).toEqual({ calls: 40_000, bound: "object requests" });
  // What goes by time is taken off first.
  expect(free({}, { objectRequests: 27_600 })).toEqual({ calls: 72_000, bound: "object requests" });
  expect(free({ rowsWritten: 300 }, { rowsWritten: 40_000 })).toEqual({
    calls: 20_000,
    bound: "rows written",
  });
});

test("the table of the free plan follows from what a million decisions, and a day of counting, need", () => {
  const [, ...backgrounds] = rowsOf("beside the calls, an hour").map(([, objectRequests, rowsWritten]) => ({
    objectRequests: 24 * number(objectRequests),
    rowsWritten: 24 * number(rowsWritten),
  }));
  expect(backgrounds.length).toBe(2);
  const counted = rowsOf("a million decisions");
  expect(counted.length).toBeGreaterThan(10);
  const expected = counted.map(
    ([name = "", written, forgotten, read, objectRequests, gbSeconds, dollars = ""]) => {
      const rowsWritten = number(written) + number(forgotten);
      const besides = dollarsOf({
        workerRequests: 0,
        objectRequests: number(objectRequests),
        rowsWritten,
        rowsRead: number(read),
        gbSeconds: number(gbSeconds),
        logEvents: 0,
      });
      // The price tells how many worker requests there were.
      const workerRequests = Math.round((Number(dollars.slice(1)) - besides) / 0.3) * 1_000_000;
      const needed = {
        calls: 1_000_000,
        workerRequests,
        objectRequests: number(objectRequests),
        rowsWritten,
      };
      const free = backgrounds.map((background) => freeCallsADay(needed, background));
      return [withoutLinks(name), ...free.map(({ calls }) => calls), free[0]?.bound];
    },
  );
  const told = rowsOf("on the free plan").map(([name, calls, slowly, bound]) => [
    name,
    number(calls),
    number(slowly),
    bound,
  ]);
  expect(told).toEqual(expected);
});

test("the table of what is billed without an object follows from the prices", () => {
  const rows = rowsOf("a month of");
  expect(rows).toHaveLength(2);
  const expected = rows.map(([, billed = ""]) => {
    const [, reads] = /([\d,]+) KV reads/.exec(billed) ?? [];
    const [, writes] = /([\d,]+) KV writes/.exec(billed) ?? [];
    const [, points] = /([\d,]+) data points/.exec(billed) ?? [];
    const dollars = dollarsOf({
      kvReads: number(reads),
      kvWrites: number(writes),
      dataPoints: number(points),
    });
    return `$${dollars.toFixed(2)}`;
  });
  expect(rows.map(([, , cost]) => cost)).toEqual(expected);
});
