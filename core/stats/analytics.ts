/**
 * Decisions in Cloudflare's Analytics Engine, by policy, outcome, reason and source. The statistics object writes them; without
 * it each isolate of the worker does, so that counting needs no object, however many isolates there are.
 */
import { type Counts, merged, partsOf } from "./counts.ts";

/** The used part of the binding ANALYTICS. */
export interface AnalyticsDataset {
  writeDataPoint(point: {
    readonly indexes: readonly string[];
    readonly blobs: readonly string[];
    readonly doubles: readonly number[];
  }): void;
}

/** The data points that one invocation may write. */
const MAX_POINTS = 25;

/** Writes a data point per policy, outcome, reason and source: the largest first, the rest next time. */
export class Analytics {
  readonly #dataset: AnalyticsDataset;
  #left: Counts = {};

  constructor(dataset: AnalyticsDataset) {
    this.#dataset = dataset;
  }

  /** Never throws, and never writes a decision twice: what is refused is lost here. */
  write(counts: Counts): void {
    const decisions = Object.entries(counts).filter(([series]) => partsOf(series)[0] === "decisions");
    const all = Object.entries(merged(this.#left, Object.fromEntries(decisions))).toSorted(
      ([, a], [, b]) => b - a,
    );
    this.#left = Object.fromEntries(all.slice(MAX_POINTS));
    try {
      for (const [series, count] of all.slice(0, MAX_POINTS)) {
        const [, ...blobs] = partsOf(series);
        this.#dataset.writeDataPoint({ indexes: blobs.slice(0, 1), blobs, doubles: [count] });
      }
    } catch (error) {
      console.error(`Analytics Engine refused a data point: ${String(error)}`);
    }
  }
}
