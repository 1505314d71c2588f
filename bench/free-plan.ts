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

/** How many calls a day the plan is enough for, and what is used up first. */
export function freeCallsADay({ calls, workerRequests, objectRequests, rowsWritten }: Needed): {
  readonly calls: number;
  readonly bound: keyof typeof A_DAY;
} {
  const needed = {
    "worker requests": workerRequests,
    "object requests": objectRequests,
    "rows written": rowsWritten,
  };
  const most = Object.entries(needed).map(([bound, count]) => ({
    bound: bound as keyof typeof A_DAY,
    calls: (A_DAY[bound as keyof typeof A_DAY] * calls) / count,
  }));
  const least = most.reduce((fewest, each) => (each.calls < fewest.calls ? each : fewest));
  return { ...least, calls: Number(Math.floor(least.calls).toPrecision(2)) };
}

/** A text of a page without its links: the first table has them. */
export function withoutLinks(text: string): string {
  return text.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, "$1");
}
