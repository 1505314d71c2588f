import { STEPS, TOP_KINDS } from "../../core/stats/messages.ts";
import { METRIC_FORMATS } from "../../core/stats/metrics-text.ts";
import { HistoryRequest } from "../calls/stats-schemas.ts";
import { answer, problems, query } from "./openapi-parts.ts";

/** The addresses of the OpenAPI document about what the limiter did. */
export function statsPaths(): object {
  return {
    "/metrics": {
      get: {
        operationId: "metrics",
        summary: "All counts, for Prometheus; needs the scope metrics or admin",
        responses: {
          200: { description: "OpenMetrics 1.0", content: metricsContent() },
          ...problems(401, 403, 503),
        },
      },
    },
    "/v1/stats": {
      get: {
        operationId: "history",
        summary: "What happened under a policy, by the minute or by the hour; needs the scope admin",
        parameters: [
          policy,
          query("since", {
            type: "string",
            description: HistoryRequest.entries.since.wrapped.pipe[2].description,
          }),
          query("step", { type: "string", enum: STEPS, default: HistoryRequest.entries.step.default }),
        ],
        responses: { 200: answer("The steps with traffic", "History"), ...problems(...PROBLEMS) },
      },
    },
    "/v1/stats/keys": {
      get: {
        operationId: "topKeys",
        summary: "The keys of a policy that came, or were denied, most often; needs the scope admin",
        parameters: [policy, query("by", { type: "string", enum: TOP_KINDS, default: "denied" })],
        responses: {
          200: answer("The keys, the highest counts first", "TopKeyList"),
          ...problems(...PROBLEMS),
        },
      },
    },
  };
}

const PROBLEMS = [400, 401, 403, 404, 422, 503] as const;

const policy = query("policy", { type: "string" }, true);

const SAMPLE = 'weir_decisions_total{policy="api",outcome="denied",reason="quota",source="isolate"} 12';

function metricsContent(): object {
  const content = (value: string) => ({ schema: { type: "string" }, examples: { metrics: { value } } });
  return {
    [METRIC_FORMATS.openmetrics]: content(`# TYPE weir_decisions counter\n${SAMPLE}\n# EOF\n`),
    [METRIC_FORMATS.prometheus]: content(`# TYPE weir_decisions_total counter\n${SAMPLE}\n`),
  };
}
