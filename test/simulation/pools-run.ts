import type { Pools } from "../support/pools.ts";
import { Database } from "./database.ts";
import { Gone } from "./pools-region.ts";
import { PoolHistory, type Breakage, type Outcome } from "./pools-schedule.ts";
import { loadScript } from "./pools-server.ts";
import type { VirtualTime } from "./virtual-time.ts";

/** After this number of histories all keys in Redis are deleted. */
const KEPT = 200;

/**
 * Runs histories by seed, on a Redis server that this empties first.
 * @throws Error that names the seed of the first that broke a law
 */
export async function simulatePools(
  pools: Pools,
  firstSeed: number,
  histories: number,
  breakage: Breakage = {},
): Promise<Outcome> {
  const databases = [new Database(), new Database(), new Database()];
  const sum: Outcome = {};
  let policy = "";
  // What a history that broke a law has still under way comes first.
  for (let round = 0; round < 3; round += 1) await pools.client.ping();
  const script = await loadScript(pools, breakage.script);
  for (let seed = firstSeed; seed < firstSeed + histories; seed += 1) {
    if ((seed - firstSeed) % KEPT === 0) await pools.client.flushAll();
    try {
      const history = new PoolHistory(seed, script, databases, breakage);
      policy = history.policyName;
      const outcome = await withTimersOf(history.time, () => history.run());
      for (const [name, count] of Object.entries(outcome)) sum[name] = (sum[name] ?? 0) + count;
    } catch (error) {
      const said = error instanceof Error ? error.message : String(error);
      throw new Error(`SEED=${seed} (${policy}): ${said}`, { cause: error });
    }
  }
  return sum;
}

/** Runs the timers of `WaitQueue` in virtual time. Those of an ended process may throw `Gone`: ignored. */
async function withTimersOf<Result>(time: VirtualTime, work: () => Promise<Result>): Promise<Result> {
  const { setTimeout, clearTimeout } = globalThis;
  const set = (callback: () => void, ms = 0) => {
    const timer = { isCancelled: false };
    time.at(time.nowMs + ms, () => {
      try {
        if (!timer.isCancelled) callback();
      } catch (error) {
        if (!(error instanceof Gone)) throw error;
      }
    });
    return timer;
  };
  const clear = (timer: { isCancelled: boolean } | undefined) => {
    if (timer !== undefined) timer.isCancelled = true;
  };
  Object.assign(globalThis, { setTimeout: set, clearTimeout: clear });
  try {
    return await work();
  } finally {
    Object.assign(globalThis, { setTimeout, clearTimeout });
  }
}
