/** Programs that use the npm package besides the client. They run in empty projects: see package.test.ts. */

/** Needs no other package. */
export const PARTS = `
import type { Limiter } from "weir-limiter/client";
import { rateLimitBinding } from "weir-limiter/cloudflare";
import { concurrency, rateLimit } from "weir-limiter/express";
import { decisionsOf, FetchLimitedError, limitedFetch, withConcurrency, withRateLimit } from "weir-limiter/fetch";
import { assertAsked, manualClock, memoryLimiter, unlimited } from "weir-limiter/testing";
import { Ratelimit } from "weir-limiter/upstash";

const clock = manualClock();
const policies = {
  api: { algorithm: "token-bucket", limit: 1, window: "1s", maxWait: "1m" },
  jobs: { algorithm: "concurrency", limit: 1 },
};
const limiter: Limiter = memoryLimiter({ policies, clock });
const handler = withRateLimit(
  { limiter, policy: "api", key: (request) => request.url },
  withConcurrency({ limiter, policy: "jobs", key: "all" }, async (request: Request) =>
    Response.json(Object.keys(decisionsOf(request))),
  ),
);
interface Env {
  readonly LIMITER: Limiter;
}
const limiterOf = (_: Request, env: Env) => env.LIMITER;
const keyOf = (request: Request) => request.url;
const skip = ({ method }: Request) => method === "HEAD";
const nested = withRateLimit(
  { limiter: limiterOf, policy: "api", key: keyOf },
  withConcurrency({ limiter: limiterOf, policy: "jobs", key: keyOf, skip }, (request: Request, _: Env, context: object) =>
    Response.json([request.url, context]),
  ),
);
const fewer = withRateLimit({ limiter: limiterOf, policy: "api", key: "fewer" }, (request: Request) => Response.json(request.url));
const env: Env = { LIMITER: limiter };
const typed: number[] = [];
for (const response of [await nested(new Request("https://a.example/"), env, {}), await fewer(new Request("https://b.example/"), env)]) {
  typed.push(response.status);
  // Until a body has been read its request is under way, and keeps its slot and the process.
  await response.text();
}
const statuses: unknown[] = [];
for (let call = 0; call < 2; call += 1) {
  const response = await handler(new Request("https://example.com/"));
  statuses.push(response.status, await response.text().then((text) => text.length));
}
await clock.advance("1s");
const { success } = await rateLimitBinding({ limiter, policy: "api" }).limit({ key: "https://example.com/" });
const { remaining } = await new Ratelimit({ limiter, policy: "api" }).getRemaining("https://example.com/");
const all = unlimited();
const partner = limitedFetch({ limiter: all, policy: "api", key: "k", waitMs: 0, fetch: async () => new Response("ok") });
const text = await (await partner("https://example.com/")).text();
assertAsked(all, "limit", { key: "k" });
const made = [rateLimit({ limiter, key: "k" }), concurrency({ limiter, key: "k" }), FetchLimitedError];
console.log(JSON.stringify([statuses[0], statuses[2], success, remaining, text, made.length, typed]));
`;

export const HONO = `
import { Hono } from "hono";
import { concurrency, rateLimit } from "weir-limiter/hono";
import { memoryLimiter } from "weir-limiter/testing";

const limiter = memoryLimiter({ policies: { api: { algorithm: "token-bucket", limit: 2, window: "1m" }, jobs: { algorithm: "concurrency", limit: 1 } } });
const app = new Hono<{ Bindings: { readonly name: string } }>()
  .use(rateLimit({ limiter, policy: "api", key: (c) => c.req.path }))
  .get("/", concurrency({ limiter, policy: "jobs", key: "k" }), (c) => c.json(c.var.limits["api"]?.remaining ?? -1));
const answers: unknown[] = [];
for (let call = 0; call < 3; call += 1) {
  const response = await app.request("/");
  answers.push(response.status === 200 ? await response.json() : response.status);
}
console.log(JSON.stringify(answers));
`;

export const EXPRESS = `
import express from "express";
import { concurrency, decisionsOf, rateLimit } from "weir-limiter/express";
import { memoryLimiter } from "weir-limiter/testing";

const limiter = memoryLimiter({
  policies: { api: { algorithm: "token-bucket", limit: 2, window: "1m" }, jobs: { algorithm: "concurrency", limit: 1 } },
});
const app = express();
app.use(rateLimit({ limiter, policy: "api", key: (req) => String(req.headers["x-user"]) }));
app.get("/", concurrency({ limiter, policy: "jobs", key: "k" }), (req, res) => {
  res.json(Object.keys(decisionsOf(req)));
});
const server = app.listen(0, "127.0.0.1", async () => {
  const address = server.address();
  const port = typeof address === "object" ? address?.port : undefined;
  const answers: unknown[] = [];
  for (let call = 0; call < 3; call += 1) {
    const response = await fetch(\`http://127.0.0.1:\${port}/\`, { headers: { "x-user": "ann", connection: "close" } });
    answers.push(response.status, response.headers.get("ratelimit"), await response.text().then((text) => text.length));
  }
  console.log(JSON.stringify(answers.slice(0, 4).concat(answers[6], (await limiter.peek({ policy: "jobs", key: "k" })).leases)));
  server.close();
});
`;
