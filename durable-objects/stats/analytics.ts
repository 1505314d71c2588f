import { type Counts, merged, partsOf } from "../../core/stats/counts.ts";

/** The part of the binding ANALYTICS, of Cloudflare's Analytics Engine, that is used. */
export interface AnalyticsDataset {
  writeDataPoint(point: {
    readonly indexes: readonly string[];
    readonly blobs: readonly string[];
    readonly doubles: readonly number[];
  }): void;
}

/** So many data points one invocation may write. */
const MAX_POINTS = 25;

/**
 * Writes decisions to Analytics Engine: a data point for each policy, outcome, reason and source, with their number. What
 * does not fit into one invocation is written with the next, the largest numbers first.
 */
export class Analytics {
  readonly #dataset: AnalyticsDataset;
  #left: Counts = {};

  constructor(dataset: AnalyticsDataset) {
    this.#dataset = dataset;
  }

  /** Writes what was counted. It never throws: the counts are stored already. */
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
