import { MOST_KEY_BYTES } from "../calls/request-schemas.ts";

/** The addresses of the OpenAPI document. */
export function openApiPaths(): object {
  return {
    "/v1/limit": {
      post: {
        operationId: "limit",
        summary: "Take units of a key's quota if they fit",
        parameters: [DENY],
        requestBody: body("LimitRequest"),
        responses: decisions("A decision, whether it admits or not"),
      },
    },
    "/v1/limit/all": {
      post: {
        operationId: "limitAll",
        summary: "Take units of up to 16 keys' quotas, of all or of none",
        parameters: [DENY],
        requestBody: body("LimitAllRequest"),
        responses: {
          200: answer("All decisions, whether they admit or not", "AllDecisions", RETRY_AFTER),
          429: problem("A denial, if the call has `?deny=429`", "QuotaExceeded", RETRY_AFTER),
          ...problems(...BODY_PROBLEMS),
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
    ...keyPaths(),
    "/healthz": {
      get: {
        operationId: "healthz",
        summary: "Whether the worker runs",
        security: [],
        responses: {
          200: {
            description: "The worker runs",
            content: {
              "application/json": { schema: { type: "object", properties: { status: { const: "ok" } } } },
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
        responses: decisions("A decision; if it admits, with the hold"),
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
        responses: { 204: { description: "Done" }, ...problems(401, 403, 404, 503) },
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
        responses: decisions("A decision; if it admits, with the lease"),
      },
    },
    "/v1/leases/socket": {
      get: {
        operationId: "acquireSocket",
        summary: "Lease units for as long as a WebSocket is open",
        description:
          "The first message is the decision, as JSON; a denial closes the socket with 4429. Later ones say " +
          "`{ renewed: { expiresAfterMs } }`. A socket whose lease has ended is closed with 4408.",
        parameters: [
          query("policy", { type: "string" }, true),
          query("key", { type: "string" }, true),
          query("units", { type: "integer", minimum: 1, default: 1 }),
          query("waitMs", { type: "integer", minimum: 0, default: 0 }),
        ],
        responses: {
          101: { description: "The socket is open" },
          426: problem("The request does not ask for a WebSocket", "Problem"),
          ...problems(401, 403, 404, 422, 503),
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
    "/v1/leases/{id}": {
      delete: {
        operationId: "release",
        summary: "End a lease; the next caller in the queue gets its units at once",
        parameters: [idParameter("lease")],
        responses: { 204: { description: "Done" }, ...problems(401, 403, 404, 503) },
      },
    },
  };
}

function keyPaths(): object {
  return {
    "/v1/policies": {
      get: {
        operationId: "policies",
        summary: "The policies this token may use",
        responses: { 200: answer("The policies", "PolicyList"), ...problems(401, 403, 503) },
      },
    },
    "/v1/policies/{policy}/keys/{key}": {
      get: {
        operationId: "peek",
        summary: "What a call of cost 1 would be answered, and how many units are held; takes nothing",
        parameters: [
          ...keyParameters,
          query("waitFor", { type: "string", enum: ["idle"] }),
          query("waitMs", { type: "integer", minimum: 0, default: 0 }),
        ],
        responses: {
          200: answer("The key's decision", "KeyReport", { ...DECISION_HEADERS, ...RETRY_AFTER }),
          ...problems(400, 401, 403, 404, 422, 503),
        },
      },
      delete: {
        operationId: "reset",
        summary: "Make the key as new; needs the scope admin",
        parameters: keyParameters,
        responses: { 204: { description: "Done" }, ...problems(400, 401, 403, 404, 422, 503) },
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

const DECISION_HEADERS = {
  "RateLimit-Policy": header('The limits, one member for each rule: `"api";q=100;w=1`'),
  RateLimit: header('What is left, one member for each rule: `"api";r=499;t=1`. Absent when degraded.'),
};
const RETRY_AFTER = {
  "Retry-After": header("Whole seconds, rounded up. Only when denied, and when waiting helps."),
};

const keyParameters = [
  { name: "policy", in: "path", required: true, schema: { type: "string" } },
  {
    name: "key",
    in: "path",
    required: true,
    description: "The key, percent-encoded.",
    schema: { type: "string", minLength: 1, maxLength: MOST_KEY_BYTES },
  },
];

const PROBLEM_DESCRIPTIONS = {
  400: "The body is not JSON, or the address is not percent-encoded UTF-8",
  401: "No token, or one that is not known",
  403: "The token lacks the scope, the policy or the key prefix",
  404: "There is no such policy, lease or hold",
  409: "The idempotency key was used for another request",
  413: "The body is over 16 KiB",
  415: "The body is not application/json",
  422: "A value is not allowed; `errors` says which and what is",
  503: "Not configured, or the key's object did not answer",
};

/** The statuses of problems that any call with a body may have. */
const BODY_PROBLEMS = [400, 401, 403, 404, 409, 413, 415, 422, 503] as const;

function decisions(description: string): object {
  return {
    200: answer(description, "Decision", { ...DECISION_HEADERS, ...RETRY_AFTER }),
    429: problem("A denial, if the call has `?deny=429`", "QuotaExceeded", {
      ...DECISION_HEADERS,
      ...RETRY_AFTER,
    }),
    ...problems(...BODY_PROBLEMS),
  };
}

function problems(...statuses: readonly (keyof typeof PROBLEM_DESCRIPTIONS)[]): Record<string, object> {
  return Object.fromEntries(
    statuses.map((status) => [status, problem(PROBLEM_DESCRIPTIONS[status], "Problem")]),
  );
}

function problem(description: string, name: string, headers: object = {}): object {
  return { description, headers, content: { "application/problem+json": { schema: reference(name) } } };
}

function answer(description: string, name: string, headers: object = {}): object {
  return { description, headers, content: { "application/json": { schema: reference(name) } } };
}

function body(name: string) {
  return { required: true, content: { "application/json": { schema: reference(name) } } };
}

function idParameter(kind: string): object {
  return {
    name: "id",
    in: "path",
    required: true,
    description: `The id of the ${kind}.`,
    schema: { type: "string" },
  };
}

function query(name: string, schema: object, required = false): object {
  return { name, in: "query", required, schema };
}

function reference(name: string): object {
  return { $ref: `#/components/schemas/${name}` };
}

function header(description: string): object {
  return { description, schema: { type: "string" } };
}
