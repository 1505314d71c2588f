/**
 * An API behind Weir. Callers send an API key; each may make so many requests of the policy "api", and log in as
 * often as "login" allows. A request whose upstream failed is given back. Exports run ten at a time.
 */
import type { Limiter } from "../../worker/rpc/limiter.ts";

interface Env {
  readonly LIMITER: Service<typeof Limiter>;
  readonly RATE_LIMITER: Service<typeof Limiter>;
}

export default {
  async fetch(request, env): Promise<Response> {
    const key = `customer:${request.headers.get("x-api-key") ?? "anonymous"}`;
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === "/quota") return Response.json(await env.LIMITER.peek({ policy: "api", key }));
    if (pathname === "/login") {
      const { success } = await env.RATE_LIMITER.limit({ key });
      return new Response(success ? "welcome" : "too many attempts", { status: success ? 200 : 429 });
    }
    if (pathname === "/export") return await exported(env, key);
    const cost = Number(searchParams.get("cost") ?? "1");
    try {
      return await limited(request, env, key, cost);
    } catch (error) {
      // Bad input throws a LimiterError, with what HTTP would have answered as its properties.
      const { status, errors } = error as { status?: number; errors?: unknown };
      if (status === undefined) throw error;
      return Response.json({ errors }, { status });
    }
  },
} satisfies ExportedHandler<Env>;

/** At most ten at a time for each customer. The slot is free again however this ends: `using` sees to it. */
async function exported(env: Env, key: string): Promise<Response> {
  using grant = await env.LIMITER.acquire({ policy: "export", key });
  if (!grant.success) return new Response("all slots are taken", { status: 503 });
  await scheduler.wait(1_000);
  return new Response("exported");
}

async function limited(request: Request, env: Env, key: string, cost: number): Promise<Response> {
  const { success, remaining, retryAfterMs } = await env.LIMITER.limit({ policy: "api", key, cost });
  if (!success) {
    // null: it never fits. Absent: nobody could decide, and the policy is closed.
    const headers =
      typeof retryAfterMs === "number" ? { "retry-after": String(Math.ceil(retryAfterMs / 1_000)) } : {};
    return new Response("too many requests", { status: 429, headers });
  }
  const response = askUpstream(request);
  if (response.status >= 500) {
    // Charged for nothing: give it back. The idempotency key makes it safe to do this twice.
    const idempotencyKey = request.headers.get("cf-ray") ?? crypto.randomUUID();
    await env.LIMITER.refund({ policy: "api", key, units: cost, idempotencyKey });
  }
  return new Response(response.body, {
    status: response.status,
    headers: { "x-remaining": String(remaining) },
  });
}

/** What is protected; in this example it fails when it is asked to. */
function askUpstream(request: Request): Response {
  const fails = new URL(request.url).pathname === "/fail";
  return fails ? new Response("upstream failed", { status: 502 }) : new Response("hello");
}
