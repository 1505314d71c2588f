import { toJsonSchema } from "@valibot/to-json-schema";
import type * as v from "valibot";
import { Decision, KeyReport, PolicyList, ProblemDetails, QuotaExceeded } from "./answer-schemas.ts";
import { LimitRequest, MOST_KEY_BYTES, RefundRequest } from "./request-schemas.ts";

let document: object | undefined;

/** The OpenAPI 3.1 document, made of the schemas that the parser uses. Made when first asked for. */
export function openApiDocument(): object {
  document ??= {
    openapi: "3.1.0",
    info: {
      title: "Weir",
      version: "0.1.0",
      summary: "An exact rate limiter for the edge",
      description:
        "Decisions are answered with 200 whether they admit or not: the call worked. Durations are integers of " +
        "milliseconds and end in `Ms`. Errors are RFC 9457 problem details.",
      license: { name: "MIT", identifier: "MIT" },
    },
    servers: [{ url: "/" }],
    security: [{ token: [] }],
    paths: paths(),
    components: {
      securitySchemes: { token: { type: "http", scheme: "bearer" } },
      schemas: {
        LimitRequest: schema(LimitRequest, "input"),
        RefundRequest: schema(RefundRequest, "input"),
        Decision: schema(Decision, "output"),
        KeyReport: schema(KeyReport, "output"),
        PolicyList: schema(PolicyList, "output"),
        Problem: schema(ProblemDetails, "output"),
        QuotaExceeded: schema(QuotaExceeded, "output"),
      },
    },
  };
  return document;
}

function paths(): object {
  return {
    "/v1/limit": {
      post: {
        operationId: "limit",
        summary: "Take units of a key's quota if they fit",
        parameters: [
          {
            name: "deny",
            in: "query",
            description:
              "With 429, a denial is answered with that status, for proxies that only read the status.",
            schema: { type: "string", enum: ["429"] },
          },
        ],
        requestBody: body("LimitRequest"),
        responses: {
          200: answer("A decision, whether it admits or not", "Decision", {
            ...DECISION_HEADERS,
            ...RETRY_AFTER,
          }),
          429: problem("Denied, and asked for with `?deny=429`", "QuotaExceeded", {
            ...DECISION_HEADERS,
            ...RETRY_AFTER,
          }),
          ...problems(400, 401, 403, 404, 409, 413, 415, 422, 503),
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
          ...problems(400, 401, 403, 404, 409, 413, 415, 422, 503),
        },
      },
    },
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
        summary: "What a call of cost 1 would be answered; takes nothing",
        parameters: keyParameters,
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
    "/healthz": {
      get: {
        operationId: "healthz",
        summary: "Whether the worker runs",
        security: [],
        responses: {
          200: {
            description: "It does",
            content: {
              "application/json": { schema: { type: "object", properties: { status: { const: "ok" } } } },
            },
          },
        },
      },
    },
  };
}

const DECISION_HEADERS = {
  "RateLimit-Policy": header('The limits, one member a rule: `"api";q=100;w=1`'),
  RateLimit: header('What is left, one member a rule: `"api";r=499;t=1`. Absent when degraded.'),
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
  404: "There is no such policy",
  409: "The idempotency key was used for another request",
  413: "The body is over 16 KiB",
  415: "The body is not application/json",
  422: "A value is not allowed; `errors` says which and what is",
  503: "Not configured, or the key's object did not answer",
};

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

function body(name: string): object {
  return { required: true, content: { "application/json": { schema: reference(name) } } };
}

function reference(name: string): object {
  return { $ref: `#/components/schemas/${name}` };
}

function header(description: string): object {
  return { description, schema: { type: "string" } };
}

/** What JSON Schema cannot say (bytes of UTF-8) stands in the description. */
function schema(source: v.GenericSchema, typeMode: "input" | "output"): object {
  const { $schema: _, ...converted } = toJsonSchema(source, { typeMode, ignoreActions: ["check"] });
  return converted;
}
