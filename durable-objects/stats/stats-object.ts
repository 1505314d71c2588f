import { DurableObject } from "cloudflare:workers";
import { SYSTEM_TIME } from "../../core/clock.ts";
import { parseBackgroundMs } from "../../core/policies/placement.ts";
import type { Counts } from "../../core/stats/counts.ts";
import type {
  HistoryCall,
  HistoryPoint,
  StatsMessage,
  TopKeysAnswer,
  TopKeysCall,
  Totals,
} from "../../core/stats/messages.ts";
import { Analytics, type AnalyticsDataset } from "./analytics.ts";
import { Recorder, StatsStorage } from "./recorder.ts";

interface Bindings {
  readonly ANALYTICS?: AnalyticsDataset;
  /** Only in tests. */
  readonly BACKGROUND_MS?: unknown;
}

/** The object that has what the limiter did: totals, history and top keys. There is one, and no decision asks it. */
export class StatsObject extends DurableObject {
  readonly #recorder: Recorder;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    const { ANALYTICS, BACKGROUND_MS } = env as unknown as Bindings;
    const analytics = ANALYTICS && new Analytics(ANALYTICS);
    const onCounted = (counts: Counts) => analytics?.write(counts);
    this.#recorder = new Recorder(
      new StatsStorage(ctx.storage),
      SYSTEM_TIME,
      onCounted,
      parseBackgroundMs(BACKGROUND_MS),
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
