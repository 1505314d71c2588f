/** Parts of the OpenAPI document that many addresses share. */
import { PROBLEMS as KINDS } from "../../core/protocol/problems.ts";
import { METRIC_FORMATS } from "../../core/stats/metrics-text.ts";
import { reference, type SchemaName } from "./openapi-schemas.ts";

const PROBLEMS = {
  400: ["Malformed", "The body is not JSON, or the address is not percent-encoded UTF-8"],
  401: ["Unauthorized", "No token, or one that is not known"],
  403: ["Forbidden", "The token lacks the scope, the policy or the key prefix"],
  404: ["NotFound", "There is no such policy, override, lease, hold, charge or token"],
  405: ["MethodNotAllowed", "This address takes other methods: `Allow` says which"],
  409: ["IdempotencyKeyReused", "The idempotency key was used for another request"],
  412: ["PreconditionFailed", "It is not what `If-Match` or `If-None-Match` says"],
  413: ["BodyTooLarge", "The body is over 16 KiB"],
  415: ["UnsupportedMediaType", "The body is not application/json"],
  422: ["NotAllowed", "A value is not allowed; `errors` says which and what is"],
  426: ["UpgradeRequired", "The request does not ask for a WebSocket"],
  429: [
    "BoundReached",
    "A bound is reached (code `bound-reached`): there are as many as there may be, and nothing was touched",
  ],
  503: ["Unavailable", "Not configured, or the key's object did not answer"],
} as const satisfies Record<number, readonly [SchemaName, string]>;
export type Status = keyof typeof PROBLEMS;

/** The answers with these statuses, each a problem. */
export function problems(...statuses: readonly Status[]): Record<string, object> {
  return Object.fromEntries(statuses.map((status) => [status, problem(status)]));
}

function problem(status: Status): object {
  const [name, description] = PROBLEMS[status];
  return { description, headers: HEADERS[status] ?? {}, content: problemContent(status, reference(name)) };
}

/** What a denial is answered with under `?deny=429`, beside the problems of the same status. */
export function denials(exceeded: SchemaName, reduced: SchemaName, headers: object): Record<string, object> {
  const either = (status: 429 | 503, name: SchemaName, said: string) => {
    const [other, description] = PROBLEMS[status];
    return {
      description: `${said}, if the call has \`?deny=429\`. Else: ${description}`,
      headers: { ...headers, ...HEADERS[status] },
      content: problemContent(status, { oneOf: [reference(name), reference(other)] }),
    };
  };
  return {
    429: either(429, exceeded, "A denial"),
    503: either(503, reduced, "A denial since machines are too busy, or since nobody could decide"),
  };
}

function problemContent(status: Status, schema: object): object {
  const [, code, title] = Object.values(KINDS).find(([each]) => each === status) ?? KINDS.internal;
  const detail = PROBLEMS[status][1];
  const value = { type: `urn:weir:problem:${code}`, title, status, detail };
  const errors = [{ pointer: "/cost", detail: "cost is -1: must be an integer from 0 to 1000000000" }];
  const examples = { problem: { value: status === 422 ? { ...value, errors } : value } };
  return { "application/problem+json": { schema, examples } };
}

export function answer(description: string, name: SchemaName, headers: object = {}): object {
  return { description, headers, content: { "application/json": { schema: reference(name) } } };
}

export function body(name: SchemaName) {
  return { required: true, content: { "application/json": { schema: reference(name) } } };
}

function header(description: string): object {
  return { description, schema: { type: "string" } };
}

export const DECISION_HEADERS = {
  "RateLimit-Policy": header('The limits, one member for each rule: `"api";q=100;w=1`'),
  RateLimit: header(
    'What is left, one member for each rule: `"api";r=499;t=1`. Absent when no rule was asked. A policy may name an older style ' +
      "for both (`headers`).",
  ),
  "X-RateLimit-Limit": header("The most units at once. This and the two others only if the policy says so."),
  "X-RateLimit-Remaining": header("The largest cost that would pass now."),
  "X-RateLimit-Reset": header(
    "When the quota is whole, or a denied call may come again: Unix time, or seconds.",
  ),
};
export const RETRY_AFTER = {
  "Retry-After": header("Whole seconds, rounded up. Only when denied, and when waiting helps."),
};

/** Headers of problems, by status. */
const HEADERS: Readonly<Partial<Record<Status, object>>> = {
  401: { "WWW-Authenticate": header('`Bearer realm="weir"`') },
  405: { Allow: header("The methods that this address takes.") },
  426: { Upgrade: header("`websocket`") },
  429: { "Retry-After": header("Whole seconds, rounded up. Absent when waiting does not help.") },
};
export const ETAG = { ETag: { description: "Its version, for `If-Match`.", schema: { type: "string" } } };

const SAMPLE = 'weir_decisions_total{policy="api",outcome="denied",reason="quota",source="isolate"} 12';
const sample = (value: string) => ({ schema: { type: "string" }, examples: { metrics: { value } } });
/** What /metrics answers, by its type. */
export const METRICS_CONTENT = {
  [METRIC_FORMATS.openmetrics]: sample(`# TYPE weir_decisions counter\n${SAMPLE}\n# EOF\n`),
  [METRIC_FORMATS.prometheus]: sample(`# TYPE weir_decisions_total counter\n${SAMPLE}\n`),
};
