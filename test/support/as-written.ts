/** Applications as they are written, to be compiled: test/middleware/types.test.ts does it as others would. */
import express, { type Request, type Response } from "express";
import { Hono } from "hono";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { LimiterService } from "weir-limiter";
import { createLimiter } from "weir-limiter/client";
import { concurrency, decisionsOf, type NodeMiddleware, rateLimit } from "weir-limiter/express";
import * as hono from "weir-limiter/hono";
import { unlimited } from "weir-limiter/testing";

const limiter = unlimited();
const policy = "api";

/** Made before the application, so that nothing says whose request it is. */
const limit = rateLimit({ limiter, policy, key: (req) => String(req.headers["x-api-key"]) });
const slot = concurrency({ limiter, policy: "export", key: (req) => req.ip ?? "none" });
const several = rateLimit({
  limiter,
  limits: [
    { policy, key: (req) => req.socket.remoteAddress ?? "none" },
    { policy: (req) => (req.url === "/" ? "api" : "export"), key: "all", cost: 2 },
  ],
  skip: (req) => req.method === "HEAD",
  onDenied: ([denied], req, res) => {
    res.statusCode = 420;
    res.setHeader("x-denied", req.url ?? "");
    res.end(denied?.reason);
  },
});

export const app = express();
app.use(limit, slot);
app.use("/api", limit, slot, several);
app.get("/:id", limit, (req, res) => void res.json([req.params.id, decisionsOf(req)["api"]?.remaining]));
app.use(rateLimit({ limiter, policy, key: (req) => req.get("x-api-key") ?? "none" }));
app.use("/api", rateLimit({ limiter, policy, key: (req: Request) => req.get("x-api-key") ?? "none" }));
app.use(rateLimit<Request>({ limiter, policy, key: (req) => req.hostname }));
app.use(
  rateLimit<Request, Response>({
    limiter,
    policy,
    key: (req) => req.hostname,
    onDenied: (_, req, res) => res.status(429).json({ of: req.path }),
  }),
);
// @ts-expect-error a request that may be anybody's has no `params`
app.use("/api", rateLimit({ limiter, policy, key: (req) => String(req.params["id"]) }));
const router = express.Router();
router.post(
  "/",
  concurrency({ limiter, policy, key: (req) => req.ip ?? "none" }),
  (_, res) => void res.end(),
);
app.use(router);

export const server = createServer((req, res) => void limit(req, res, () => void res.end()));
export const typed: NodeMiddleware<IncomingMessage, ServerResponse> = rateLimit({
  limiter,
  policy,
  key: (req) => req.httpVersion,
  onDenied: (_, req, res) => res.writeHead(429).end(req.url),
});

interface Env {
  readonly LIMITER: LimiterService;
}
type App = { Bindings: Env; Variables: hono.LimitVariables & { user: string } };

/** By statements, where a chain would not say that `limits` is there. */
export const statements = new Hono<App>();
statements.use(hono.rateLimit({ limiter, policy, key: (c) => c.req.header("x-api-key") ?? "none" }));
statements.use(
  "/api/*",
  hono.rateLimit<App>({
    limiter: (c) => createLimiter({ service: c.env.LIMITER }),
    policy,
    key: (c) => c.var.user,
  }),
);
statements.get("/", hono.concurrency({ limiter, policy, key: "all" }), (c) =>
  c.json([c.var.limits["api"]?.remaining, c.var.user]),
);

export const chained = new Hono()
  .use("/api/*", hono.rateLimit({ limiter, policy, key: (c) => c.req.path }))
  .get("/api", (c) => c.json(c.var.limits["api"]?.remaining));
