/** Parts of the OpenAPI document that many addresses share. */

export const PROBLEM_DESCRIPTIONS = {
  400: "The body is not JSON, or the address is not percent-encoded UTF-8",
  401: "No token, or one that is not known",
  403: "The token lacks the scope, the policy or the key prefix",
  404: "There is no such policy, lease, hold or charge",
  409: "The idempotency key was used for another request",
  413: "The body is over 16 KiB",
  415: "The body is not application/json",
  422: "A value is not allowed; `errors` says which and what is",
  429: "A bound is reached (code `bound-reached`): there are as many as there may be, and nothing was touched",
  503: "Not configured, the key's object did not answer, or with `?deny=429` the call was shed",
};

/** The statuses of problems that any call with a body may have. */
export const BODY_PROBLEMS = [400, 401, 403, 404, 409, 413, 415, 422, 429, 503] as const;

export function problems(
  ...statuses: readonly (keyof typeof PROBLEM_DESCRIPTIONS)[]
): Record<string, object> {
  return Object.fromEntries(
    statuses.map((status) => [status, problem(PROBLEM_DESCRIPTIONS[status], "Problem")]),
  );
}

export function problem(description: string, name: string, headers: object = {}): object {
  return { description, headers, content: { "application/problem+json": { schema: reference(name) } } };
}

export function answer(description: string, name: string, headers: object = {}): object {
  return { description, headers, content: { "application/json": { schema: reference(name) } } };
}

export function body(name: string) {
  return { required: true, content: { "application/json": { schema: reference(name) } } };
}

export function idParameter(kind: string): object {
  return {
    name: "id",
    in: "path",
    required: true,
    description: `The id of the ${kind}.`,
    schema: { type: "string" },
  };
}

export function query(name: string, schema: object, required = false): object {
  return { name, in: "query", required, schema };
}

export function reference(name: string): object {
  return { $ref: `#/components/schemas/${name}` };
}

export function header(description: string): object {
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
