/** Plots of values by time. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { count } from "./words.ts";

export interface Drawn {
  /** Times in seconds, then the values of each series; those of bars are drawn over those before them. */
  readonly data: uPlot.AlignedData;
  /** The colours of the series, as style.css names them. */
  readonly tones: readonly ("admitted" | "denied")[];
  /** Lines, if absent. */
  readonly barSeconds?: number;
  readonly maxY?: number;
}

/** Draws what `draw` returns. Screen readers get the label. */
export function Plot(props: {
  readonly draw: () => Drawn;
  /** Draws again when it changes. */
  readonly of: unknown;
  readonly height: number;
  readonly label: string;
  readonly children: ComponentChildren;
}) {
  const { draw, of, height, label, children } = props;
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = place.current;
    if (element === null) return undefined;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    let plot: uPlot | undefined;
    const redraw = () => {
      plot?.destroy();
      const drawn = draw();
      plot = new uPlot(optionsOf(element, drawn, height), drawn.data, element);
    };
    redraw();
    const observer = new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    dark.addEventListener("change", redraw);
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", redraw);
      plot?.destroy();
    };
  }, [of, height]);
  return (
    <figure class="plot">
      <div ref={place} role="img" aria-label={label} />
      <figcaption>{children}</figcaption>
    </figure>
  );
}

function optionsOf(element: HTMLElement, drawn: Drawn, height: number): uPlot.Options {
  const { data, tones, barSeconds, maxY = 1 } = drawn;
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--plot-text"),
    grid: { stroke: colour("--plot-grid"), width: 1 },
    ticks: { show: false },
  };
  const times = data[0];
  const [first = 0, last = 0] = [times[0], times.at(-1)];
  const seconds = last - first;
  const format = seconds > 2 * DAY_SECONDS ? DAYS : seconds < MAX_SHORT_SECONDS ? SECONDS : HOURS;
  const bars = barSeconds === undefined ? undefined : uPlot.paths.bars?.({ size: [0.8], align: 1 });
  return {
    width: element.clientWidth,
    height,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 18, 0, 0],
    scales: {
      // A line that has just begun has an axis of a minute.
      x: { range: [first, Math.max(last + (barSeconds ?? 0), first + 60)] },
      y: { range: (_, __, most) => [0, Math.max(maxY, most * 1.1)] },
    },
    axes: [
      {
        ...axis,
        size: 28,
        space: format === SECONDS ? 80 : 60,
        values: (_, at) => at.map((each) => format.format(each * 1_000)),
      },
      {
        ...axis,
        size: 46,
        space: 28,
        values: (_, at) => at.map((each) => (Number.isInteger(each) ? short(each) : "")),
      },
    ],
    series: [
      {},
      ...tones.map((tone) => ({
        stroke: colour(`--plot-${tone}`),
        fill: colour(bars === undefined ? `--plot-${tone}-fill` : `--plot-${tone}`),
        width: bars === undefined ? 1.5 : 0,
        points: { show: bars === undefined, size: 4 },
        ...(bars !== undefined && { paths: bars }),
      })),
    ],
  };
}

const DAY_SECONDS = 86_400;
const MAX_SHORT_SECONDS = 600;
const SECONDS = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const HOURS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAYS = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

function short(value: number): string {
  return value >= 10_000 ? `${count(value / 1_000)}k` : count(value);
}
