/** What Cloudflare's free plan is enough for. */

/** Allowances per day, in November 2026: https://developers.cloudflare.com/durable-objects/platform/pricing/. */
const A_DAY = { "worker requests": 100_000, "object requests": 100_000, "rows written": 100_000 };

/** What the calls of a line needed. */
export interface Needed {
  readonly calls: number;
  readonly workerRequests: number;
  readonly objectRequests: number;
  readonly rowsWritten: number;
}

/** What a day needs beside the calls, however many they are: the catalog and counts of one isolate and one object. */
export type Background = Pick<Needed, "objectRequests" | "rowsWritten">;

/** How many calls a day the plan is enough for, in two digits, and what is used up first. */
export function freeCallsADay(
  { calls, workerRequests, objectRequests, rowsWritten }: Needed,
  background: Background,
): { readonly calls: number; readonly bound: keyof typeof A_DAY } {
  const used = {
    "worker requests": 0,
    "object requests": background.objectRequests,
    "rows written": background.rowsWritten,
  };
  const needed = {
    "worker requests": workerRequests,
    "object requests": objectRequests,
    "rows written": rowsWritten,
  };
  const bounds = ["worker requests", "object requests", "rows written"] as const;
  const most = bounds.map((bound) => ({
    bound,
    calls: ((A_DAY[bound] - used[bound]) * calls) / needed[bound],
  }));
  const least = most.reduce((fewest, each) => (each.calls < fewest.calls ? each : fewest));
  const digit = 10 ** Math.max(0, Math.floor(Math.log10(least.calls)) - 1);
  return { ...least, calls: digit * Math.floor(least.calls / digit) };
}

/** A text of a page without its links: the first table has them. */
export function withoutLinks(text: string): string {
  return text.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, "$1");
}
