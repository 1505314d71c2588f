/** An application whose limits are tested: see index.test.ts. It is given its limiter, so a test can give it another. */
import { Hono } from "hono";
import type { Limiter } from "weir-limiter/client";
import { rateLimit } from "weir-limiter/hono";

/** What it deploys under `[vars.POLICIES]`. */
export const POLICIES = {
  login: { algorithm: "sliding-log", limit: 5, window: "15m", onFailure: "closed" },
  mails: { algorithm: "token-bucket", limit: 100, window: "1d" },
};

/** The application. A clock is there only in tests. */
export function makeApp(limiter: Limiter, clock?: Parameters<typeof rateLimit>[0]["time"]) {
  const time = clock === undefined ? {} : { time: clock };
  const app = new Hono();
  app.post(
    "/login/:name",
    rateLimit({ limiter, policy: "login", key: (c) => c.req.param("name") ?? "", ...time }),
    (c) => c.text("welcome"),
  );
  app.post("/mails", async (c) => {
    const { to } = await c.req.json<{ to?: unknown }>().catch(() => ({ to: undefined }));
    if (!Array.isArray(to) || to.length === 0) return c.text("to must be a list of addresses", 400);
    const { success } = await limiter.limit({ policy: "mails", key: "all", cost: to.length });
    return success ? c.text(`sent ${to.length}`) : c.text("not today", 429);
  });
  return app;
}
