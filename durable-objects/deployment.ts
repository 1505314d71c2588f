import { env } from "cloudflare:workers";
import { parseLog } from "../core/policies/placement.ts";
import { parseDeployment } from "../core/policies/regional-policies.ts";
import { nearest } from "../core/validation.ts";
import { requirePool } from "./pool/redis/secrets.ts";

const vars = env as {
  readonly POLICIES?: unknown;
  readonly REGIONS?: unknown;
  readonly LOG?: unknown;
  /** `ignored` where plain workerd runs the worker: it has no jurisdictions. Never set on Cloudflare. */
  readonly JURISDICTIONS?: unknown;
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

/** The address and the token of the Redis with the pools; `undefined`: no policy has a pool. */
export const poolAddress = requirePool(policies, vars);

/* The names of the variables that a deployment reads, and those that were meant to be one of them. */

const READ = ["POLICIES", "REGIONS", "LOG"];

/**
 * Refuses a variable that is `POLICIES`, `REGIONS` or `LOG` with a wrong letter: nobody would read it. Other variables are not
 * the limiter's. So is a text that has a name like `REGION`: regions are a table.
 *
 * @throws Error that names the variable, and the one that was meant
 */
export function requireKnownNames(variables: object): void {
  const wrong = Object.entries(variables).flatMap(([name, value]: [string, unknown]) => {
    const meant = READ.includes(name) ? undefined : nearest(name, READ);
    const isTable = typeof value === "object" && value !== null;
    const isWrong = meant !== undefined && (isTable || meant === "POLICIES");
    return isWrong ? `${name} is not a variable that is read (did you mean ${meant}?)` : [];
  });
  if (wrong.length > 0) throw new Error(`bad configuration, not serving:\n${wrong.join("\n")}`);
}
