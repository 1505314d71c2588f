import { waitUntil } from "cloudflare:workers";
import type { Limiter, PolicyName } from "../../client/limiter.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { returnUnits } from "../../client/transports/send-batch.ts";
import { randomId, SYSTEM_TIME } from "../../core/clock.ts";
import { parseDeployment } from "../../core/policies/parse-policies.ts";
import { oneOfNames, violation } from "../../core/violations.ts";
import { DirectLimiter } from "./direct-limiter.ts";

export interface ObjectsOptions {
  /** The binding to the limiter's objects: a binding with `script_name`. */
  readonly namespace: unknown;
  /** The policies, as the limiter has them in `[vars.POLICIES]`. An object refuses a policy that it does not have. */
  readonly policies: unknown;
  /** The regions of pools, as the limiter has them in `[vars.REGIONS]`, and the name of the one to ask. */
  readonly regions?: unknown;
  readonly region?: string;
  /** The policy of calls that name none. */
  readonly policy?: PolicyName;
  /** Whose the calls are: what is answered under idempotency keys belongs to it. */
  readonly name?: string;
}

/** By the binding: a worker may ask for its limiter with each request, and gets the same one. */
const known = new WeakMap<object, Limiter>();

/**
 * A limiter over the objects themselves, without a hop through the limiter's worker.
 *
 * @throws Error that names every bad policy, field and value, and what is allowed
 */
export function makeObjectsLimiter(options: ObjectsOptions): Limiter {
  const { namespace: given, policies, regions: givenRegions, region: regionName, policy, name } = options;
  if (typeof given !== "object" || given === null)
    throw new TypeError(violation(["namespace"], given, "a binding to the limiter's objects"));
  const before = known.get(given);
  if (before !== undefined) return before;
  const { regions, regionalPolicies } = parseDeployment({ policies, regions: givenRegions });
  const region = regionName === undefined ? undefined : regions.find((each) => each.name === regionName);
  if (regionName !== undefined && region === undefined)
    throw new TypeError(
      violation(
        ["region"],
        regionName,
        oneOfNames(
          regionName,
          regions.map((each) => each.name),
        ),
      ),
    );
  const namespace = given as LimiterNamespace;
  const objects = new Objects(namespace, SYSTEM_TIME, {
    queues: new BatchQueues(),
    inBackground: waitUntil,
  });
  const cache = new ReservationCache(randomId);
  const parts = { objects, policies: regionalPolicies, time: SYSTEM_TIME, inBackground: waitUntil };
  const client = new LimiterClient(parts, new LocalLimiter(cache));
  const close = async () => {
    known.delete(given);
    cache.endAll();
    await returnUnits(objects, cache.endDue(Infinity));
  };
  const limiter = new DirectLimiter({ client, inBackground: waitUntil, close, policy, name, region });
  known.set(given, limiter);
  return limiter;
}
