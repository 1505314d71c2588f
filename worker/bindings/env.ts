import type { LimiterNamespace } from "../../client/transports/objects.ts";
import type { StatsNamespace } from "../../core/stats/messages.ts";

/** The worker's bindings and secrets. */
export interface Env {
  readonly OBJECTS: LimiterNamespace;
  /** Where it is counted what the limiter did. Absent: nobody counts. */
  readonly STATS?: StatsNamespace;
  /** A secret. Without it, every call but /healthz is refused. */
  readonly API_TOKENS?: string;
  /** Only where `npm run serve` runs the worker: what it says when it is about to end the process. */
  readonly STOP_SECRET?: string;
}
