/** Where a call comes from. Its region decides which object serves a policy with a pool. */
import { regionOf, type Origin, type Region } from "../../core/policies/regions.ts";
import { poolAddress, regions } from "../../durable-objects/deployment.ts";
import type { Principal } from "./tokens.ts";

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
