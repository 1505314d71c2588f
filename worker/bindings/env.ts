import type { LimiterNamespace } from "../../client/transports/objects.ts";
import type { CatalogMethods } from "../../core/catalog/calls.ts";
import type { LocationHint } from "../../core/policies/policy.ts";
import type { StatsBindings } from "../../core/stats/messages.ts";

interface CatalogNamespace {
  getByName(name: string, options?: { readonly locationHint: LocationHint }): CatalogMethods;
}

/** A namespace of Workers KV, as far as it is read. */
export interface SnapshotNamespace {
  get(key: string, options: { readonly cacheTtl: number }): Promise<string | null>;
}

export interface Env extends StatsBindings {
  readonly OBJECTS: LimiterNamespace;
  /** Absent: nothing changes at run time, and the deployment's file is in force. */
  readonly CATALOG?: CatalogNamespace;
  /** Absent: new isolates read a large catalog from its object alone. */
  readonly SNAPSHOTS?: SnapshotNamespace;
  /** A secret. Without it, every call but /healthz is refused. */
  readonly API_TOKENS?: string;
  /** Only under `npm run serve`: the secret of the request that ends the worker. */
  readonly STOP_SECRET?: string;
  /** Only on plain workerd, `relayed`: the worker forwards the messages on a socket, and not the socket. */
  readonly SOCKETS?: string;
  /** Only on plain workerd, as JSON: how many objects its process can have. */
  readonly OBJECT_BOUNDS?: string;
  /** Milliseconds between background work: more on the free plan, less in tests. Read by deployment.ts. */
  readonly BACKGROUND_MS?: string;
}
