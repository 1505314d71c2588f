/** A worker that calls the limiter over its service binding, or over its objects, as requests demand. */
import type { Limiter } from "../../client/limiter.ts";
import type { LimiterService } from "../../client/transports/transport.ts";
import { LimiterError } from "../../core/protocol/problems.ts";
import { createLimiter } from "../../package/client-in-worker.ts";
import { createObjectsLimiter } from "../../package/objects.ts";

interface Env {
  readonly LIMITER: LimiterService;
  readonly OBJECTS: object;
  readonly POLICIES: object;
}

export interface Told {
  readonly way: "service" | "objects";
  readonly method: Exclude<keyof Limiter, typeof Symbol.asyncDispose>;
  readonly asked: unknown;
}

export default {
  async fetch(request: Request, env: Env): Promise<Response> {
    if (request.method === "GET") return new Response("up");
    const { way, method, asked } = await request.json<Told>();
    const limiter =
      way === "service"
        ? createLimiter({ service: env.LIMITER })
        : createObjectsLimiter({ namespace: env.OBJECTS, policies: env.POLICIES });
    try {
      const call = limiter[method].bind(limiter) as (asked: unknown) => Promise<unknown>;
      return Response.json({ answer: await call(asked) });
    } catch (error) {
      if (!(error instanceof LimiterError)) throw error;
      const { status, code, errors, message } = error;
      return Response.json({ error: { status, code, errors, message } });
    }
  },
};
