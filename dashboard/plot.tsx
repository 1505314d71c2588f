/** A plot of what was admitted and denied, step by step. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { HistoryPoint } from "./answers.ts";
import { readClockMs } from "./clock.ts";
import { count } from "./words.ts";

/** How far back a plot looks. */
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

/** All steps of the span, those without traffic too: they are left out of the answer. */
export function seriesOf(
  span: Span,
  points: readonly HistoryPoint[],
  nowMs: number,
): [number[], number[], number[]] {
  const size = STEP_SECONDS[span.step];
  const last = Math.floor(nowMs / 1_000 / size) * size;
  const byTime = new Map(points.map((point) => [Date.parse(point.at) / 1_000, point]));
  const times = Array.from({ length: span.steps }, (_, index) => last - (span.steps - 1 - index) * size);
  return [
    times,
    times.map((time) => byTime.get(time)?.admitted ?? 0),
    times.map((time) => byTime.get(time)?.denied ?? 0),
  ];
}

/** Draws the points. Whoever cannot see it is told the sums. */
export function Plot(props: {
  readonly span: Span;
  readonly points: readonly HistoryPoint[];
  readonly height: number;
}) {
  const { span, points, height } = props;
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = place.current;
    if (element === null) return undefined;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    let plot: uPlot | undefined;
    const draw = () => {
      plot?.destroy();
      const data = seriesOf(span, points, readClockMs());
      plot = new uPlot(optionsOf(element, height), data, element);
    };
    draw();
    const observer = new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    dark.addEventListener("change", draw);
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", draw);
      plot?.destroy();
    };
  }, [span, points, height]);
  const sum = (field: "admitted" | "denied") => points.reduce((all, point) => all + point[field], 0);
  const label = `In ${span.name}: ${count(sum("admitted"))} admitted, ${count(sum("denied"))} denied`;
  return (
    <figure class="plot">
      <div ref={place} role="img" aria-label={label} />
      <figcaption>
        <span class="swatch admitted" /> {count(sum("admitted"))} admitted
        <span class="swatch denied" /> {count(sum("denied"))} denied in {span.name}
      </figcaption>
    </figure>
  );
}

function optionsOf(element: HTMLElement, height: number): uPlot.Options {
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--plot-text"),
    grid: { stroke: colour("--plot-grid"), width: 1 },
    ticks: { show: false },
  };
  const line = (label: string, name: string) => ({
    label,
    stroke: colour(`--plot-${name}`),
    fill: colour(`--plot-${name}-fill`),
    width: 1.5,
    points: { show: false },
  });
  const few = (values: readonly number[]) =>
    values.map((value) => (Number.isInteger(value) ? short(value) : ""));
  return {
    width: element.clientWidth,
    height,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 4, 0, 0],
    scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
    axes: [
      { ...axis, space: 60 },
      { ...axis, size: 46, space: 28, values: (_, values) => few(values) },
    ],
    series: [{}, line("admitted", "admitted"), line("denied", "denied")],
  };
}

/** A figure beside an axis, where there is little room. */
function short(value: number): string {
  return value >= 10_000 ? `${count(value / 1_000)}k` : count(value);
}
