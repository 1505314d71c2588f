import type { LimiterNamespace } from "../../client/transports/objects.ts";

/** What the deployment gives the worker. */
export interface Env {
  readonly OBJECTS: LimiterNamespace;
  /** A secret; without it everything but /healthz is closed. */
  readonly API_TOKENS?: string;
}
