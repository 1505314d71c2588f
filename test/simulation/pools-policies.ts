/** Policies for histories with a pool: units become scarce, and lifetimes are as long as a few messages. */
import { parseRegions, RegionalPolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { sharesOf } from "../../durable-objects/pool/share-algorithm.ts";
import { parsePolicies } from "../support/milliseconds.ts";

const BUCKET = { algorithm: "token-bucket", limit: 40, window: 1_000 };
const LOG = { algorithm: "sliding-log", limit: 64, window: 400 };
const SLOTS = { algorithm: "concurrency", limit: 6, ttl: 400, maxTtl: 2_000, maxWait: 600 };
const COMMON = { deadlineMs: 100, pool: "redis" };

const POLICIES = parsePolicies({
  brief: { ...BUCKET, ...COMMON, burst: 48, reservation: { ttl: 40 } },
  bucket: { ...BUCKET, ...COMMON, limit: 200, burst: 96, reservation: { ttl: 120 } },
  slow: { ...BUCKET, ...COMMON, limit: 1, window: 60_000, burst: 64, reservation: { ttl: 60 } },
  auto: { ...BUCKET, ...COMMON, limit: 500, burst: 400 },
  log: { ...LOG, ...COMMON, reservation: { ttl: 50 } },
  long: { ...LOG, ...COMMON, window: 3_000, limit: 100, reservation: { ttl: 200 } },
  two: {
    rules: { rate: { ...BUCKET, burst: 64 }, total: { ...LOG, window: 900 } },
    ...COMMON,
    reservation: { ttl: 80 },
  },
  slots: { ...SLOTS, ...COMMON, reservation: { ttl: 100 } },
  scarce: { ...SLOTS, ...COMMON, limit: 2, ttl: 150, maxTtl: 500 },
  both: {
    rules: { rate: { ...BUCKET, limit: 20, burst: 20 }, slots: SLOTS },
    ...COMMON,
    reservation: { ttl: 100 },
  },
});
const regions = parseRegions({ eu: {}, us: {}, as: {} });
const regional = new RegionalPolicies(POLICIES, regions);
const shares = new Map<string, Policy>();

export const NAMES = [...POLICIES.keys()];
export const REGIONS = regions;
/** Longer than any region's hold lasts here, in milliseconds. */
export const LONGEST_HELD_MS = 20_000;

/** The policy as isolates in a region have it. */
export function policyIn(name: string, region: number): Policy {
  return regional.within(POLICIES.get(name) as Policy, regions[region]);
}

/** The policies as the objects have them: every rule is a share of the pool's. */
export const OBJECT_POLICIES = {
  get(name: string): Policy | undefined {
    const policy = regional.get(name);
    const share = shares.get(name) ?? (policy && sharesOf(policy));
    if (share !== undefined) shares.set(name, share);
    return share;
  },
};
