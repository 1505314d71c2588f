import type { LimiterNamespace } from "../../client/transports/objects.ts";

/** The worker's bindings and secrets. */
export interface Env {
  readonly OBJECTS: LimiterNamespace;
  /** A secret. Without it, every call but /healthz is refused. */
  readonly API_TOKENS?: string;
  /** Only where `npm run serve` runs the worker: what it says when it is about to end the process. */
  readonly STOP_SECRET?: string;
  /** Only on plain workerd, as JSON: how many objects its process can have. */
  readonly OBJECT_BOUNDS?: string;
}
