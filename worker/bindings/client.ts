import { waitUntil } from "cloudflare:workers";
import { LimiterClient } from "../../client/limiter-client.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ObjectStarts, type ObjectBounds } from "../../client/object-starts.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { giveBack } from "../../client/transports/endings.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { Outboxes } from "../../client/transports/outboxes.ts";
import { PoliciesInForce } from "../../core/catalog/policies-in-force.ts";
import { randomId, SYSTEM_TIME } from "../../core/clock.ts";
import { policies, regionalPolicies, regions, tables } from "../../durable-objects/deployment.ts";
import { knowTokens, type Principal } from "../auth/tokens.ts";
import { CatalogReader } from "./catalog-reader.ts";
import { catalogOf, type Env } from "./env.ts";

/** The clients of one namespace: one whose units all share, and one for the calls of each caller. */
interface Clients {
  readonly shared: LimiterClient;
  /** Absent: nothing changes at run time. */
  readonly catalog?: CatalogReader;
  readonly reservations: ReservationCache;
  readonly objects: Objects;
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
  const { shared, byCaller } = clientsOf(env);
  const known = byCaller.get(bounds);
  if (known !== undefined) return known;
  const client = shared.for(id, bounds);
  byCaller.set(bounds, client);
  return client;
}

/**
 * What is known of the catalog must not be too old. `undefined`: it is not; else it is when the promise resolves. Before
 * each call, also before it is known who calls: tokens may have been revoked.
 */
export function freshen(env: Env): Promise<void> | undefined {
  return clientsOf(env).catalog?.freshen();
}

/** Asks the catalog at once: this isolate has just changed it. */
export async function askCatalog(env: Env): Promise<void> {
  await clientsOf(env).catalog?.ask();
}

/** Gives back all units that this isolate has. */
export async function giveBackAll({ OBJECTS }: Env): Promise<void> {
  const made = clients.get(OBJECTS);
  if (made === undefined) return;
  made.reservations.endAll();
  await giveBack(made.objects, made.reservations.endDue(Infinity));
}

function clientsOf(env: Env): Clients {
  return clients.get(env.OBJECTS) ?? makeClients(env);
}

function makeClients({ OBJECTS: namespace, OBJECT_BOUNDS: bounds, CATALOG }: Env): Clients {
  const objects = new Objects(namespace, SYSTEM_TIME, { outboxes: new Outboxes(), inBackground: waitUntil });
  const reservations = new ReservationCache(randomId);
  const inForce = CATALOG && new PoliciesInForce({ policies, tables, regions });
  const starts = bounds === undefined ? {} : { starts: new ObjectStarts(JSON.parse(bounds) as ObjectBounds) };
  const parts = {
    objects,
    policies: inForce ?? regionalPolicies,
    time: SYSTEM_TIME,
    inBackground: waitUntil,
    ...starts,
  };
  const shared = new LimiterClient(parts, new LocalLimiter(reservations));
  const catalog =
    CATALOG &&
    inForce &&
    new CatalogReader({
      policies: inForce,
      time: SYSTEM_TIME,
      catalog: () => catalogOf(CATALOG),
      inBackground: waitUntil,
      onTokens: knowTokens,
    });
  const made = { shared, reservations, objects, byCaller: new WeakMap(), ...(catalog && { catalog }) };
  clients.set(namespace, made);
  return made;
}
