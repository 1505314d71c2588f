/** A worker that calls the limiter over its service binding, or over its objects, as requests demand. */
import type { Limiter } from "../../client/limiter.ts";
import type { LimiterService } from "../../client/transports/transport.ts";
import { LimiterError } from "../../core/protocol/problems.ts";
import { createLimiter } from "../../package/client-in-worker.ts";
import { withConcurrency } from "../../package/fetch.ts";
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

function limiterBy(way: Told["way"], env: Env): Limiter {
  return way === "service"
    ? createLimiter({ service: env.LIMITER })
    : createObjectsLimiter({ namespace: env.OBJECTS, policies: env.POLICIES });
}

/** It gets no `ctx`, as handlers of some frameworks. */
const held = withConcurrency(
  {
    limiter: (request: Request, env: Env) =>
      limiterBy(request.url.includes("/service/") ? "service" : "objects", env),
    policy: "export",
    key: (request: Request) => new URL(request.url).pathname,
  },
  (request: Request) => {
    if (request.url.endsWith("/thrown")) throw new Error("thrown by the handler");
    if (!request.url.endsWith("/left")) return new Response("held");
    // It does not end by itself. That its reader has gone is seen when a chunk is sent.
    const pull = async (body: ReadableStreamDefaultController<Uint8Array>) => {
      await new Promise((done) => setTimeout(done, 50));
      body.enqueue(new Uint8Array(10));
    };
    return new Response(new ReadableStream({ pull }));
  },
);

export default {
  async fetch(request: Request, env: Env): Promise<Response> {
    if (request.url.includes("/held/")) return await held(request, env);
    if (request.method === "GET") return new Response("up");
    const { way, method, asked } = await request.json<Told>();
    const limiter = limiterBy(way, env);
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
