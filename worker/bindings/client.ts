import { waitUntil } from "cloudflare:workers";
import { LimiterClient, type LimiterClientParts } from "../../client/limiter-client.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ObjectStarts, type ObjectBounds } from "../../client/object-starts.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { giveBack } from "../../client/transports/endings.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { Outboxes } from "../../client/transports/outboxes.ts";
import { PoliciesInForce } from "../../core/catalog/policies-in-force.ts";
import { randomFraction, randomId, SYSTEM_TIME } from "../../core/clock.ts";
import { policyOfKeys } from "../../core/stats/compared.ts";
import { deployed, log, regionalPolicies } from "../../durable-objects/deployment.ts";
import { claimProofs } from "../auth/claim-proofs.ts";
import { knowTokens, type Principal } from "../auth/tokens.ts";
import { CallLog } from "./call-log.ts";
import { CatalogReader } from "./catalog-reader.ts";
import { catalogOf, type CatalogNamespace, type Env } from "./env.ts";
import { followingBy } from "./following.ts";
import { WorkerStats } from "./stats.ts";

/** The clients of one namespace: one whose units all share, and one for the calls of each caller. */
interface Clients {
  readonly shared: LimiterClient;
  /** Absent: nothing changes at run time. */
  readonly catalog?: CatalogReader;
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
 *
 * @param isHeld the caller keeps stubs of this request, so it must end when it has been answered
 */
export function freshen(env: Env, isHeld = false): Promise<void> | undefined {
  const { catalog, stats } = clientsOf(env);
  if (!isHeld) stats?.see();
  return catalog?.freshen();
}

/** Asks the catalog at once: this isolate has just changed it. */
export async function askCatalog(env: Env): Promise<void> {
  await clientsOf(env).catalog?.ask();
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
    compared: (compared) => stats?.compared(compared),
  };
}

function clientsOf(env: Env): Clients {
  return clients.get(env.OBJECTS) ?? makeClients(env);
}

function makeClients({ OBJECTS, OBJECT_BOUNDS: bounds, CATALOG, STATS, API_TOKENS }: Env): Clients {
  // There is one object for all counts, which is in no jurisdiction.
  const inForce = CATALOG && new PoliciesInForce(deployed);
  const { named } = inForce ?? regionalPolicies;
  const mayHaveKeys = (name: string) => named.get(policyOfKeys(name))?.jurisdiction === undefined;
  const stats = STATS && new WorkerStats(STATS, SYSTEM_TIME, randomId, waitUntil, mayHaveKeys);
  const together = { outboxes: new Outboxes(), inBackground: waitUntil };
  const calls = new CallLog(log, randomFraction, (line) => console.log(line));
  const unanswered = (policy: string, error: unknown) => calls.failed(policy, error);
  const objects = new Objects(OBJECTS, SYSTEM_TIME, together, { counter: stats, unanswered });
  const reservations = new ReservationCache(randomId);
  const counter = counterOf(stats, calls);
  const catalog = CATALOG && inForce && readerOf(CATALOG, inForce);
  const parts = {
    objects,
    policies: inForce ?? regionalPolicies,
    time: SYSTEM_TIME,
    inBackground: waitUntil,
    ...(bounds !== undefined && { starts: new ObjectStarts(JSON.parse(bounds) as ObjectBounds) }),
    ...(counter && { counter }),
    ...(API_TOKENS !== undefined && { prove: claimProofs(API_TOKENS) }),
    ...(catalog && inForce && { follow: followingBy(catalog, inForce, SYSTEM_TIME) }),
  };
  const shared = new LimiterClient(parts, new LocalLimiter(reservations));
  const made = { shared, reservations, objects, stats, byCaller: new WeakMap(), ...(catalog && { catalog }) };
  clients.set(OBJECTS, made);
  return made;
}

function readerOf(namespace: CatalogNamespace, inForce: PoliciesInForce): CatalogReader {
  return new CatalogReader({
    policies: inForce,
    time: SYSTEM_TIME,
    catalog: () => catalogOf(namespace),
    inBackground: waitUntil,
    onTokens: knowTokens,
  });
}
