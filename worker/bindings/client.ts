import { tracing, waitUntil } from "cloudflare:workers";
import { type ObjectBounds, ObjectStartLimit } from "../../client/call-gate.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient, type LimiterClientParts } from "../../client/objects/limiter-client.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { type LimiterNamespace, Objects } from "../../client/transports/objects.ts";
import { returnUnits } from "../../client/transports/send-batch.ts";
import type { CatalogMethods } from "../../core/catalog/calls.ts";
import { PoliciesInForce } from "../../core/catalog/policies-in-force.ts";
import { randomFraction, randomId, SYSTEM_TIME } from "../../core/clock.ts";
import { locationHintOf, type Origin, regionOf } from "../../core/policies/parse-policies.ts";
import type { LocationHint, Region } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { type Answered, catalogUnreached, Problem, LIMITER_PROBLEMS } from "../../core/protocol/problems.ts";
import { Analytics } from "../../core/stats/analytics.ts";
import { policyOfKeys } from "../../core/stats/counts.ts";
import { type Receipt, type StatsBindings, type StatsMessage, statsStub } from "../../core/stats/messages.ts";
import { SEND_EVERY_MS, StatsSender, Tally } from "../../core/stats/tally.ts";
import * as deployment from "../../durable-objects/deployment.ts";
import { claimProofs } from "../auth/claim-proofs.ts";
import { authenticate, knowTokens, type Principal, unauthorized } from "../auth/tokens.ts";
import { callLog } from "./call-log.ts";
import { CatalogReader, followingBy } from "./catalog-reader.ts";
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
 * The caller of an Authorization header. A known one refreshes an old catalog, since its token may be revoked; an unknown
 * one does too, since its token may be new. Other strangers reach no object.
 */
export async function authenticated(env: Env, authorization: string | null): Answered<Principal> {
  const find = () => authenticate(authorization, env.API_TOKENS);
  let caller = await find();
  if (caller instanceof Problem) return caller;
  const { catalog, shared } = clientsOf(env);
  const late = caller === undefined ? catalog?.freshen("stranger") : freshen(env);
  if (late !== undefined) {
    await late;
    caller = await find();
  }
  if (caller !== undefined) return caller;
  return shared.policies.isComplete
    ? unauthorized("the token is not known")
    : catalogUnreached("the caller's token");
}

/**
 * Refreshes an old catalog before a call.
 * @param isHeld the caller keeps stubs of this request, so background work must not prolong it
 */
export function freshen(env: Env, isHeld = false): Promise<unknown> | undefined {
  const { catalog, stats } = clientsOf(env);
  const nowMs = SYSTEM_TIME.nowMs();
  if (!isHeld) stats?.sendIfDue(nowMs);
  if (catalog === undefined) return undefined;
  // As the reader itself decides: a hot call needs nothing else of it.
  const isFresh = nowMs >= catalog.askedAtMs && nowMs < catalog.freshUntilMs;
  return isFresh ? undefined : catalog.freshen(isHeld ? "holder" : undefined);
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

function makeClients(env: Env): Clients {
  const { OBJECTS, OBJECT_BOUNDS: bounds, CATALOG, API_TOKENS } = env;
  const inForce = CATALOG && new PoliciesInForce(deployment.deployed);
  const policies = inForce ?? deployment.regionalPolicies;
  // One object without a jurisdiction has all counts. Without the object nothing has keys.
  const mayHaveKeys = (name: string) =>
    env.STATS !== undefined && policies.named.get(policyOfKeys(name))?.jurisdiction === undefined;
  const isCounting = env.STATS !== undefined || env.ANALYTICS !== undefined;
  const stats = isCounting ? workerStats(env, mayHaveKeys) : undefined;
  const tally = stats?.tally;
  const { traces } = deployment.log;
  const calls = callLog(deployment.log, randomFraction, (line) => console.log(line));
  const decided = (decision: Decision) => {
    tally?.decided(decision);
    calls.decided(decision);
    if (traces) describeSpan(decision);
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
      catalog: () => catalogStub(env, CATALOG),
      snapshots: env.SNAPSHOTS,
      inBackground: waitUntil,
      onTokens: knowTokens,
      counter: tally,
      askAfterMs: deployment.backgroundMs,
    });
  const parts: LimiterClientParts = {
    objects,
    policies,
    time: SYSTEM_TIME,
    inBackground: waitUntil,
    region: () => nearby ?? undefined,
    ...(bounds !== undefined && { starts: new ObjectStartLimit(JSON.parse(bounds) as ObjectBounds) }),
    counter:
      calls.hasDenials || traces
        ? {
            decided,
            compared: (compared) => tally?.compared(compared),
            add: (...counted) => tally?.add(...counted),
          }
        : tally,
    ...(API_TOKENS !== undefined && { prove: claimProofs(API_TOKENS) }),
    ...(catalog &&
      inForce && { follow: followingBy(catalog, inForce, SYSTEM_TIME, deployment.backgroundMs) }),
  };
  const shared = new LimiterClient(parts, new LocalLimiter(reservations));
  const made = { shared, reservations, objects, stats, byCaller: new WeakMap(), ...(catalog && { catalog }) };
  clients.set(OBJECTS, made);
  return made;
}

/**
 * Gives the span of the call that runs its decision, without the key. The runtime needs 0.4 µs to find the span, more than
 * counting takes, and also for a call that it does not trace: so this is a setting.
 */
function describeSpan({ policy, success, reason, source, waitedMs }: Decision): void {
  const span = tracing.getActiveSpan();
  if (span?.isTraced !== true) return;
  span.setAttributes({
    "weir.policy": policy,
    "weir.outcome": success ? "admitted" : "denied",
    "weir.reason": reason,
    "weir.source": source,
    "weir.waited_ms": waitedMs,
  });
}

/** Counts for one isolate, and sends the counts. No call waits for that. */
function workerStats(bindings: StatsBindings, mayHaveKeys: (policy: string) => boolean) {
  const tally = new Tally(mayHaveKeys);
  const onLost = (error: unknown) =>
    console.warn(`what was counted could not be sent, and is sent again: ${String(error)}`);
  const sender = new StatsSender(tally, randomId, onLost, deployment.backgroundMs);
  // The runtime ends what a request waits for in the background after 30 s.
  const delayMs = Math.min(sender.everyMs, SEND_EVERY_MS);
  const push = pushTo(bindings);
  return {
    tally,
    /** Sends all counts before the process ends. */
    sendAll: () => sender.sendAll(SYSTEM_TIME, push),
    sendIfDue(nowMs: number) {
      if (sender.isDue(nowMs)) waitUntil(sender.begin(SYSTEM_TIME, push, delayMs));
    },
  };
}

/** Where an isolate's counts go: to the object, or without one their decisions to Analytics Engine, which answers nothing. */
function pushTo(bindings: StatsBindings): (message: StatsMessage) => Promise<Receipt | undefined> {
  const { STATS, ANALYTICS } = bindings;
  if (STATS !== undefined || ANALYTICS === undefined)
    return async (message) => await statsStub(bindings)?.push(message);
  const analytics = new Analytics(ANALYTICS);
  return ({ counts }) => {
    analytics.write(counts);
    return Promise.resolve(undefined);
  };
}

/** The context of a call on the catalog, if there is one; this isolate reads its own changes at once. */
export function catalogCallerOf(env: Env, principal: Principal) {
  const { CATALOG, API_TOKENS: secret } = env;
  if (CATALOG !== undefined) {
    const onWritten = async () => await clientsOf(env).catalog?.ask();
    return { catalog: catalogStub(env, CATALOG), principal, stats: env, secret, onWritten };
  }
  const detail =
    "the deployment has no binding CATALOG, so nothing can be changed at run time: docs/deploying.md has it";
  return new Problem(LIMITER_PROBLEMS.notConfigured, detail);
}

function catalogStub({ HOME }: Env, namespace: NonNullable<Env["CATALOG"]>): CatalogMethods {
  return namespace.getByName(CATALOG_NAME, HOME && { locationHint: HOME });
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
