import { waitUntil } from "cloudflare:workers";
import { LimiterClient, type LimiterClientParts } from "../../client/limiter-client.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { giveBack } from "../../client/transports/endings.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { Outboxes } from "../../client/transports/outboxes.ts";
import { randomFraction, randomId, SYSTEM_TIME } from "../../core/clock.ts";
import { log, regionalPolicies } from "../../durable-objects/deployment.ts";
import type { Principal } from "../auth/tokens.ts";
import { CallLog } from "./call-log.ts";
import type { Env } from "./env.ts";
import { WorkerStats } from "./stats.ts";

/** The clients of one namespace: one whose units all share, and one for the calls of each caller. */
interface Clients {
  readonly shared: LimiterClient;
  readonly reservations: ReservationCache;
  readonly objects: Objects;
  readonly stats: WorkerStats | undefined;
  /** By the caller's bounds, which are an object of its own for each token and binding. */
  readonly byCaller: WeakMap<Principal["bounds"], LimiterClient>;
}

/** By the namespace. There is only one, unless a test brings another. */
const clients = new WeakMap<LimiterNamespace, Clients>();

/**
 * The client for a caller's calls. All requests of this isolate share its reservations and its denials. Timers, stubs
 * and background work still belong to the request that begins them, since the runtime gives them to the request that
 * runs at that moment.
 */
export function clientOf(env: Env, { id, bounds }: Principal): LimiterClient {
  const { shared, byCaller } = clients.get(env.OBJECTS) ?? makeClients(env);
  const known = byCaller.get(bounds);
  if (known !== undefined) return known;
  const client = shared.for(id, bounds);
  byCaller.set(bounds, client);
  return client;
}

/** Gives back all units that this isolate has, and sends all that it has counted. */
export async function giveBackAll({ OBJECTS }: Env): Promise<void> {
  const made = clients.get(OBJECTS);
  if (made === undefined) return;
  made.reservations.endAll();
  await giveBack(made.objects, made.reservations.endDue(Infinity));
  await made.stats?.sendAll();
}

/** Who is told what callers are told; `undefined`: nobody. */
function counterOf(stats: WorkerStats | undefined, calls: CallLog): LimiterClientParts["counter"] {
  if (!calls.hasDenials) return stats;
  return {
    decided: (told) => {
      stats?.decided(told);
      calls.decided(told);
    },
  };
}

function makeClients({ OBJECTS, STATS }: Env): Clients {
  // There is one object for all counts, which is in no jurisdiction.
  const mayHaveKeys = (name: string) => regionalPolicies.named.get(name)?.jurisdiction === undefined;
  const stats = STATS && new WorkerStats(STATS, SYSTEM_TIME, randomId, waitUntil, mayHaveKeys);
  const together = { outboxes: new Outboxes(), inBackground: waitUntil };
  const calls = new CallLog(log, randomFraction, (line) => console.log(line));
  const unanswered = (policy: string, error: unknown) => calls.failed(policy, error);
  const objects = new Objects(OBJECTS, SYSTEM_TIME, together, { counter: stats, unanswered });
  const reservations = new ReservationCache(randomId);
  const parts = { objects, policies: regionalPolicies, time: SYSTEM_TIME, inBackground: waitUntil };
  const counter = counterOf(stats, calls);
  const shared = new LimiterClient(
    counter === undefined ? parts : { ...parts, counter },
    new LocalLimiter(reservations),
  );
  const made = { shared, reservations, objects, stats, byCaller: new WeakMap() };
  clients.set(OBJECTS, made);
  return made;
}
