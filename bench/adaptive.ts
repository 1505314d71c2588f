/**
 * What adaptive limits do when an upstream's capacity halves and recovers: draws the plots of
 * docs/adaptive-concurrency.md, and prints its table. Virtual time, so it does not matter how fast the machine is.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { simulate, type Adapt, type Who } from "../test/simulation/adaptive-machines.ts";
import { drawn, figuresOf, TITLES } from "./adaptive-plots.ts";

const SEED = 1;
const IMAGES = join(import.meta.dirname, "..", "docs", "images");
const WHOSE = {
  shared: "one limit for all",
  own: "each machine its own",
  divided: "its own, up to a tenth",
  none: "none",
} as const;
const rows: string[] = [];

function row(name: string, who: Who, adapt: Adapt) {
  const seconds = simulate(adapt, who, SEED);
  rows.push(`| ${name} | ${WHOSE[who]} | ${figuresOf(seconds)} |`);
  return seconds;
}

mkdirSync(IMAGES, { recursive: true });
for (const adapt of ["gradient2", "vegas", "aimd"] as const) {
  const shared = row(TITLES[adapt], "shared", adapt);
  const own = row(TITLES[adapt], "own", adapt);
  row(TITLES[adapt], "divided", adapt);
  writeFileSync(join(IMAGES, `adaptive-${adapt}.svg`), drawn(TITLES[adapt], shared, own));
}
row("no limit", "none", "gradient2");
console.log(rows.join("\n"));
