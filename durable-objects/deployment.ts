import { env } from "cloudflare:workers";
import { parseDeployment } from "../core/policies/regional-policies.ts";
import { requirePool } from "./pool/redis/secrets.ts";

const vars = env as {
  readonly POLICIES?: unknown;
  readonly REGIONS?: unknown;
  readonly UPSTASH_REDIS_REST_URL?: unknown;
  readonly UPSTASH_REDIS_REST_TOKEN?: unknown;
};

/**
 * The policies of this deployment, by their names, and by those that they have in its regions. They are read while the worker
 * starts: a bad one stops it there and then. Worker and object read the same ones, and a new deployment restarts both.
 */
export const { policies, regions, regionalPolicies } = parseDeployment({
  policies: vars.POLICIES,
  regions: vars.REGIONS,
});

/** Where the pools are; `undefined`: no policy has one. */
export const poolAddress = requirePool(policies, vars);
