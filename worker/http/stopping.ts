import { giveBackAll } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { STOP_HEADER } from "./stop-header.ts";

/**
 * The answer to `npm run serve`, which says that it ends the process: units go back, and the objects that it names write
 * what they know. `undefined`: it is another request. On Cloudflare there is no such secret, and nobody says so.
 */
export function answerStop(request: Request, env: Env): Promise<Response> | undefined {
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
