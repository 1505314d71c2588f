import { DurableObject } from "cloudflare:workers";
import { SYSTEM_TIME } from "../../core/clock.ts";
import { type Counts, merged, partsOf } from "../../core/stats/counts.ts";
import type {
  HistoryCall,
  HistoryPoint,
  StatsMessage,
  TopKeysAnswer,
  TopKeysCall,
  Totals,
} from "../../core/stats/messages.ts";
import { Recorder } from "./recorder.ts";
import { StatsStorage } from "./stats-storage.ts";

/** The object that has what the limiter did: totals, history and top keys. There is one, and no decision asks it. */
export class StatsObject extends DurableObject {
  readonly #recorder: Recorder;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    const { ANALYTICS } = env as unknown as { readonly ANALYTICS?: AnalyticsDataset };
    const analytics = ANALYTICS && new Analytics(ANALYTICS);
    this.#recorder = new Recorder(new StatsStorage(ctx.storage), SYSTEM_TIME, (counts) =>
      analytics?.write(counts),
    );
  }

  /** Counts what an isolate has counted, once for each number that it sends. Answers when it is stored. */
  push(message: StatsMessage): Promise<void> {
    return this.#recorder.push(message);
  }

  /** All counts so far. */
  totals(): Totals {
    return this.#recorder.totals();
  }

  /** What happened under one policy, step by step. */
  history(call: HistoryCall): readonly HistoryPoint[] {
    return this.#recorder.history(call);
  }

  /** The keys of one policy that came, or were denied, most often. */
  topKeys(call: TopKeysCall): TopKeysAnswer {
    return this.#recorder.topKeys(call);
  }
}

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
