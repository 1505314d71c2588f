import type { Hono } from "hono";
import { Problem } from "../../core/protocol/problems.ts";
import { METRIC_FORMATS, metricsText, type MetricFormat } from "../../core/stats/metrics-text.ts";
import { clientOf } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { callHistory, callMetrics, callTopKeys } from "../calls/stats.ts";
import { queryInput } from "./addresses.ts";
import { authorized, jsonAnswer, withoutQuery } from "./handlers.ts";

/** Adds the routes about what the limiter did. */
export function addStatsRoutes(app: Hono<{ Bindings: Env }>): void {
  app.get(
    "/metrics",
    withoutQuery(["metrics", "admin"], async (c, principal) => {
      const answered = await callMetrics(c.env.STATS, principal);
      if (answered instanceof Problem) return answered;
      const format = formatOf(c.req.raw.headers.get("accept"));
      const headers = { "content-type": METRIC_FORMATS[format], "cache-control": "no-store", vary: "accept" };
      return new Response(metricsText(answered.counts, format), { headers });
    }),
  );
  for (const [path, call] of Object.entries({ "/v1/stats": callHistory, "/v1/stats/keys": callTopKeys }))
    app.get(
      path,
      authorized(["admin"], async (c, principal) => {
        const input = queryInput(c, []);
        if (input instanceof Problem) return input;
        return jsonAnswer(await call(c.env.STATS, clientOf(c.env, principal), principal, input));
      }),
    );
}

/** OpenMetrics, unless the caller takes plain text and says nothing of it. */
function formatOf(accept: string | null): MetricFormat {
  const isPlain = accept?.includes("text/plain") === true && !accept.includes("application/openmetrics-text");
  return isPlain ? "prometheus" : "openmetrics";
}
