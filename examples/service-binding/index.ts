/**
 * An API behind Weir. Callers send an API key. Each caller may make as many requests as the policy "api" allows, log in
 * as often as "login" allows, and run ten exports at a time. A request whose upstream failed is refunded.
 */
import type { LimiterService } from "weir-limiter";

interface Env {
  readonly LIMITER: LimiterService;
  readonly RATE_LIMITER: LimiterService;
}

export default {
  async fetch(request, env): Promise<Response> {
    // A name stands for the key here. A real API key is a credential: take `hashedKey` of weir-limiter/fetch.
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
      // Bad input throws a LimiterError. Its properties are what Weir would have answered over HTTP.
      const { status, errors } = error as { status?: number; errors?: unknown };
      if (status === undefined) throw error;
      return Response.json({ errors }, { status });
    }
  },
} satisfies ExportedHandler<Env>;

/** Runs at most ten exports at a time for each customer. `using` frees the slot however this function ends. */
async function exported(env: Env, key: string): Promise<Response> {
  using grant = await env.LIMITER.acquire({ policy: "export", key });
  if (!grant.success) return new Response("all slots are taken", { status: 503 });
  await scheduler.wait(1_000);
  // When the link to Weir breaks, the slot is free although we work. So whatever we write carries the token, which rises
  // with each grant: a store that refuses lower ones than it has seen takes nothing from a holder that is too late.
  const { fencingToken } = grant.lease ?? {};
  return new Response("exported", { headers: { "x-fencing-token": String(fencingToken) } });
}

async function limited(request: Request, env: Env, key: string, cost: number): Promise<Response> {
  const { success, remaining, retryAfterMs } = await env.LIMITER.limit({ policy: "api", key, cost });
  if (!success) {
    // `null`: the cost can never pass. Absent: Weir could not decide, and the policy has `onFailure = "closed"`.
    const headers =
      typeof retryAfterMs === "number" ? { "retry-after": String(Math.ceil(retryAfterMs / 1_000)) } : {};
    return new Response("too many requests", { status: 429, headers });
  }
  const response = askUpstream(request);
  if (response.status >= 500) {
    // The caller got nothing, so its units are given back. With the idempotency key a repeated refund counts once. It
    // names no charge, which a binding may do: then the limit need not be `refundable`, and an isolate can decide it.
    const idempotencyKey = request.headers.get("cf-ray") ?? crypto.randomUUID();
    await env.LIMITER.refund({ policy: "api", key, units: cost, idempotencyKey });
  }
  return new Response(response.body, {
    status: response.status,
    headers: { "x-remaining": String(remaining) },
  });
}

/** The upstream that Weir protects. In this example it fails when the path says so. */
function askUpstream(request: Request): Response {
  const fails = new URL(request.url).pathname === "/fail";
  return fails ? new Response("upstream failed", { status: 502 }) : new Response("hello");
}
