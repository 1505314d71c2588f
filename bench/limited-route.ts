/**
 * A worker with an empty Hono route, and the same route behind a limit: `/<who limits>/<policy>`. ADDRESS and TOKEN are
 * those of the limiter over HTTP, REDIS those of the Redis for `@upstash/ratelimit`: `bundled` puts them in.
 */
import { Ratelimit } from "@upstash/ratelimit";
import { Redis } from "@upstash/redis/cloudflare";
import { Hono, type Context, type MiddlewareHandler } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import type { Limiter } from "../client/limiter.ts";
import { createLimiter } from "../package/client-in-worker.ts";
import { concurrency, rateLimit, type LimitVariables } from "../package/hono.ts";
import type { LimiterService } from "../package/index.ts";
import { createMemoryLimiter } from "../package/memory.ts";
import { createObjectsLimiter } from "../package/objects.ts";

declare const ADDRESS: string;
declare const TOKEN: string;
declare const REDIS: { readonly url: string; readonly token: string };

type App = {
  Bindings: {
    readonly LIMITER: LimiterService;
    readonly OBJECTS: Parameters<typeof createObjectsLimiter>[0]["namespace"];
    readonly POLICIES: Readonly<Record<string, { readonly limit: number; readonly window: `${number}s` }>>;
  };
  Variables: LimitVariables;
};
type Route = Context<App>;

const keyOf = (c: Route) => c.req.query("key") ?? "user:42";
const done = (c: Route) => c.body("done");
const app = new Hono<App>();
app.post("/empty", done);
// What the headers alone cost: in every other route the limits' middleware sets two or more.
app.post(
  "/headers",
  async (c, next) => {
    await next();
    c.res.headers.set("RateLimit-Policy", '"hot";q=1000000000;w=1');
    c.res.headers.set("RateLimit", '"hot";r=999999999;t=1');
  },
  done,
);

/** What lives as long as the isolate, made with the first request: at the start there are no timers and no calls. */
const made = new Map<string, unknown>();
function kept<Kept>(name: string, make: () => Kept): Kept {
  const value = (made.get(name) as Kept | undefined) ?? make();
  made.set(name, value);
  return value;
}

const WAYS: Readonly<Record<string, (c: Route) => Limiter>> = {
  service: (c) => createLimiter({ service: c.env.LIMITER }),
  objects: (c) => createObjectsLimiter({ namespace: c.env.OBJECTS, policies: c.env.POLICIES }),
  http: () => kept("http", () => createLimiter({ url: ADDRESS, token: TOKEN })),
  memory: (c) => kept("memory", () => createMemoryLimiter({ policies: c.env.POLICIES })),
};
const NEIGHBOURS: Readonly<Record<string, (policy: string) => MiddlewareHandler<App>>> = {
  "upstash-ratelimit": (policy) => async (c, next) => {
    const limiter = kept(`upstash/${policy}`, () => {
      const { limit = 0, window = "1s" } = c.env.POLICIES[policy] ?? {};
      const redis = new Redis(REDIS);
      return new Ratelimit({ redis, prefix: policy, limiter: Ratelimit.tokenBucket(limit, window, limit) });
    });
    const { success, limit, remaining, pending } = await limiter.limit(keyOf(c));
    c.executionCtx.waitUntil(pending);
    c.header("X-RateLimit-Limit", String(limit));
    c.header("X-RateLimit-Remaining", String(remaining));
    return success ? await next() : c.body("denied");
  },
  // In memory: each isolate counts for itself.
  "hono-rate-limiter": (policy) => async (c, next) => {
    const middleware = kept(`hono/${policy}`, () => {
      const { limit = 0, window = "1s" } = c.env.POLICIES[policy] ?? {};
      return rateLimiter<App>({
        windowMs: 1_000 * Number.parseFloat(window),
        limit,
        keyGenerator: keyOf,
        handler: (to) => to.body("denied"),
      });
    });
    return await middleware(c, next);
  },
};

for (const policy of ["hot", "planned", "grouped", "many", "over", "denied"]) {
  const plan = (policy === "planned" || policy === "grouped") && { plan: () => "pro" };
  const group = policy === "grouped" && { group: () => "customer:1" };
  for (const [way, limiter] of Object.entries(WAYS)) {
    // The load takes only 200 for an answer.
    const onDenied = () => new Response("denied");
    app.post(
      `/${way}/${policy}`,
      rateLimit<App>({ limiter, policy, key: keyOf, onDenied, ...plan, ...group }),
      done,
    );
  }
  for (const [name, limited] of Object.entries(NEIGHBOURS))
    app.post(`/${name}/${policy}`, limited(policy), done);
}

for (const [way, limiter] of Object.entries(WAYS))
  for (const policy of ["leased", "leased-keys"])
    app.post(`/${way}/${policy}`, concurrency<App>({ limiter, policy, key: keyOf }), done);

// Each request has a client of its own: other options make another one.
let clients = 0;
app.post("/first", async (c) => {
  clients += 1;
  const limiter = createLimiter({ service: c.env.LIMITER, deadlineMs: 10_000 + clients });
  const { source } = await limiter.limit({ policy: "hot", key: `first ${clients}` });
  return c.body(source);
});

export default app;
