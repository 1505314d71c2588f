/** Live rates: from recent readings of /metrics, and at first from the history. */
import type { HistoryPoint } from "./answers.ts";

export interface Totals {
  readonly admitted: number;
  readonly denied: number;
  readonly local: number;
  readonly degraded: number;
}
export type TotalsByPolicy = ReadonlyMap<string, Totals>;
/** The counts of /metrics at an instant. */
export interface Reading {
  readonly atMs: number;
  readonly totals: TotalsByPolicy;
}
export interface Rates {
  readonly admittedPerSecond: number;
  readonly deniedPerSecond: number;
  /** The part that isolates and clients decided by themselves, from 0 to 1; `undefined`: there were no decisions. */
  readonly hitRate: number | undefined;
  readonly degraded: number;
}

/** The period of a rate, in ms: isolates send counts every 10 s, so over less they would jump. */
export const RATE_OVER_MS = 30_000;

const MINUTE_MS = 60_000;
const NOTHING: Totals = { admitted: 0, denied: 0, local: 0, degraded: 0 };
const SAMPLE = /^weir_decisions_total\{(.*)\} (\d+)$/gm;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function totalsIn(text: string): TotalsByPolicy {
  const found = new Map<string, Totals>();
  for (const [, labels = "", count = ""] of text.matchAll(SAMPLE)) {
    const parsed = Object.fromEntries([...labels.matchAll(LABEL)].map(([, name, value]) => [name, value]));
    const { policy = "", outcome, reason, source } = parsed as Record<string, string | undefined>;
    const before = found.get(policy) ?? NOTHING;
    const more = (isMeant: boolean) => (isMeant ? Number(count) : 0);
    found.set(policy, {
      admitted: before.admitted + more(outcome === "admitted"),
      denied: before.denied + more(outcome === "denied"),
      local: before.local + more(source === "isolate" || source === "process"),
      degraded: before.degraded + more(reason === "degraded"),
    });
  }
  return found;
}

/** Whether the limiter could read its counts. */
export function hasCounts(text: string): boolean {
  return !/^weir_stats_up 0$/m.test(text);
}

export function withReading(readings: readonly Reading[], reading: Reading): readonly Reading[] {
  const all = [...readings, reading];
  const recent = all.filter(({ atMs }) => atMs > reading.atMs - RATE_OVER_MS);
  const last = all[all.length - recent.length - 1];
  return last === undefined ? recent : [last, ...recent];
}

/** Counts come up to so late, in ms: isolates send them every 10 s, and they are stored within 2 s. */
const LATE_MS = 12_000;
/** The time between two readings, in ms, which is how late a change of the counts is seen. */
export const READ_EVERY_MS = 5_000;

/**
 * The rates of a policy; `undefined`: they cannot be known yet.
 *
 * A single isolate's counts grow every 10 s, so between two readings at random there may be a message more or less than
 * calls were made. Where counts grow steadily, a rate is measured from one growth to another.
 */
export function ratesOf(readings: readonly Reading[], policy: string): Rates | undefined {
  const [first, last] = [readings[0], readings.at(-1)];
  if (first === undefined || last === undefined) return undefined;
  const totalsOf = ({ totals }: Reading) => totals.get(policy) ?? NOTHING;
  const calls = (reading: Reading) => totalsOf(reading).admitted + totalsOf(reading).denied;
  const grown = readings.filter((each, index) => {
    const before = readings[index - 1];
    return before !== undefined && calls(before) !== calls(each);
  });
  const [start = first, end = last] = [grown[0], grown.at(-1)];
  const silentMs = Math.max(start.atMs - first.atMs, last.atMs - end.atMs);
  const isSteady = silentMs <= LATE_MS + READ_EVERY_MS && end.atMs - start.atMs >= LATE_MS - READ_EVERY_MS;
  // Counts that never grow are known to be still after one message's time, those that grew once after two.
  if (!isSteady && last.atMs - first.atMs < 2 * LATE_MS) return undefined;
  if (grown.length === 0 && last.atMs - first.atMs < LATE_MS) return undefined;
  const [from, to] = isSteady ? [start, end] : [first, last];
  // Counts begin at 0 again when the limiter's counts are deleted.
  const since = (field: keyof Totals) => Math.max(0, totalsOf(to)[field] - totalsOf(from)[field]);
  const all = since("admitted") + since("denied");
  const hitRate = all === 0 ? undefined : since("local") / all;
  return ratesIn({ ...sums(since), hitRate }, (to.atMs - from.atMs) / 1_000);
}

/** The policies that have denied calls: those with most denials now first, then those with most in all. */
export function deniedMost(readings: readonly Reading[]): readonly string[] {
  const totals: TotalsByPolicy = readings.at(-1)?.totals ?? new Map();
  const rate = (name: string) => ratesOf(readings, name)?.deniedPerSecond ?? 0;
  return [...totals]
    .filter(([name, { denied }]) => denied > 0 && !name.startsWith("_"))
    .map(([name, { denied }]) => ({ name, denied, perSecond: rate(name) }))
    .toSorted((one, other) => other.perSecond - one.perSecond || other.denied - one.denied)
    .map(({ name }) => name);
}

/** The rates of the last minutes of a history, until readings are enough; `undefined`: it has no calls of them. */
export function recentRates(points: readonly HistoryPoint[], nowMs: number): Rates | undefined {
  const minuteMs = Math.floor(nowMs / MINUTE_MS) * MINUTE_MS;
  const recent = points.filter(({ at }) => Date.parse(at) >= minuteMs - MINUTE_MS);
  const since = (field: "admitted" | "denied" | "degraded") =>
    recent.reduce((all, point) => all + point[field], 0);
  if (since("admitted") + since("denied") === 0) return undefined;
  const fromMs = Math.min(...recent.map(({ at }) => Date.parse(at)));
  return ratesIn({ ...sums(since), hitRate: undefined }, Math.max(LATE_MS, nowMs - fromMs) / 1_000);
}

const sums = (since: (field: "admitted" | "denied" | "degraded") => number) => ({
  admitted: since("admitted"),
  denied: since("denied"),
  degraded: since("degraded"),
});

function ratesIn(
  { admitted, denied, ...others }: ReturnType<typeof sums> & Pick<Rates, "hitRate">,
  seconds: number,
): Rates {
  return { ...others, admittedPerSecond: admitted / seconds, deniedPerSecond: denied / seconds };
}
