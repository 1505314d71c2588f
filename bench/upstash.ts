/**
 * The baseline of pools: a worker that uses `@upstash/ratelimit` as its documentation shows. The limiters live as long
 * as the isolate, so the cache that they make by default is kept between requests.
 */
import { Ratelimit } from "@upstash/ratelimit";
import { Redis } from "@upstash/redis/cloudflare";
import { DurableObject, env } from "cloudflare:workers";

/** It has the name of Weir's class, because it is served with Weir's configuration. */
export class LimiterObject extends DurableObject {}

const { UPSTASH_REDIS_REST_URL: url, UPSTASH_REDIS_REST_TOKEN: token } = env as unknown as Record<
  string,
  string
>;
const redis = new Redis({ url, token });
const LIMIT = 1_000_000;
/** The policies `tiny`, `rare` and `over` of targets.ts. */
const SMALL = [
  ["/tiny", 5, "1 m"],
  ["/rare", 2, "600 s"],
  ["/over", 10, "1 s"],
] as const;
const limiters = new Map([
  ...SMALL.map(([path, limit, window]) => [path, limited(path, limit, window)] as const),
  ["/token-bucket", limited("bucket", LIMIT, "1 s")],
  [
    "/sliding-window",
    new Ratelimit({
      redis,
      prefix: "window",
      limiter: Ratelimit.slidingWindow(LIMIT, "1 s"),
      analytics: false,
    }),
  ],
]);

function limited(prefix: string, limit: number, window: "1 m" | "600 s" | "1 s"): Ratelimit {
  return new Ratelimit({
    redis,
    prefix,
    limiter: Ratelimit.tokenBucket(limit, window, limit),
    analytics: false,
  });
}

export default {
  async fetch(request: Request, _: unknown, ctx: ExecutionContext): Promise<Response> {
    const limiter = limiters.get(new URL(request.url).pathname);
    if (limiter === undefined) return new Response("up");
    const { key } = await request.json<{ key: string }>();
    const { pending, ...decision } = await limiter.limit(key);
    ctx.waitUntil(pending);
    return Response.json(decision);
  },
};
