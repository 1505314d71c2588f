/** What is measured of an account, in this order: each with what is documented of it, and where. */
import { type Billed, gbSecondsOf, NOTHING } from "../../../bench/prices.ts";
import {
  AT_ONCE,
  bill,
  CALLED_KEYS,
  coldCalls,
  DISTANCES_MS,
  freePlan,
  HOT_PER_SECOND,
  hotKeys,
  isolates,
  isolatesOfObjects,
  MAX_WATCHES,
  type Lengths,
  type Measuring,
  messages,
  type Outcome,
  places,
  redeployment,
  waiting,
} from "./measure.ts";

export interface Part {
  readonly name: string;
  readonly documented: string;
  readonly source: string;
  /** The most that it uses; absent: hardly anything. */
  readonly most?: (lengths: Lengths) => Partial<Billed>;
  readonly measure: (measuring: Measuring) => Promise<Outcome>;
}

const DOCS = "https://developers.cloudflare.com";
/** Rows that an override takes in the catalog, with its index and its change. */
const ROWS_PER_OVERRIDE = 5;
/** Isolates that read all overrides, of both versions. */
const READERS = 100;

export const PARTS: readonly Part[] = [
  {
    name: "isolates per colo and load",
    documented: "about one a colo at low load, since requests are sharded to few isolates",
    source: "https://blog.cloudflare.com/eliminating-cold-starts-2-shard-and-conquer/",
    most: ({ callers, maxCalls }) => ({ workerRequests: callers.length * maxCalls }),
    measure: isolates,
  },
  {
    name: "isolates that host many objects",
    documented: "one isolate of 128 MB can host several objects of a class; how many is not said",
    source: `${DOCS}/durable-objects/observability/metrics-and-analytics/#memory-usage`,
    // Each is in memory for 10 s.
    most: ({ objects }) => ({ objectRequests: objects, gbSeconds: objects * gbSecondsOf(10_000) }),
    measure: isolatesOfObjects,
  },
  {
    name: "one object's messages a second, and whether it recovers",
    documented: "a soft limit of 1,000 requests a second",
    source: `${DOCS}/durable-objects/reference/faq/#how-much-work-can-a-single-durable-object-do`,
    most: ({ messageCallers, maxMessages }) => {
      const objectRequests = (messageCallers.length + 1) * maxMessages;
      return { objectRequests, workerRequests: objectRequests / AT_ONCE };
    },
    measure: messages,
  },
  {
    name: "stalls of a hot key at 100, 200 and 300 ms distance",
    documented:
      "busy keys are decided in the isolate; a call waits for a round trip only if its units are used up",
    source: "docs/architecture.md#what-is-the-path-of-a-call",
    most: ({ hotSeconds }) => ({ objectRequests: DISTANCES_MS.length * hotSeconds * HOT_PER_SECOND }),
    measure: hotKeys,
  },
  {
    name: "the catalog's part of a cold first call",
    documented: "after a pause of 8 s the first call waits for the catalog, 1,000 ms at most",
    source: "docs/catalog.md#when-is-a-change-in-force",
    measure: coldCalls,
  },
  {
    name: "a deployment under load with many overrides",
    documented:
      "versions mix for some seconds; no override is lost, and objects take the new version at once",
    source: "docs/guarantees.md#what-holds-while-versions-mix",
    most: ({ maxCalls, overrides }) => ({
      workerRequests: maxCalls + MAX_WATCHES,
      objectRequests: maxCalls,
      rowsRead: READERS * overrides,
      rowsWritten: ROWS_PER_OVERRIDE * overrides + 2 * CALLED_KEYS,
    }),
    measure: redeployment,
  },
  {
    name: "where CATALOG and STATS are",
    documented: "near their first caller with a token, or near HOME, for good",
    source: "docs/deploying.md#where-are-the-catalog-and-the-statistics",
    measure: places,
  },
  {
    name: "the free plan's limits",
    documented:
      "a day of 100,000 worker requests, 100,000 object requests, 100,000 rows written and 13,000 GB-s; " +
      "1,000 calls of Cloudflare's services in an invocation (10,000 on the paid plan)",
    source: `${DOCS}/workers/platform/limits/#subrequests`,
    most: ({ subrequests }) => ({ objectRequests: subrequests }),
    measure: freePlan,
  },
  {
    name: "a day's bill",
    documented: "$0.30 to $6.91 for a million decisions",
    source: "docs/costs.md#what-does-a-million-decisions-cost-on-cloudflare",
    measure: bill,
  },
  {
    name: "billed time of a waiting push",
    documented: "an object is billed 128 MB for as long as a call waits in it",
    source: `${DOCS}/durable-objects/platform/pricing/`,
    most: ({ waiters, waitMs }) => ({ gbSeconds: waiters * gbSecondsOf(waitMs + 10_000) }),
    measure: waiting,
  },
];

/** The most that all parts use. Each keeps to its own bound. */
export function mostOf(lengths: Lengths): Billed {
  const most = { ...NOTHING };
  for (const part of PARTS)
    for (const [kind, count] of Object.entries(part.most?.(lengths) ?? {}))
      most[kind as keyof Billed] += count ?? 0;
  return most;
}

export const FULL: Lengths = {
  loadMs: 5_000,
  callers: [1, 8, 64],
  objects: 1_000,
  messageCallers: [1, 4, 16, 64],
  restMs: 5_000,
  maxMessages: 100_000,
  waiters: 8,
  waitMs: 15_000,
  coldRounds: 6,
  coldAfterMs: 9_000,
  hotSeconds: 10,
  overrides: 10_000,
  settleMs: 10_000,
  maxCalls: 20_000,
  subrequests: 1_100,
  analyticsMs: 600_000,
};
export const QUICK: Lengths = {
  loadMs: 1_000,
  callers: [1, 8],
  objects: 100,
  messageCallers: [1, 8],
  restMs: 1_000,
  maxMessages: 10_000,
  waiters: 2,
  waitMs: 1_000,
  coldRounds: 1,
  coldAfterMs: 9_000,
  hotSeconds: 2,
  overrides: 1_000,
  settleMs: 1_000,
  maxCalls: 4_000,
  subrequests: 200,
  analyticsMs: 300_000,
};
