import { waitUntil } from "cloudflare:workers";
import { type ObjectBounds, ObjectStartLimit } from "../../client/call-gate.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient, type LimiterClientParts } from "../../client/objects/limiter-client.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { type LimiterNamespace, Objects } from "../../client/transports/objects.ts";
import { returnUnits } from "../../client/transports/send-batch.ts";
import { PoliciesInForce } from "../../core/catalog/policies-in-force.ts";
import { randomFraction, randomId, SYSTEM_TIME } from "../../core/clock.ts";
import { locationHintOf, type Origin, regionOf } from "../../core/policies/parse-policies.ts";
import type { LocationHint, Region } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { policyOfKeys } from "../../core/stats/counts.ts";
import { STATS_NAME, type StatsMessage, type StatsNamespace } from "../../core/stats/messages.ts";
import { StatsSender, Tally } from "../../core/stats/tally.ts";
import * as deployment from "../../durable-objects/deployment.ts";
import { claimProofs } from "../auth/claim-proofs.ts";
import { knowTokens, type Principal } from "../auth/tokens.ts";
import { callLog } from "./call-log.ts";
import { ASK_AFTER_MS, CatalogReader, followingBy } from "./catalog-reader.ts";
import type { Env } from "./env.ts";

/** The one object with the catalog of a deployment. The name is stored: never change it. */
const CATALOG_NAME = "catalog";

/** The clients of one namespace: a shared one, which holds the units, and one for each caller. */
interface Clients {
  readonly shared: LimiterClient;
  readonly catalog?: CatalogReader;
  readonly reservations: ReservationCache;
  readonly objects: Objects;
  readonly stats: ReturnType<typeof workerStats> | undefined;
  /** By the caller's bounds, a unique object for each token and binding. */
  readonly byCaller: WeakMap<Principal["bounds"], LimiterClient>;
}

const clients = new WeakMap<LimiterNamespace, Clients>();

/**
 * The client for a caller. All requests of this isolate share its reservations and denials, but not timers,
 * stubs or background work, which the runtime gives to the request that runs.
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
 * Refreshes an old catalog before each call, and before its caller is known, since tokens may be revoked.
 * @param isHeld the caller keeps stubs of this request, so background work must not prolong it
 */
export function freshen(env: Env, isHeld = false): Promise<unknown> | undefined {
  const { catalog, stats } = clientsOf(env);
  const nowMs = SYSTEM_TIME.nowMs();
  if (!isHeld) stats?.sendIfDue(nowMs);
  if (catalog === undefined) return undefined;
  const isFresh = nowMs >= catalog.askedAtMs && nowMs < catalog.askedAtMs + ASK_AFTER_MS;
  return isFresh ? undefined : catalog.freshen();
}

/** Returns all units of this isolate, and sends all its counts. */
export async function giveBackAll({ OBJECTS }: Env): Promise<void> {
  const made = clients.get(OBJECTS);
  if (made === undefined) return;
  made.reservations.endAll();
  await returnUnits(made.objects, made.reservations.endDue(Infinity));
  await made.stats?.sendAll();
}

function clientsOf(env: Env): Clients {
  return clients.get(env.OBJECTS) ?? makeClients(env);
}

function makeClients({ OBJECTS, OBJECT_BOUNDS: bounds, CATALOG, STATS, API_TOKENS }: Env): Clients {
  const inForce = CATALOG && new PoliciesInForce(deployment.deployed);
  const policies = inForce ?? deployment.regionalPolicies;
  // One object without a jurisdiction has all counts.
  const mayHaveKeys = (name: string) => policies.named.get(policyOfKeys(name))?.jurisdiction === undefined;
  const stats = STATS && workerStats(STATS, mayHaveKeys);
  const tally = stats?.tally;
  const calls = callLog(deployment.log, randomFraction, (line) => console.log(line));
  const decided = (decision: Decision) => {
    tally?.decided(decision);
    calls.decided(decision);
  };
  const objects = new Objects(
    OBJECTS,
    SYSTEM_TIME,
    { queues: new BatchQueues(() => tally?.add("object_pauses", [])), inBackground: waitUntil },
    { counter: tally, unanswered: (failure, policy) => calls.failed(policy, failure) },
  );
  const reservations = new ReservationCache(randomId);
  const catalog =
    CATALOG &&
    inForce &&
    new CatalogReader({
      policies: inForce,
      time: SYSTEM_TIME,
      catalog: () => CATALOG.getByName(CATALOG_NAME),
      inBackground: waitUntil,
      onTokens: knowTokens,
      askAfterMs: deployment.backgroundMs,
    });
  const parts: LimiterClientParts = {
    objects,
    policies,
    time: SYSTEM_TIME,
    inBackground: waitUntil,
    region: () => nearby ?? undefined,
    ...(bounds !== undefined && { starts: new ObjectStartLimit(JSON.parse(bounds) as ObjectBounds) }),
    counter: calls.hasDenials ? { decided, compared: (compared) => tally?.compared(compared) } : tally,
    ...(API_TOKENS !== undefined && { prove: claimProofs(API_TOKENS) }),
    ...(catalog &&
      inForce && { follow: followingBy(catalog, inForce, SYSTEM_TIME, deployment.backgroundMs) }),
  };
  const shared = new LimiterClient(parts, new LocalLimiter(reservations));
  const made = { shared, reservations, objects, stats, byCaller: new WeakMap(), ...(catalog && { catalog }) };
  clients.set(OBJECTS, made);
  return made;
}

/** Counts for one isolate, and sends the counts. No call waits for that. */
function workerStats(namespace: StatsNamespace, mayHaveKeys: (policy: string) => boolean) {
  const tally = new Tally(mayHaveKeys);
  const onLost = (error: unknown) =>
    console.warn(`what was counted could not be sent, and is sent again: ${String(error)}`);
  const sender = new StatsSender(tally, randomId, onLost, deployment.backgroundMs);
  // A new stub for each message: one that has thrown stays broken, and other requests may not use it.
  const push = (message: StatsMessage) => namespace.getByName(STATS_NAME).push(message);
  return {
    tally,
    /** Sends all counts before the process ends. */
    sendAll: () => sender.sendAll(SYSTEM_TIME, push),
    sendIfDue(nowMs: number) {
      if (sender.isDue(nowMs)) waitUntil(sender.begin(SYSTEM_TIME, push, sender.everyMs));
    },
  };
}

/** The context of a call on the catalog, if there is one; this isolate reads its own changes at once. */
export function catalogCallerOf(env: Env, principal: Principal) {
  const { CATALOG, STATS: stats, API_TOKENS: secret } = env;
  if (CATALOG !== undefined) {
    const onWritten = async () => await clientsOf(env).catalog?.ask();
    return { catalog: CATALOG.getByName(CATALOG_NAME), principal, stats, secret, onWritten };
  }
  const detail =
    "the deployment has no binding CATALOG, so nothing can be changed at run time: docs/deploying.md has it";
  return new Problem(PROBLEMS.notConfigured, detail);
}

/** Where this isolate is, by its first HTTP request. `null`: that did not say. */
let nearby: LocationHint | null | undefined;

/** The region of the latest HTTP request, for RPC calls that name none. It selects a pool's object. */
let here: Region | undefined;

/** Adds the region if a policy has a pool. Otherwise `cf` is not read: it costs a tenth of a decision. */
export function callingFrom(principal: Principal, request: Request): Principal {
  if (nearby === undefined) nearby = locationHintOf((request.cf ?? {}) as Origin) ?? null;
  if (deployment.poolAddress === undefined) return principal;
  here = regionOf(deployment.regions, (request.cf ?? {}) as Origin);
  return { ...principal, region: here };
}

/** The region that an RPC call names, otherwise this isolate's; `undefined`: there is no such region. */
export function regionNamed(name: unknown): Region | undefined {
  return name === undefined
    ? (here ?? deployment.regions[0])
    : deployment.regions.find((region) => region.name === name);
}

export const REGION_NAMES = deployment.regions.map(({ name }) => JSON.stringify(name)).join(", ");
