import { app } from "./app.ts";
import type { Env } from "./handlers.ts";
import { answerLimit } from "./limit-route.ts";

/** The deployed module: the HTTP worker, the entrypoint for service bindings, and the object's class. */
export { Limiter } from "./limiter.ts";
export { LimiterObject } from "../durable-objects/limiter-object.ts";

export default {
  fetch(request: Request, env: Env, ctx: ExecutionContext): Response | Promise<Response> {
    return answerLimit(request, env, ctx) ?? app.fetch(request, env, ctx);
  },
};
