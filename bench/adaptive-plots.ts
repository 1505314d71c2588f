/** Draws what the simulation of adaptive limits did, as SVG. */
import {
  CAPACITY,
  END_S,
  HALVED_AT_S,
  OFFERED_PER_S,
  RECOVERED_AT_S,
  summaryOf,
  type Second,
} from "../test/simulation/adaptive-machines.ts";
import { COLOURS, picture, type Line, type Panel } from "./plot.ts";

export const TITLES = { gradient2: "Gradient2", vegas: "Vegas", aimd: "AIMD" } as const;
/** The healthy minute, the halved one, and the last one, each without the seconds in which the limit finds itself. */
const PHASES = [
  [20, HALVED_AT_S],
  [HALVED_AT_S + 10, RECOVERED_AT_S],
  [RECOVERED_AT_S + 20, END_S],
] as const;

/** A row of the table: of each phase the calls answered in time per second, and p50 and p99 in milliseconds. */
export function figuresOf(seconds: readonly Second[]): string {
  return PHASES.map(([fromS, toS]) => {
    const { goodPerS, p50Ms, p99Ms } = summaryOf(seconds, fromS, toS);
    return `${goodPerS.toFixed(0)} · ${p50Ms.toFixed(0)} / ${p99Ms.toFixed(0)}`;
  }).join(" | ");
}

interface Figure {
  readonly title: string;
  /** The highest value that is drawn; what is above is cut. */
  readonly most: number;
  /** What the upstream can do, as values at the two levels of its capacity. */
  readonly marks?: readonly [whole: number, half: number];
  readonly valueOf: (second: Second) => number;
}

const FIGURES: readonly Figure[] = [
  {
    title: "limit (grey: what the upstream serves at once)",
    most: 300,
    marks: [CAPACITY, CAPACITY / 2],
    valueOf: ({ limit }) => limit,
  },
  {
    title: "calls answered in time, per second (grey: what the upstream can answer of those offered)",
    most: 800,
    marks: [OFFERED_PER_S, 400],
    valueOf: ({ good }) => good,
  },
  {
    title: "p99 of the time that a call took, in ms",
    most: 500,
    valueOf: ({ tookMs }) => tookMs.toSorted((a, b) => a - b)[Math.floor(tookMs.length * 0.99)] ?? 0,
  },
];

/** A picture of three panels over time: one limit that is shared, beside a limit of each machine's own. */
export function drawn(title: string, shared: readonly Second[], own: readonly Second[]): string {
  const panels = FIGURES.map((figure): Panel => {
    const of = (seconds: readonly Second[]) =>
      seconds.map((second, index) => [index + 1, figure.valueOf(second)] as const);
    const lines = [
      { points: of(own), colour: COLOURS.second, width: 1.5 },
      { points: of(shared), colour: COLOURS.first, width: 1.5 },
    ];
    return { ...figure, lines: [...markOf(figure), ...lines] };
  });
  const legend = [
    ["one limit, shared by 10 machines", 0, COLOURS.first],
    ["each machine for itself (limits added up)", 200, COLOURS.second],
  ] as const;
  return picture(title, legend, [0, HALVED_AT_S, RECOVERED_AT_S, END_S], panels);
}

function markOf({ marks }: Figure): Line[] {
  if (marks === undefined) return [];
  const [whole, half] = marks;
  const points = [HALVED_AT_S, RECOVERED_AT_S, END_S].flatMap((untilS, index) => {
    const level = index === 1 ? half : whole;
    const fromS = [0, HALVED_AT_S, RECOVERED_AT_S][index] ?? 0;
    return [[fromS, level] as const, [untilS, level] as const];
  });
  return [{ points, colour: COLOURS.mark, width: 3 }];
}
