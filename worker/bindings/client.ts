import { waitUntil } from "cloudflare:workers";
import { LimiterClient } from "../../client/limiter-client.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { SYSTEM_TIME } from "../../core/clock.ts";
import { regionalPolicies } from "../../durable-objects/deployment.ts";
import type { Env } from "./env.ts";

/** By the namespace. There is only one, unless a test brings another. */
const clients = new WeakMap<LimiterNamespace, LimiterClient>();

/**
 * The client of this isolate. All requests share its reservations and its denials. Timers, stubs and background work
 * still belong to the request that begins them, since the runtime gives them to the request that runs at that moment.
 */
export function clientOf({ OBJECTS }: Env): LimiterClient {
  const known = clients.get(OBJECTS);
  if (known !== undefined) return known;
  const client = new LimiterClient({
    objects: new Objects(OBJECTS, SYSTEM_TIME),
    policies: regionalPolicies,
    time: SYSTEM_TIME,
    inBackground: waitUntil,
  });
  clients.set(OBJECTS, client);
  return client;
}
