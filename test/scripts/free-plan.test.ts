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
  expect(freeCallsADay(needed)).toEqual({ calls: 100_000, bound: "worker requests" });
  expect(freeCallsADay({ ...needed, rowsWritten: 300 })).toEqual({ calls: 33_000, bound: "rows written" });
  expect(freeCallsADay({ ...needed, objectRequests: 250 })).toEqual({
    calls: 40_000,
    bound: "object requests",
  });
});

test("the table of the free plan follows from what a million decisions were counted to need", () => {
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
      return {
        name: withoutLinks(name),
        ...freeCallsADay({
          calls: 1_000_000,
          workerRequests,
          objectRequests: number(objectRequests),
          rowsWritten,
        }),
      };
    },
  );
  const told = rowsOf("on the free plan").map(([name, calls, bound]) => ({
    name,
    calls: number(calls),
    bound,
  }));
  expect(told).toEqual(expected);
});
