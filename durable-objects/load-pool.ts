import { SYSTEM_TIME } from "../core/clock.ts";
import { localName } from "../core/policies/policy-names.ts";
import { poolAddress } from "./deployment.ts";
import type { KeyState } from "./keys/key-state.ts";
import type { Operations } from "./operations/operations.ts";
import type { PooledHost } from "./pool/pooled-operations.ts";

/** The parts of an object that its pooled operations use. */
export interface PoolParts extends Pick<PooledHost, "store" | "queue" | "local" | "toNow"> {
  /** The object's clock, which never runs backwards. */
  readonly nowMs: () => number;
  readonly open: (policy: string, key: string) => [keyState: KeyState, nowMs: number];
}

/**
 * A prefix for the keys that a region counts alone while its pool does not answer (`onFailure = "local"`). They are
 * stored in the same object as the key of the pool. The prefix has 512 characters and a caller's key at most 512 bytes,
 * so no caller can name such a key. Stored: never change.
 */
const ALONE = "alone/".padEnd(512, "/");

/**
 * Loads the operations of a policy with a pool. They bring Upstash's client and the script with them, so an object
 * without pools does not load them.
 *
 * @throws Error while versions mix: this version of the object was deployed without the address of a Redis
 */
export async function loadPool({ nowMs, open, ...parts }: PoolParts): Promise<Operations> {
  if (poolAddress === undefined) throw new Error("this version of the object has no pools");
  const [{ PooledOperations }, { RedisPool }] = await Promise.all([
    import("./pool/pooled-operations.ts"),
    import("./pool/redis/redis-pool.ts"),
  ]);
  const time = { ...SYSTEM_TIME, nowMs };
  return new PooledOperations({
    ...parts,
    pool: new RedisPool(poolAddress, time),
    time,
    openAlone: ({ policy, key }) => open(localName(policy), ALONE + key),
  });
}
