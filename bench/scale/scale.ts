/**
 * `npm run bench:scale`: what is admitted with many holders far away, in virtual time. Each cell is the production client
 * in each holder and the production object, as described in run.ts, objects.ts and cities.ts. Figures are of the calls
 * after the first 5 s.
 *
 *     npm run bench:scale -- --only holders=300,limit=20000/s,load=0.5 --seed 2
 *
 * `--only` names what cells have to be: `limit`, `holders`, `load`, `shape`, `fault`; several values of one are joined by
 * `|`. With `--processes`, holders are processes with a client of their own. `--seconds` says how long calls are made, by
 * default 15 s, or 10 s beyond the event. `--timeline` also says what is admitted in each half second, and `--regions-from`
 * from how many holders on they ask objects in their regions; `--regions` is that field of the policy. A cell takes some seconds where isolates decide, and minutes where all calls wait
 * (20,000/s, and 20 times the limit). Progress goes to stderr.
 */
import { parseArgs } from "node:util";
import type { Quota } from "./laws.ts";
import type { Figures } from "./measures.ts";
import { type Cell, EVENT_MS, runCell } from "./run.ts";

const QUOTAS: Readonly<Record<string, Quota>> = {
  "1000/s": { algorithm: "token-bucket", limit: 1_000, windowMs: 1_000 },
  "20000/s": { algorithm: "token-bucket", limit: 20_000, windowMs: 1_000 },
  "2000 in any 2 s": { algorithm: "sliding-log", limit: 2_000, windowMs: 2_000 },
};

interface NamedCell {
  readonly limit: string;
  readonly holders: number;
  readonly load: number;
  readonly shape: Cell["shape"];
  readonly fault: Cell["fault"];
}

const HOLDERS = [1, 32, 300, 1_000, 3_000];
const STEADY = { shape: "even", fault: "none" } as const;
/** What may happen to 1,000 holders. */
const EVENTS = [{ shape: "zipf" }, { shape: "turning" }, { fault: "stall" }, { fault: "loss" }] as const;

/** All limits, holders and loads; then the events. */
function allCells(): NamedCell[] {
  const cells: NamedCell[] = [];
  for (const limit of Object.keys(QUOTAS))
    for (const holders of HOLDERS)
      for (const load of [0.5, 2, 20]) cells.push({ limit, holders, load, ...STEADY });
  for (const limit of Object.keys(QUOTAS).slice(0, 2))
    for (const load of [0.5, 2])
      for (const event of EVENTS) cells.push({ limit, holders: 1_000, load, ...STEADY, ...event });
  return cells;
}

/**
 * What a sketch of the next version admits, in percent: it hands out rates through a tree of objects, with delays and faults
 * that are alike but not the same. By `HOLDERS`, then by `EVENTS`.
 */
const SKETCH: Readonly<Record<string, readonly number[]>> = {
  "1000/s, × 0.5": [100, 99.9, 99.9, 99.6, 99.8, 99.6, 100.1, 99.6, 87.3],
  "1000/s, × 2": [101.7, 100, 94.6, 98.5, 95.9, 97.7, 97.7, 97.4, 98.8],
  "1000/s, × 20": [100, 100, 100, 100, 99.1],
  "20000/s, × 0.5": [100, 100, 100, 99.9, 94.0, 97.9, 84.8, 99.8, 97.7],
  "20000/s, × 2": [101.2, 100.4, 100, 97.0, 97.3, 97.6, 88.2, 95.1, 99.2],
  "20000/s, × 20": [100.1, 100, 100, 100, 96.1],
};

/** What was admitted before messages followed the round trip and late calls were dropped, at 36e99a0. */
const BEFORE: typeof SKETCH = {
  "1000/s, × 0.5": [100, 100, 100, 100, 100, 100, 100, 15.1, 95.3],
  "1000/s, × 2": [102, 99.8, 0, 0, 0, 101.7, 0, 0, 0],
  "1000/s, × 20": [102, 101, 0, 0, 0],
  "20000/s, × 0.5": [88.4, 100, 0, 0, 0, 0, 0, 0, 0],
  "20000/s, × 2": [45.6, 100.2, 0],
  "2000 in any 2 s, × 0.5": [100, 100, 100, 100, 100],
  "2000 in any 2 s, × 2": [82.7, 97.5, 0, 0, 0],
  "2000 in any 2 s, × 20": [74.2, 103, 0],
};

/** The figure of such a table for a cell; empty: there is none. */
function figureIn(table: typeof SKETCH, cell: NamedCell): string {
  const event = EVENTS.findIndex((each) =>
    Object.entries(each).every(([name, value]) => cell[name as keyof NamedCell] === value),
  );
  const column = event < 0 ? HOLDERS.indexOf(cell.holders) : HOLDERS.length + event;
  return String(table[`${cell.limit}, × ${cell.load}`]?.[column] ?? "");
}

/** The cells that have one of the values of each name. @throws Error for an unknown name */
function chosenCells(only: string | undefined): NamedCell[] {
  const wanted = (only ?? "").split(",").filter(Boolean);
  return allCells().filter((cell) =>
    wanted.every((each) => {
      const [name = "", values = ""] = each.split("=");
      if (!Object.hasOwn(cell, name))
        throw new Error(`--only ${each}: cells have ${Object.keys(cell).join(", ")}`);
      return values.split("|").includes(String(cell[name as keyof NamedCell]));
    }),
  );
}

/** Parts are in percent. */
const HEAD = [
  "cell",
  "admitted",
  "before",
  "sketch",
  "degraded",
  "waiting",
  "p50, p99 ms",
  "msgs/s",
  "busy",
  "Jain",
  "over",
  "0.9 after s",
];

const percent = (part: number) => String(Number((100 * part).toFixed(1)));
const secondsText = (seconds: number) => (seconds === Infinity ? "never" : String(seconds));

function nameOf({ limit, holders, load, shape, fault }: NamedCell): string {
  const events = [shape, fault].filter((each) => each !== "even" && each !== "none");
  return [limit, holders, `× ${load}`, ...events].join(", ");
}

function rowOf(cell: NamedCell, figures: Figures): readonly string[] {
  const { waitP50, waitP99, jain, jainExact, admittedOver, handedOutOver, coldS, backS } = figures;
  return [
    nameOf(cell),
    percent(figures.admitted),
    figureIn(BEFORE, cell),
    figureIn(SKETCH, cell),
    percent(figures.degraded),
    percent(figures.waited),
    `${waitP50}, ${waitP99}`,
    figures.messages.toFixed(0),
    percent(figures.busy),
    `${Number.isNaN(jain) ? "none" : jain.toFixed(2)} (${jainExact.toFixed(2)})`,
    `${Number(admittedOver.toFixed(3))}, ${Number(handedOutOver.toFixed(3))}`,
    secondsText(coldS) + (Number.isNaN(backS) ? "" : `, ${secondsText(backS)}`),
  ];
}

function durationMsOf({ shape, fault }: NamedCell, seconds: string | undefined): number {
  if (seconds !== undefined) return 1_000 * Number(seconds);
  if (fault === "stall") return EVENT_MS + 20_000;
  return shape === "turning" ? EVENT_MS + 10_000 : 15_000;
}

async function printTable(): Promise<void> {
  const options = {
    only: { type: "string" },
    seed: { type: "string" },
    seconds: { type: "string" },
    processes: { type: "boolean" },
    timeline: { type: "boolean" },
    "regions-from": { type: "string" },
    regions: { type: "string" },
  } as const;
  const given = parseArgs({ options }).values;
  const { only, seed, seconds, processes, timeline, "regions-from": from } = given;
  const regions = given.regions as Cell["regions"];
  const cells = chosenCells(only);
  console.log(`| ${HEAD.join(" | ")} |\n|${" --- |".repeat(HEAD.length)}`);
  for (const [index, cell] of cells.entries()) {
    const beganMs = performance.now();
    const figures = await runCell({
      ...cell,
      kind: processes === true ? "process" : "isolate",
      quota: QUOTAS[cell.limit] as Quota,
      seed: Number(seed ?? "1"),
      durationMs: durationMsOf(cell, seconds),
      lawEveryMs: 50,
      ...(regions !== undefined && { regions }),
      ...(from !== undefined && { holdersForRegions: Number(from) }),
    });
    console.log(`| ${rowOf(cell, figures).join(" | ")} |`);
    const tookS = ((performance.now() - beganMs) / 1_000).toFixed(0);
    const about = `${figures.seconds} s in ${tookS} s, ${figures.logLines.toFixed(0)} log lines a second`;
    if (timeline === true) console.error(figures.timeline.map((part) => Math.round(100 * part)).join(" "));
    console.error(`${index + 1}/${cells.length} ${nameOf(cell)}: ${about}`);
  }
}

await printTable();
