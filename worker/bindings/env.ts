import type { LimiterNamespace } from "../../client/transports/objects.ts";

/** The worker's bindings and secrets. */
export interface Env {
  readonly OBJECTS: LimiterNamespace;
  /** A secret. Without it, every call but /healthz is refused. */
  readonly API_TOKENS?: string;
}
