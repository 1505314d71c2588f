import { giveBackAll } from "./bindings/client.ts";
import type { Env } from "./bindings/env.ts";
import { app } from "./http/app.ts";
import { answerLimit } from "./http/limit-fast-path.ts";
import { STOP_HEADER } from "./http/stop-header.ts";

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

/**
 * The answer to `npm run serve`, which says that it ends the process: units go back, and the objects that it names write
 * what they know. `undefined`: it is another request. On Cloudflare there is no such secret, and nobody says so.
 */
function answerStop(request: Request, env: Env): Promise<Response> | undefined {
  const { STOP_SECRET } = env;
  const isMeant = STOP_SECRET !== undefined && request.headers.get(STOP_HEADER) === STOP_SECRET;
  return isMeant ? stop(request, env) : undefined;
}

/** The namespace, as far as it is needed here: objects are known by their ids, not by their names. */
interface Objects {
  idFromString(id: string): object;
  get(id: object): { rest(): Promise<void> };
}

async function stop(request: Request, env: Env): Promise<Response> {
  const ids: readonly string[] = await request.json();
  await giveBackAll(env);
  const objects = env.OBJECTS as unknown as Objects;
  // An id of another class is none here, and must not keep the others from writing.
  await Promise.allSettled(ids.map(async (id) => await objects.get(objects.idFromString(id)).rest()));
  return new Response(null, { status: 204 });
}
