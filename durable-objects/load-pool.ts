import { SYSTEM_TIME } from "../core/clock.ts";
import { poolAddress } from "./deployment.ts";
import type { Clerks } from "./call-router.ts";
import type { KeyState } from "./keys/key-state.ts";
import type { PooledOperations } from "./pool/pooled-operations.ts";
import { localName } from "../core/policies/regional-policies.ts";

/** What it needs of the object. */
export interface ObjectParts {
  readonly nowMs: () => number;
  /** Debits and frees what has expired of a key and returns the time, in milliseconds. */
  readonly toNow: (keyState: KeyState) => number;
  readonly open: (policy: string, key: string) => [keyState: KeyState, nowMs: number];
}

/**
 * Makes a key of what a region has alone, beside the same key of the pool: longer than any key of a caller, so it is none.
 * It is stored. For ever.
 */
const ALONE = "alone/".padEnd(512, "/");

/** Loads the region's side of pools: Upstash's client, the script and the rest, of which nothing is loaded without. */
export async function loadPool(
  clerks: Clerks,
  { nowMs, toNow, open }: ObjectParts,
): Promise<PooledOperations> {
  if (poolAddress === undefined) throw new Error("this version of the object has no pools");
  const [{ PooledOperations: Loaded }, { RedisPool }] = await Promise.all([
    import("./pool/pooled-operations.ts"),
    import("./pool/redis/redis-pool.ts"),
  ]);
  return new Loaded({
    ...clerks,
    pool: new RedisPool(poolAddress),
    time: { ...SYSTEM_TIME, nowMs },
    toNow,
    openAlone: ({ policy, key }) => open(localName(policy), ALONE + key),
  });
}
