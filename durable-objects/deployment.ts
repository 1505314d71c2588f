import { env } from "cloudflare:workers";
import { parseNotices } from "../core/policies/parse-notices.ts";
import {
  parseBackgroundMs,
  parseDeployment,
  parseLog,
  requireHome,
  requireKnownNames,
} from "../core/policies/parse-policies.ts";
import { requirePool } from "./pool/protocol.ts";

const vars = env as {
  readonly POLICIES?: unknown;
  readonly REGIONS?: unknown;
  readonly LOG?: unknown;
  readonly HOME?: unknown;
  /** `ignored` where plain workerd runs the worker: it has no jurisdictions. Never set on Cloudflare. */
  readonly JURISDICTIONS?: unknown;
  readonly BACKGROUND_MS?: unknown;
  readonly NOTICES?: unknown;
  readonly NOTICES_SECRET?: unknown;
  readonly UPSTASH_REDIS_REST_URL?: unknown;
  readonly UPSTASH_REDIS_REST_TOKEN?: unknown;
};

requireKnownNames(env);
requireHome(vars.HOME);

/** Read at the start, which a bad policy stops. A deployment restarts the worker and its objects. */
export const deployed = parseDeployment({
  policies: vars.POLICIES,
  regions: vars.REGIONS,
  areJurisdictionsIgnored: vars.JURISDICTIONS === "ignored",
});

/** `regionalPolicies` also has regions' copies of policies with a pool (`api@eu`). */
export const { policies, regions, regionalPolicies, isRemoved } = deployed;

export const log = parseLog(vars.LOG);

/** The interval of isolates' catalog reads and statistics. `undefined`: their own constants. */
export const backgroundMs = parseBackgroundMs(vars.BACKGROUND_MS);

/** The address and the token of the pools' Redis; `undefined`: no policy has a pool. */
export const poolAddress = requirePool(policies, vars);

/** Where notices go; `undefined`: no policy may have thresholds. */
export const noticesTo = parseNotices(vars, vars.JURISDICTIONS === "ignored", policies);
