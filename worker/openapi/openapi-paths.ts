import { STEPS, TOP_KINDS } from "../../core/stats/messages.ts";
import { METRIC_FORMATS } from "../../core/stats/metrics-text.ts";
import { MIN_PING_MS } from "../calls/schemas/request-schemas.ts";
import { HistoryRequest } from "../calls/stats.ts";
import { catalogPaths, keyPaths } from "./openapi-catalog.ts";
import {
  answer,
  body,
  BODY_PROBLEMS,
  DECISION_HEADERS,
  denials,
  idParameter,
  problems,
  query,
  RETRY_AFTER,
} from "./openapi-parts.ts";

/** The addresses of the OpenAPI document. */
export function openApiPaths(): object {
  return {
    "/v1/limit": {
      post: {
        operationId: "limit",
        summary: "Take units of a key's quota if they fit",
        description:
          "The call may stand in the query instead, without a body: " +
          "`POST /v1/limit?policy=api&key=user%3A42&cost=2`, beside `deny`.",
        parameters: [DENY],
        requestBody: body("LimitRequest"),
        responses: decisions("A decision, whether it admits or not", "Decision"),
      },
    },
    "/v1/limit/all": {
      post: {
        operationId: "limitAll",
        summary:
          "Take units of up to 16 keys' quotas, of all or of none; or of up to 100, each decided by itself",
        parameters: [DENY],
        requestBody: body("LimitAllRequest"),
        responses: {
          200: answer("All decisions, whether they admit or not", "AllDecisions", RETRY_AFTER),
          ...problems(...BODY_PROBLEMS),
          ...denials("SeveralExceeded", "SeveralReduced", RETRY_AFTER),
        },
      },
    },
    "/v1/refund": {
      post: {
        operationId: "refund",
        summary: "Give back units that were taken and not used",
        requestBody: body("RefundRequest"),
        responses: {
          200: answer("The key's decision after the refund", "Decision", DECISION_HEADERS),
          ...problems(...BODY_PROBLEMS),
        },
      },
    },
    ...holdPaths(),
    ...leasePaths(),
    ...reservationPaths(),
    ...leaseEndPaths(),
    ...keyPaths(),
    ...catalogPaths(),
    ...statsPaths(),
    ...healthPath(),
  };
}

function healthPath(): object {
  return {
    "/healthz": {
      get: {
        operationId: "healthz",
        summary: "Whether the worker runs",
        security: [],
        responses: {
          200: {
            description: "The worker runs",
            content: {
              "application/json": {
                schema: {
                  type: "object",
                  properties: { status: { type: "string", const: "ok" } },
                  required: ["status"],
                },
              },
            },
          },
        },
      },
    },
  };
}

function holdPaths(): object {
  return {
    "/v1/holds": {
      post: {
        operationId: "hold",
        summary: "Set units apart until it is known how many were used",
        parameters: [DENY],
        requestBody: body("HoldRequest"),
        responses: decisions("A decision; if it admits, with the hold", "HoldDecision"),
      },
    },
    "/v1/holds/{id}/settle": {
      post: {
        operationId: "settle",
        summary: "End a hold with the units really used; late or again, it changes nothing",
        parameters: [idParameter("hold")],
        requestBody: body("SettleRequest"),
        responses: {
          200: answer("The key's decision after the settling", "Decision", DECISION_HEADERS),
          ...problems(...BODY_PROBLEMS),
        },
      },
    },
    "/v1/holds/{id}": {
      delete: {
        operationId: "cancel",
        summary: "End a hold of which nothing was used",
        parameters: [idParameter("hold")],
        responses: { 204: { description: "Done" }, ...problems(401, 403, 404, 429, 503) },
      },
    },
  };
}

function leasePaths(): object {
  return {
    "/v1/leases": {
      post: {
        operationId: "acquire",
        summary: "Lease units, waiting in the queue if asked to",
        parameters: [DENY],
        requestBody: body("AcquireRequest"),
        responses: decisions("A decision; if it admits, with the lease", "LeaseDecision"),
      },
    },
    "/v1/leases/socket": {
      get: {
        operationId: "acquireSocket",
        summary: "Lease units for as long as a WebSocket is open",
        description:
          "The first message is the decision, as JSON; a denial closes the socket with 4429. Later ones say " +
          "`{ renewed: { expiresAfterMs } }`. A socket whose lease has ended is closed with 4408, and one whose lease " +
          "another socket resumed with 4409. The message `ping` is answered with `pong`. With `pingWithinMs`, a holder of " +
          "whom no `ping` came for so long has lost its lease: the socket is closed with 4410.",
        parameters: [
          query("policy", { type: "string" }, true),
          query("key", { type: "string" }, true),
          query("units", { type: "integer", minimum: 1, default: 1 }),
          query("waitMs", { type: "integer", minimum: 0, default: 0 }),
          query("priority", { type: "string" }),
          query("graceMs", { type: "integer", minimum: 1 }),
          query("pingWithinMs", { type: "integer", minimum: MIN_PING_MS }),
          query("resume", { type: "string" }),
        ],
        responses: {
          101: { description: "The socket is open" },
          ...problems(400, 401, 403, 404, 422, 426, 429, 503),
        },
      },
    },
    "/v1/leases/{id}/renew": {
      post: {
        operationId: "renew",
        summary: "Move a lease's end",
        parameters: [idParameter("lease")],
        requestBody: { ...body("RenewRequest"), required: false },
        responses: { 200: answer("The lease", "Lease"), ...problems(...BODY_PROBLEMS) },
      },
    },
  };
}

const DENY = {
  name: "deny",
  in: "query",
  description: "With 429, a denial is answered with that status, for proxies that only read the status.",
  schema: { type: "string", enum: ["429"] },
};

function decisions(description: string, name: "Decision" | "HoldDecision" | "LeaseDecision"): object {
  const headers = { ...DECISION_HEADERS, ...RETRY_AFTER };
  return {
    200: answer(description, name, headers),
    ...problems(...BODY_PROBLEMS),
    ...denials("QuotaExceeded", "ReducedCapacity", headers),
  };
}

/** The addresses of the OpenAPI document at which leases are ended. */
function leaseEndPaths(): object {
  return {
    "/v1/leases/{id}/release": {
      post: {
        operationId: "releaseWithReport",
        summary:
          "End a lease, and report how the call went; the next caller in the queue gets its units at once",
        parameters: [idParameter("lease")],
        requestBody: { ...body("ReleaseRequest"), required: false },
        responses: { 204: { description: "Done" }, ...problems(...BODY_PROBLEMS) },
      },
    },
    "/v1/leases/{id}": {
      delete: {
        operationId: "release",
        summary: "End a lease; the next caller in the queue gets its units at once",
        parameters: [idParameter("lease")],
        responses: { 204: { description: "Done" }, ...problems(401, 403, 404, 429, 503) },
      },
    },
  };
}

/** The address of the OpenAPI document at which a client in its caller's process holds units. */
function reservationPaths(): object {
  return {
    "/v1/reservations": {
      post: {
        operationId: "reserve",
        summary: "Hold units of many keys in the caller's own process; needs the scope reserve",
        description:
          "One message for many keys. A client says what it has used of each key since it began, what it keeps and " +
          "what it wants, and may ask for decisions. The answer grants units for a lifetime, which the client counts " +
          "from before it sent the message. What a client holds and does not give back counts as used.",
        requestBody: body("ReservationsRequest"),
        responses: {
          200: answer(
            "An answer to each call, and the policies that the client has to know",
            "ReservationsAnswer",
          ),
          ...problems(...BODY_PROBLEMS),
        },
      },
    },
  };
}

/** The addresses of the OpenAPI document about what the limiter did. */
function statsPaths(): object {
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
