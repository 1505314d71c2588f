import { env } from "cloudflare:workers";
import { parsePolicies } from "./policies.ts";

/**
 * The policies of this deployment, read while the worker starts: a bad one stops it there and then.
 * Worker and object read the same ones, and a new deployment restarts both.
 */
export const policies = parsePolicies((env as { readonly POLICIES?: unknown }).POLICIES);
