import { env } from "cloudflare:workers";
import { parseLog, parseBackgroundMs } from "../core/policies/parse-policies.ts";
import { parseDeployment, requireKnownNames } from "../core/policies/regional-policies.ts";
import { requirePool } from "./pool/protocol.ts";

const vars = env as {
  readonly POLICIES?: unknown;
  readonly REGIONS?: unknown;
  readonly LOG?: unknown;
  /** `ignored` where plain workerd runs the worker: it has no jurisdictions. Never set on Cloudflare. */
  readonly JURISDICTIONS?: unknown;
  /** Only in tests: see `backgroundMs`. */
  readonly BACKGROUND_MS?: unknown;
  readonly UPSTASH_REDIS_REST_URL?: unknown;
  readonly UPSTASH_REDIS_REST_TOKEN?: unknown;
};

requireKnownNames(env);

/**
 * What this deployment configures. All of it is read while the worker starts, and a bad policy stops the start. The worker
 * and its objects read the same configuration, and a new deployment restarts both.
 */
export const deployed = parseDeployment({
  policies: vars.POLICIES,
  regions: vars.REGIONS,
  areJurisdictionsIgnored: vars.JURISDICTIONS === "ignored",
});

/**
 * `policies` has the policies by the names that callers use. `regionalPolicies` also finds a region's copy of a policy with
 * a pool (`api@eu`). `isRemoved` says which policies were removed on purpose.
 */
export const { policies, regions, regionalPolicies, isRemoved } = deployed;

/** What is logged of calls. */
export const log = parseLog(vars.LOG);

/**
 * After how many milliseconds isolates ask the catalog again and send what they have counted, and the statistics are
 * written. `undefined`, as everywhere but in tests: each of these has its own constant.
 */
export const backgroundMs = parseBackgroundMs(vars.BACKGROUND_MS);

/** The address and the token of the Redis with the pools; `undefined`: no policy has a pool. */
export const poolAddress = requirePool(policies, vars);
