/**
 * What load shedding does for an overloaded fleet: draws the plot of docs/load-shedding.md, and
 * prints its table. Virtual time, so it does not matter how fast the machine is.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { simulateBusy } from "../test/simulation/busy-machines.ts";
import { drawnShedding, sheddingFigures } from "./shedding-plot.ts";

const SEED = 1;
const IMAGES = join(import.meta.dirname, "..", "docs", "images");

const weir = await simulateBusy("weir", SEED);
const atOnce = await simulateBusy("at-once", SEED);
mkdirSync(IMAGES, { recursive: true });
writeFileSync(join(IMAGES, "load-shedding.svg"), drawnShedding(weir, atOnce));
console.log(`| by default | ${sheddingFigures(weir)} |`);
console.log(`| at once | ${sheddingFigures(atOnce)} |`);
const messages = weir.reduce((sum, second) => sum + second.messages, 0);
const calls = weir.reduce(
  (sum, { offered }) => sum + Object.values(offered).reduce((all, each) => all + each),
  0,
);
console.log(`${((1_000 * messages) / calls).toFixed(1)} object calls per 1,000 decisions`);
