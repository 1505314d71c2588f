import { LEAST_PING_MS } from "../calls/request-schemas.ts";
import { catalogPaths } from "./openapi-catalog.ts";
import { keyPaths } from "./openapi-key-paths.ts";
import { leaseEndPaths } from "./openapi-lease-ends.ts";
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
import { reservationPaths } from "./openapi-reservations.ts";
import { statsPaths } from "./openapi-stats.ts";

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
          query("pingWithinMs", { type: "integer", minimum: LEAST_PING_MS }),
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
