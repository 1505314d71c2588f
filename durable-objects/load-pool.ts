import { SYSTEM_TIME } from "../core/clock.ts";
import { localName } from "../core/policies/policy-names.ts";
import { poolAddress } from "./deployment.ts";
import type { KeyState } from "./keys/key-state.ts";
import type { Operations } from "./operations/operations.ts";
import type { PooledHost } from "./pool/pooled-operations.ts";

/** What pooled operations need of their object. */
export interface PoolParts extends Pick<PooledHost, "store" | "queue" | "local" | "toNow"> {
  readonly nowMs: () => number;
  readonly open: (policy: string, key: string) => [keyState: KeyState, nowMs: number];
}

/**
 * Makes a key of what a region has alone, beside the same key of the pool: longer than any key of a caller, so it is none.
 * It is stored. For ever.
 */
const ALONE = "alone/".padEnd(512, "/");

/** Loads the region's side of pools: Upstash's client, the script and the rest, of which nothing is loaded without. */
export async function loadPool({ nowMs, open, ...parts }: PoolParts): Promise<Operations> {
  if (poolAddress === undefined) throw new Error("this version of the object has no pools");
  const [{ PooledOperations }, { RedisPool }] = await Promise.all([
    import("./pool/pooled-operations.ts"),
    import("./pool/redis/redis-pool.ts"),
  ]);
  return new PooledOperations({
    ...parts,
    pool: new RedisPool(poolAddress),
    time: { ...SYSTEM_TIME, nowMs },
    openAlone: ({ policy, key }) => open(localName(policy), ALONE + key),
  });
}
