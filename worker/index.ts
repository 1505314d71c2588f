import type { Env } from "./bindings/env.ts";
import { app } from "./http/app.ts";
import { answerLimit } from "./http/limit-fast-path.ts";
import { answerStop } from "./http/stopping.ts";

/** The deployed module: the HTTP worker, the entrypoint for service bindings, and the classes of objects. */
export { Limiter } from "./rpc/limiter.ts";
export { LimiterObject } from "../durable-objects/limiter-object.ts";
export { CatalogObject } from "../durable-objects/catalog/catalog-object.ts";
export { StatsObject } from "../durable-objects/stats/stats-object.ts";

export default {
  fetch(request: Request, env: Env, ctx: ExecutionContext): Response | Promise<Response> {
    return answerLimit(request, env) ?? answerStop(request, env) ?? app.fetch(request, env, ctx);
  },
};
