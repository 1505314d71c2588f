import type { Policies } from "../../../core/policies/policy.ts";
import { describe } from "../../../core/validation.ts";

/** The address of a Redis, and the token that Upstash's REST API wants. */
export interface PoolAddress {
  readonly url: string;
  readonly token: string;
}

const HOW =
  "must be a secret, as the Upstash console shows it: npx wrangler secret put <NAME>; locally a line in .dev.vars";

/**
 * The secrets that pools need; `undefined`: no policy has a pool.
 *
 * @throws Error when a policy has a pool and a secret is missing or malformed: every call of that policy would fail,
 *   so the worker does not start
 */
export function requirePool(
  policies: Policies,
  vars: { readonly UPSTASH_REDIS_REST_URL?: unknown; readonly UPSTASH_REDIS_REST_TOKEN?: unknown },
): PoolAddress | undefined {
  const pooled = [...policies.values()].find(({ pool }) => pool !== undefined);
  if (pooled === undefined) return undefined;
  const { UPSTASH_REDIS_REST_URL: url, UPSTASH_REDIS_REST_TOKEN: token } = vars;
  const problems: string[] = [];
  if (typeof url !== "string" || !/^https?:\/\/[^\s/]/.test(url))
    problems.push(
      `UPSTASH_REDIS_REST_URL is ${missing(url)}: ${HOW} (an address that begins with https:// or http://)`,
    );
  if (typeof token !== "string" || token.trim() === "")
    problems.push(`UPSTASH_REDIS_REST_TOKEN is ${token === undefined ? "missing" : "empty"}: ${HOW}`);
  if (problems.length > 0 || typeof url !== "string" || typeof token !== "string")
    throw new Error(
      `bad configuration, not serving:\npolicy ${JSON.stringify(pooled.name)}: pool = "redis" needs two secrets\n${problems.join("\n")}`,
    );
  return { url, token };
}

function missing(value: unknown): string {
  return value === undefined ? "missing" : describe(value);
}
