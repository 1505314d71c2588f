import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { askCatalog } from "./client.ts";
import { catalogOf, type Env } from "./env.ts";

/** What a call on the catalog needs, and how this isolate learns at once of what it has changed; or there is no catalog. */
export function catalogCallerOf(env: Env, principal: Principal) {
  const { CATALOG, STATS: stats, API_TOKENS: secret } = env;
  if (CATALOG !== undefined)
    return { catalog: catalogOf(CATALOG), principal, stats, secret, onWritten: () => askCatalog(env) };
  const detail =
    "the deployment has no binding CATALOG, so nothing can be changed at run time: docs/deploying.md has it";
  return new Problem(PROBLEMS.notConfigured, detail);
}
