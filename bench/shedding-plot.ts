/** Draws what the simulation of busy machines did, as SVG. */
import {
  END_S,
  MIX,
  OVERLOAD,
  OVERLOAD_AT_S,
  RELIEF_AT_S,
  turnsOf,
  USUAL_LOAD,
  type BusySecond,
  type Priority,
} from "../test/simulation/busy-machines.ts";
import { COLOURS, picture, type Line } from "./plot.ts";

/** Points are means of this many seconds, as a dashboard would show. */
const MEAN_S = 10;

/** A picture of three panels over time: this shedder, beside one that sheds at once and restores at once. */
export function drawnShedding(weir: readonly BusySecond[], atOnce: readonly BusySecond[]): string {
  const legend = [
    ["as a policy sheds by default", 0, COLOURS.first],
    ["sheds low and normal at once above 0.8, restores them at once below 0.7", 170, COLOURS.second],
  ] as const;
  return picture("A fleet that is asked for 1.25 times what it can do", legend, TIMES_S, [
    {
      title: "utilization (grey: what was offered, of what the fleet can do)",
      most: 1.4,
      lines: [offered(), ...both(weir, atOnce, ({ utilization }) => utilization)],
    },
    {
      title: "part of the normal calls that is shed (grey: of the low calls, by default)",
      most: 1,
      lines: [
        { ...lineOf(weir, (second) => shareOf(second, "low")), colour: COLOURS.mark, width: 3 },
        ...both(weir, atOnce, (second) => shareOf(second, "normal")),
      ],
    },
    {
      title: "work that waits at a machine, in seconds",
      most: 2,
      lines: both(weir, atOnce, ({ queueS }) => queueS),
    },
  ]);
}

const TIMES_S = [0, OVERLOAD_AT_S, RELIEF_AT_S, END_S];

function both(
  weir: readonly BusySecond[],
  atOnce: readonly BusySecond[],
  valueOf: (second: BusySecond) => number,
): Line[] {
  return [
    { ...lineOf(atOnce, valueOf), colour: COLOURS.second, width: 1 },
    { ...lineOf(weir, valueOf), colour: COLOURS.first, width: 1.5 },
  ];
}

function lineOf(seconds: readonly BusySecond[], valueOf: (second: BusySecond) => number) {
  return {
    points: meansOf(seconds.map(valueOf)).map((value, index) => [(index + 1) * MEAN_S, value] as const),
  };
}

/** The means of ten values each, one after the other. */
export function meansOf(values: readonly number[]): number[] {
  return Array.from({ length: Math.floor(values.length / MEAN_S) }, (_, index) => {
    const part = values.slice(index * MEAN_S, (index + 1) * MEAN_S);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

/** The part of the calls of a priority that was shed. */
export function shareOf({ offered: of, shed }: BusySecond, priority: Priority): number {
  return of[priority] === 0 ? 0 : shed[priority] / of[priority];
}

function offered(): Line {
  const loads = [USUAL_LOAD, OVERLOAD, USUAL_LOAD];
  const points = loads.flatMap((load, index) => [
    [TIMES_S[index] ?? 0, load] as const,
    [TIMES_S[index + 1] ?? END_S, load] as const,
  ]);
  return { points, colour: COLOURS.mark, width: 3 };
}

/** A row of the table: what the fleet and its calls met from the fourth minute of the overload on. */
export function sheddingFigures(seconds: readonly BusySecond[]): string {
  const overload = seconds.slice(OVERLOAD_AT_S + 180, RELIEF_AT_S);
  const mean = (valueOf: (second: BusySecond) => number) =>
    overload.reduce((sum, second) => sum + valueOf(second), 0) / overload.length;
  const shed = (Object.keys(MIX) as Priority[]).map(
    (name) => `${Math.round(100 * mean((second) => shareOf(second, name)))} %`,
  );
  const queueMs = Math.round(1_000 * mean(({ queueS }) => queueS));
  const normal = overload.map((second) => shareOf(second, "normal"));
  const turns = (60 * turnsOf(normal, 0.5)) / overload.length;
  return `${mean(({ utilization }) => utilization).toFixed(2)} | ${queueMs} ms | ${shed.join(" | ")} | ${turns.toFixed(0)}`;
}
