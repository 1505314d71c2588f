/** Live rates, from recent readings of /metrics. */

export interface Totals {
  readonly admitted: number;
  readonly denied: number;
  readonly isolate: number;
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
  /** The part that isolates decided locally, from 0 to 1; `undefined`: there were no decisions. */
  readonly hitRate: number | undefined;
  readonly degraded: number;
}

/** The period of a rate, in ms: isolates send counts every 10 s, so over less they would jump. */
export const RATE_OVER_MS = 30_000;

const NOTHING: Totals = { admitted: 0, denied: 0, isolate: 0, degraded: 0 };
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
      isolate: before.isolate + more(source === "isolate"),
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

/** The rates of a policy; `undefined`: there is one reading only. */
export function ratesOf(readings: readonly Reading[], policy: string): Rates | undefined {
  const [first, last] = [readings[0], readings.at(-1)];
  if (first === undefined || last === undefined || last.atMs <= first.atMs) return undefined;
  const [from, to] = [first.totals.get(policy) ?? NOTHING, last.totals.get(policy) ?? NOTHING];
  // Counts begin at 0 again when the limiter's counts are deleted.
  const since = (field: keyof Totals) => Math.max(0, to[field] - from[field]);
  const seconds = (last.atMs - first.atMs) / 1_000;
  const all = since("admitted") + since("denied");
  return {
    admittedPerSecond: since("admitted") / seconds,
    deniedPerSecond: since("denied") / seconds,
    hitRate: all === 0 ? undefined : since("isolate") / all,
    degraded: since("degraded"),
  };
}
