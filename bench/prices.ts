/** What Cloudflare bills, and its prices: https://developers.cloudflare.com/workers/platform/pricing/. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "smol-toml";
import { ROOT } from "../scripts/project.ts";

/**
 * Dollars per million, in November 2026. From 1 December 2026 log events are billed by their size
 * (https://developers.cloudflare.com/observability/pricing/): $0.25 for each GB beyond 50 GB a month.
 */
const PRICES = {
  workerRequests: 0.3,
  objectRequests: 0.15,
  rowsWritten: 1,
  rowsRead: 0.001,
  gbSeconds: 12.5,
  logEvents: 0.6,
};

/**
 * The same for what goes by time: entries of Workers KV (https://developers.cloudflare.com/kv/platform/pricing/), and data
 * points of Analytics Engine (https://developers.cloudflare.com/analytics/analytics-engine/pricing/), not billed yet.
 */
const PRICES_BY_TIME = { kvReads: 0.5, kvWrites: 5, dataPoints: 0.25 };

/** An object is billed for so much memory, whatever it uses. */
const OBJECT_GB = 0.128;

/** How much of each is billed. */
export type Billed = Readonly<Record<keyof typeof PRICES, number>>;
export type BilledByTime = Readonly<Record<keyof typeof PRICES_BY_TIME, number>>;

export const NOTHING: Billed = {
  workerRequests: 0,
  objectRequests: 0,
  rowsWritten: 0,
  rowsRead: 0,
  gbSeconds: 0,
  logEvents: 0,
};

/** Prices in dollars. */
export function dollarsOf(billed: Billed | BilledByTime): number {
  const prices: Readonly<Record<string, number>> = { ...PRICES, ...PRICES_BY_TIME };
  let dollars = 0;
  for (const [kind, count] of Object.entries(billed)) dollars += (count * (prices[kind] ?? 0)) / 1_000_000;
  return dollars;
}

/** How much memory is billed for an active object. */
export function gbSecondsOf(ms: number): number {
  return (ms / 1_000) * OBJECT_GB;
}

/** What wrangler.toml says of logs. */
interface Observability {
  readonly logs?: { readonly head_sampling_rate?: number; readonly invocation_logs?: boolean };
}

/**
 * How many events are logged: a line each, and one for each request of the worker or an object, unless that is switched
 * off.
 *
 * @param isEachLogged whether it is on; absent: as wrangler.toml has it
 */
export function logEventsOf(lines: number, requests: number, isEachLogged?: boolean): number {
  const { observability } = parse(readFileSync(join(ROOT, "wrangler.toml"), "utf8"));
  const { logs = {} } = (observability ?? {}) as Observability;
  const { head_sampling_rate: rate = 1, invocation_logs: isShipped = true } = logs;
  return rate * (lines + ((isEachLogged ?? isShipped) ? requests : 0));
}
