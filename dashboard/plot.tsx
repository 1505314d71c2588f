/** A plot of admitted and denied calls by step. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { HistoryPoint } from "./answers.ts";
import { readClockMs } from "./clock.ts";
import { seriesOf, type Span } from "./plot-series.ts";
import { count } from "./words.ts";

/** Draws the points. Screen readers get the sums. */
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
      plot = new uPlot(optionsOf(element, span, height), data, element);
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

function optionsOf(element: HTMLElement, span: Span, height: number): uPlot.Options {
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
    padding: [8, 18, 0, 0],
    scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
    axes: [
      { ...axis, size: 28, space: 60, values: (_, times) => times.map((time) => atText(time, span)) },
      { ...axis, size: 46, space: 28, values: (_, values) => few(values) },
    ],
    series: [{}, line("admitted", "admitted"), line("denied", "denied")],
  };
}

const HOURS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAYS = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** An instant below an axis, in local time. */
function atText(seconds: number, { step }: Span): string {
  const text = HOURS.format(seconds * 1_000);
  return step === "hour" && text === "00:00" ? DAYS.format(seconds * 1_000) : text;
}

function short(value: number): string {
  return value >= 10_000 ? `${count(value / 1_000)}k` : count(value);
}
