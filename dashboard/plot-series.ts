/** The values of a history: all steps of a span, and the sums by plan. */
import type { HistoryPoint } from "./answers.ts";

export interface Span {
  readonly name: string;
  readonly since: string;
  readonly step: "minute" | "hour";
  /** The time of one bar, in seconds, and its name. */
  readonly barSeconds: number;
  readonly bar: string;
  readonly bars: number;
}

export const HOUR: Span = {
  name: "the last hour",
  since: "1h",
  step: "minute",
  barSeconds: 60,
  bar: "minute",
  bars: 60,
};
export const SPANS: readonly Span[] = [
  HOUR,
  { name: "the last day", since: "1d", step: "minute", barSeconds: 900, bar: "15 minutes", bars: 96 },
  { name: "the last month", since: "30d", step: "hour", barSeconds: 28_800, bar: "8 hours", bars: 90 },
];

/**
 * All bars of the span, up to the one under way: times in seconds, admitted calls, and all calls. Plots of one span have
 * the same times, whenever their calls began.
 */
export function seriesOf(
  { barSeconds, bars }: Span,
  points: readonly HistoryPoint[],
  nowMs: number,
): [number[], number[], number[]] {
  const barOf = (atMs: number) => Math.floor(atMs / 1_000 / barSeconds);
  const last = barOf(nowMs);
  const [admitted, all] = [new Map<number, number>(), new Map<number, number>()];
  const add = (to: Map<number, number>, bar: number, calls: number) =>
    to.set(bar, (to.get(bar) ?? 0) + calls);
  for (const point of points) {
    const bar = barOf(Date.parse(point.at));
    add(admitted, bar, point.admitted);
    add(all, bar, point.admitted + point.denied);
  }
  const shown = Array.from({ length: bars }, (_, index) => last - (bars - 1 - index));
  return [
    shown.map((bar) => bar * barSeconds),
    shown.map((bar) => admitted.get(bar) ?? 0),
    shown.map((bar) => all.get(bar) ?? 0),
  ];
}

export interface PlanSums {
  /** "": the policy's own figures. */
  readonly plan: string;
  readonly admitted: number;
  readonly denied: number;
}

/** The sums of all points by plan, the plans with most calls first. None: no call was decided by a plan. */
export function sumsByPlan(points: readonly HistoryPoint[]): readonly PlanSums[] {
  const sums = new Map<string, { plan: string; admitted: number; denied: number }>();
  const add = (plan: string, admitted: number, denied: number) => {
    const sum = sums.get(plan) ?? { plan, admitted: 0, denied: 0 };
    sums.set(plan, { plan, admitted: sum.admitted + admitted, denied: sum.denied + denied });
  };
  for (const { admitted, denied, plans = {} } of points) {
    add("", admitted, denied);
    for (const [plan, by] of Object.entries(plans)) {
      add(plan, by.admitted, by.denied);
      add("", -by.admitted, -by.denied);
    }
  }
  if (sums.size <= 1) return [];
  const calls = ({ admitted, denied }: PlanSums) => admitted + denied;
  return [...sums.values()]
    .filter((each) => calls(each) > 0)
    .toSorted((one, other) => calls(other) - calls(one) || (one.plan < other.plan ? -1 : 1));
}
