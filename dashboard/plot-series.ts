/** The values of a history: all steps of a span, and the sums by plan. */
import type { HistoryPoint } from "./answers.ts";

export interface Span {
  readonly name: string;
  readonly since: string;
  readonly step: "minute" | "hour";
  readonly steps: number;
}

export const HOUR: Span = { name: "the last hour", since: "1h", step: "minute", steps: 60 };
export const SPANS: readonly Span[] = [
  HOUR,
  { name: "the last day", since: "1d", step: "minute", steps: 1_440 },
  { name: "the last month", since: "30d", step: "hour", steps: 720 },
];
const STEP_SECONDS = { minute: 60, hour: 3_600 };

/** The minimum number of steps, also when nothing was counted before the last of them. */
const MIN_STEPS = 15;

/** All steps of the span from the first count, including those without traffic, which the answer omits. */
export function seriesOf(
  span: Span,
  points: readonly HistoryPoint[],
  nowMs: number,
): [number[], number[], number[]] {
  const size = STEP_SECONDS[span.step];
  const now = Math.floor(nowMs / 1_000 / size) * size;
  const byTime = new Map(points.map((point) => [Date.parse(point.at) / 1_000, point]));
  // The current minute would suggest that calls have ended. An hour is too long to wait for.
  const last = span.step === "minute" && byTime.has(now - size) ? now - size : now;
  const first = Math.min(...byTime.keys());
  const counted = Number.isFinite(first) ? Math.floor((last - first) / size) + 2 : span.steps;
  const steps = Math.min(span.steps, Math.max(MIN_STEPS, counted));
  const times = Array.from({ length: steps }, (_, index) => last - (steps - 1 - index) * size);
  return [
    times,
    times.map((time) => byTime.get(time)?.admitted ?? 0),
    times.map((time) => byTime.get(time)?.denied ?? 0),
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
