/** Regions whose callers ask for more than their pool has, in virtual time. */
import { parseRegions, RegionalPolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { poolKeys } from "../../durable-objects/pool/session.ts";
import { sharesOf } from "../../durable-objects/pool/share-algorithm.ts";
import type { AdmittedCall } from "../support/interval-bound.ts";
import { parsePolicies } from "../support/milliseconds.ts";
import type { Pools } from "../support/pools.ts";
import { seededRandom } from "../support/random.ts";
import { Database } from "./database.ts";
import { objectsOf, startIsolate } from "./pools-callers.ts";
import { SimulatedRegion, type Asked } from "./pools-region.ts";
import { loadScript, SimulatedPool } from "./pools-server.ts";
import { PoolWire } from "./pools-wire.ts";
import { VirtualTime } from "./virtual-time.ts";

export interface PoolLoad {
  readonly algorithm: "token-bucket" | "sliding-log";
  readonly limit: number;
  readonly windowMs: number;
  /** By region: how many callers call again as soon as they are answered. */
  readonly callers: readonly number[];
  readonly windows: number;
}

/** The time of a caller's own work between two calls, and of a message one way, in milliseconds. */
const [WORK_MS, TO_OBJECT_MS, TO_POOL_MS] = [2, 1, 5];

/** The admitted calls, of one unit each. */
export async function saturatePool(pools: Pools, load: PoolLoad): Promise<readonly AdmittedCall[]> {
  await pools.client.flushAll();
  const random = seededRandom(1);
  const script = await loadScript(pools);
  const time = new VirtualTime(() => new Promise((resolve) => setImmediate(resolve)));
  const { algorithm, limit, windowMs: window } = load;
  const policies = parsePolicies({ p: { algorithm, limit, window, pool: "redis", deadlineMs: 4_000 } });
  const regions = parseRegions({ eu: {}, us: {}, as: {} });
  const regional = new RegionalPolicies(policies, regions);
  const shares = new Map<string, Policy>();
  const objectPolicies = {
    get(name: string) {
      const policy = regional.get(name);
      const share = shares.get(name) ?? (policy && sharesOf(policy));
      if (share !== undefined) shares.set(name, share);
      return share;
    },
  };
  const pool = new SimulatedPool(script, poolKeys("p", "key", ["p"]));
  const around = (ms: number) => ms * (0.5 + random());
  const wire = new PoolWire({
    pool,
    time,
    clock: { ms: 1_791_000_000_000 },
    fateOf: () => ({ thereMs: around(TO_POOL_MS), backMs: around(TO_POOL_MS) }),
    onCall: () => undefined,
  });
  const admitted: AdmittedCall[] = [];
  for (const [index, callers] of load.callers.entries()) {
    const policy = regional.within(policies.get("p") as Policy, regions[index]);
    const region = new SimulatedRegion({
      database: new Database(),
      policies: objectPolicies,
      time,
      clock: { ms: 1_790_000_000_000 },
      poolFor: (timers) => wire.from(regions[index]?.name ?? "", timers),
      policy: policy.name,
      key: "key",
    });
    const { isolate, clock } = startIsolate(`isolate-${index}`, 1_000);
    const timers = time.clock(clock);
    const objects = objectsOf(
      {
        time,
        fateOf: () => ({ thereMs: around(TO_OBJECT_MS), backMs: around(TO_OBJECT_MS) }),
        handle: (asked: Asked) => region.handle(asked),
      },
      () => false,
      timers,
    );
    const caller = { objects, time: timers, inBackground: () => undefined };
    const work = () => {
      const sentAtMs = time.nowMs;
      const decided = isolate.limit(caller, policy, "key", 1);
      const done = (decision: { readonly success?: boolean }) => {
        if (decision.success === true) admitted.push({ sentAtMs, receivedAtMs: time.nowMs, units: 1 });
        time.at(time.nowMs + around(WORK_MS), work);
      };
      if (decided instanceof Promise) void decided.then((each) => done("success" in each ? each : {}));
      else done("success" in decided ? decided : {});
    };
    for (let each = 0; each < callers; each += 1) time.at(around(WORK_MS), work);
  }
  await time.run(load.windows * window, () => undefined);
  return admitted;
}
