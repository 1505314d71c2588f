/** A worker with an empty Hono route, and the same route with `rateLimit` on one hot key. */
import { Hono } from "hono";
import { createLimiter } from "../package/client-in-worker.ts";
import { rateLimit } from "../package/hono.ts";
import type { LimiterService } from "../package/index.ts";
import { createObjectsLimiter } from "../package/objects.ts";

type App = {
  Bindings: {
    readonly LIMITER: LimiterService;
    readonly OBJECTS: Parameters<typeof createObjectsLimiter>[0]["namespace"];
    readonly POLICIES: Parameters<typeof createObjectsLimiter>[0]["policies"];
  };
};

const app = new Hono<App>();
const key = "user:42";
app.post("/empty", (c) => c.body("done"));
app.post(
  "/service",
  rateLimit<App>({
    limiter: (c) => createLimiter({ service: c.env.LIMITER }),
    policy: "hot",
    key: () => key,
  }),
  (c) => c.body("done"),
);
app.post(
  "/objects",
  rateLimit<App>({
    limiter: (c) => createObjectsLimiter({ namespace: c.env.OBJECTS, policies: c.env.POLICIES }),
    policy: "hot",
    key: () => key,
  }),
  (c) => c.body("done"),
);
app.post(
  "/service-over",
  rateLimit<App>({
    limiter: (c) => createLimiter({ service: c.env.LIMITER }),
    policy: "over",
    key: () => key,
    // The load takes only 200 for an answer.
    onDenied: () => new Response("denied"),
  }),
  (c) => c.body("done"),
);

export default app;
