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

interface Panel {
  readonly title: string;
  /** The highest value that is drawn; what is above is cut. */
  readonly most: number;
  /** What the upstream can do, as values at the two levels of its capacity. */
  readonly marks?: readonly [whole: number, half: number];
  readonly valueOf: (second: Second) => number;
}

const PANELS: readonly Panel[] = [
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

const [LEFT, WIDTH, HEIGHT, GAP, TOP] = [48, 640, 120, 36, 44];
const COLOURS = { shared: "#0b6bcb", own: "#d4570a", mark: "#9aa0a6", text: "#30343a" };

/** A picture of three panels over time: one limit that is shared, beside a limit of each machine's own. */
export function drawn(title: string, shared: readonly Second[], own: readonly Second[]): string {
  const height = TOP + PANELS.length * (HEIGHT + GAP);
  const panels = PANELS.map((panel, index) => {
    const topPx = TOP + index * (HEIGHT + GAP) + 16;
    return drawnPanel(panel, topPx, shared, own);
  });
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${LEFT + WIDTH + 28} ${height}"`,
    `  font-family="system-ui, sans-serif" font-size="11" fill="${COLOURS.text}">`,
    `<rect width="100%" height="100%" fill="#ffffff"/>`,
    `<text x="${LEFT}" y="18" font-size="14" font-weight="600">${title}</text>`,
    `<text x="${LEFT}" y="36" fill="${COLOURS.shared}">one limit, shared by 10 machines</text>`,
    `<text x="${LEFT + 200}" y="36" fill="${COLOURS.own}">each machine for itself (limits added up)</text>`,
    ...panels.flat(),
    "</svg>",
  ].join("\n")}\n`;
}

function drawnPanel(
  panel: Panel,
  topPx: number,
  shared: readonly Second[],
  own: readonly Second[],
): string[] {
  const x = (atS: number) => Math.round(LEFT + (atS / END_S) * WIDTH);
  const y = (value: number) =>
    Math.round(topPx + HEIGHT - (Math.min(value, panel.most) / panel.most) * HEIGHT);
  const line = (points: readonly (readonly [number, number])[], colour: string, width: number) =>
    `<polyline fill="none" stroke="${colour}" stroke-width="${width}" points="${points
      .map(([atS, value]) => `${x(atS)},${y(value)}`)
      .join(" ")}"/>`;
  const of = (seconds: readonly Second[]) =>
    seconds.map((second, index) => [index + 1, panel.valueOf(second)] as const);
  const grid = [0, panel.most / 2, panel.most].map(
    (value) =>
      `<path d="M${LEFT} ${y(value)}H${LEFT + WIDTH}" stroke="#e3e5e8"/>` +
      `<text x="${LEFT - 6}" y="${y(value) + 4}" text-anchor="end">${value}</text>`,
  );
  const times = [0, HALVED_AT_S, RECOVERED_AT_S, END_S].map(
    (atS) => `<text x="${x(atS)}" y="${topPx + HEIGHT + 13}" text-anchor="middle">${atS} s</text>`,
  );
  const [whole, half] = panel.marks ?? [];
  const steps = [HALVED_AT_S, RECOVERED_AT_S, END_S].map((untilS, index) => {
    const level = index === 1 ? half : whole;
    const fromS = [0, HALVED_AT_S, RECOVERED_AT_S][index] ?? 0;
    return level === undefined ? [] : ([[fromS, level] as const, [untilS, level] as const] as const);
  });
  return [
    `<text x="${LEFT}" y="${topPx - 4}">${panel.title}</text>`,
    ...grid,
    ...times,
    ...(whole === undefined ? [] : [line(steps.flat(), COLOURS.mark, 3)]),
    line(of(own), COLOURS.own, 1.5),
    line(of(shared), COLOURS.shared, 1.5),
  ];
}
