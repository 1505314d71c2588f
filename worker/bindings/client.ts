import { waitUntil } from "cloudflare:workers";
import { type ObjectBounds, ObjectStarts } from "../../client/call-gate.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient, type LimiterClientParts } from "../../client/objects/limiter-client.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { type LimiterNamespace, Objects } from "../../client/transports/objects.ts";
import { returnUnits } from "../../client/transports/send-batch.ts";
import { PoliciesInForce } from "../../core/catalog/policies-in-force.ts";
import { randomFraction, randomId, SYSTEM_TIME, type Time } from "../../core/clock.ts";
import type { Region } from "../../core/policies/policy.ts";
import { type Origin, regionOf } from "../../core/policies/regional-policies.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { type ComparisonCounts, policyOfKeys } from "../../core/stats/counts.ts";
import { STATS_NAME, type StatsMessage, type StatsNamespace } from "../../core/stats/messages.ts";
import {
  type CountedDecision,
  type Counter,
  SEND_EVERY_MS,
  StatsSender,
  Tally,
} from "../../core/stats/tally.ts";
import { poolAddress, regions, deployed, log, regionalPolicies } from "../../durable-objects/deployment.ts";
import { claimProofs } from "../auth/claim-proofs.ts";
import { knowTokens, type Principal } from "../auth/tokens.ts";
import { CallLog } from "./call-log.ts";
import { CatalogReader, followingBy } from "./catalog-reader.ts";
import { type CatalogNamespace, catalogOf, type Env } from "./env.ts";

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
async function askCatalog(env: Env): Promise<void> {
  await clientsOf(env).catalog?.ask();
}

/** Gives back all units that this isolate has, and sends all that it has counted. */
export async function giveBackAll({ OBJECTS }: Env): Promise<void> {
  const made = clients.get(OBJECTS);
  if (made === undefined) return;
  made.reservations.endAll();
  await returnUnits(made.objects, made.reservations.endDue(Infinity));
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
  const together = { outboxes: new BatchQueues(), inBackground: waitUntil };
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

/** Counts for one isolate of the worker, and sees to it that the counts are sent. No call waits for that. */
class WorkerStats implements Counter {
  readonly #tally: Tally;
  readonly #sender: StatsSender;
  readonly #time: Time;
  readonly #push: (message: StatsMessage) => Promise<void>;
  readonly #inBackground: (work: Promise<unknown>) => void;

  /** @param mayHaveKeys see `Tally` */
  constructor(
    namespace: StatsNamespace,
    time: Time,
    makeId: () => string,
    inBackground: (work: Promise<unknown>) => void,
    mayHaveKeys: (policy: string) => boolean,
  ) {
    this.#tally = new Tally(mayHaveKeys);
    this.#sender = new StatsSender(this.#tally, makeId, (error) =>
      console.warn(`what was counted could not be sent, and is sent again: ${String(error)}`),
    );
    this.#time = time;
    // A new stub for each message: one that has thrown stays broken, and one of another request may not be used.
    this.#push = (message) => namespace.getByName(STATS_NAME).push(message);
    this.#inBackground = inBackground;
  }

  decided(told: CountedDecision): void {
    this.#tally.decided(told);
  }

  compared(compared: ComparisonCounts): void {
    this.#tally.compared(compared);
  }

  add(...args: Parameters<Counter["add"]>): void {
    this.#tally.add(...args);
  }

  lasted(...args: Parameters<Counter["lasted"]>): void {
    this.#tally.lasted(...args);
  }

  /** Sends all that has been counted: the process is about to end. */
  async sendAll(): Promise<void> {
    // First what had no answer, then what has been counted since.
    for (let messages = 0; messages < 2; messages += 1) await this.#sender.send(this.#time, this.#push);
  }

  /**
   * The next message is this request's to send: in 10 s, while it has long been answered. A request whose caller keeps stubs
   * of it must not be asked: those would end that much later.
   */
  see(): void {
    if (!this.#sender.isDue(this.#time.nowMs())) return;
    this.#inBackground(this.#sender.begin(this.#time, this.#push, SEND_EVERY_MS));
  }
}

/** What a call on the catalog needs, and how this isolate learns at once of what it has changed; or there is no catalog. */
export function catalogCallerOf(env: Env, principal: Principal) {
  const { CATALOG, STATS: stats, API_TOKENS: secret } = env;
  if (CATALOG !== undefined)
    return { catalog: catalogOf(CATALOG), principal, stats, secret, onWritten: () => askCatalog(env) };
  const detail =
    "the deployment has no binding CATALOG, so nothing can be changed at run time: docs/deploying.md has it";
  return new Problem(PROBLEMS.notConfigured, detail);
}

/* Where a call comes from: its region decides which object serves a policy with a pool. */

/**
 * The region of this isolate, as the latest HTTP request told it. Calls over RPC say nothing of their place, and an
 * isolate is in one place, so they use this region.
 */
let here: Region | undefined;

/**
 * The principal with the region of its request; unchanged when no policy has a pool. Then `cf` is not even looked at: the
 * runtime makes it when it is asked for, which costs a tenth of a decision.
 */
export function callingFrom(principal: Principal, request: Request): Principal {
  if (poolAddress === undefined) return principal;
  here = regionOf(regions, (request.cf ?? {}) as Origin);
  return { ...principal, region: here };
}

/**
 * The region of a call over RPC: the one that it names, else that of this isolate. `undefined`: no region has that
 * name.
 */
export function regionNamed(name: unknown): Region | undefined {
  return name === undefined ? (here ?? regions[0]) : regions.find((region) => region.name === name);
}

/** The names of all regions, as a message lists them. */
export const REGION_NAMES = regions.map(({ name }) => JSON.stringify(name)).join(", ");
