/** Where a call comes from, which says what region decides a policy with a pool. */
import { regionOf, type Origin, type Region } from "../../core/policies/regions.ts";
import { poolAddress, regions } from "../../durable-objects/deployment.ts";
import type { Principal } from "./tokens.ts";

/** An isolate is in one place, so what an HTTP request said of it holds for calls over RPC, which say nothing. */
let here: Region | undefined;

/** The same principal, with the region of its request; without pools there are none. */
export function callingFrom(principal: Principal, { cf }: Request): Principal {
  if (poolAddress === undefined) return principal;
  here = regionOf(regions, (cf ?? {}) as Origin);
  return { ...principal, region: here };
}

/** The region of a call over RPC: the one that it names, or where this isolate is. `undefined`: there is none of that name. */
export function regionNamed(name: unknown): Region | undefined {
  return name === undefined ? (here ?? regions[0]) : regions.find((region) => region.name === name);
}
