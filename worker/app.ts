import { Hono, type Context } from "hono";
import { violation } from "../durable-objects/violations.ts";
import { callLimit, callPeek, callRefund, callReset, listPolicies, type Answered } from "./calls.ts";
import { decisionHeaders } from "./headers.ts";
import { LimiterClient, type LimiterNamespace } from "./limiter-client.ts";
import { openApiDocument } from "./openapi.ts";
import { notAllowed, readJson } from "./parse.ts";
import { Problem, problemResponse, PROBLEMS } from "./problems.ts";
import type { Decision } from "./schemas.ts";
import { authenticate, configurationProblem, scopeProblem, type Principal, type Scope } from "./tokens.ts";

/** What the deployment gives the worker. */
export interface Env {
  readonly OBJECTS: LimiterNamespace;
  /** A secret; without it everything but /healthz is closed. */
  readonly API_TOKENS?: string;
}

type Ctx = Context<{ Bindings: Env }>;

export const app = new Hono<{ Bindings: Env }>();

app.post(
  "/v1/limit",
  authorized(["limit"], async (c, principal) => {
    const deny = denyStatus(c);
    if (deny instanceof Problem) return deny;
    const body = await readJson(c.req.raw);
    if (body instanceof Problem) return body;
    return decisionResponse(await callLimit(clientOf(c), principal, body.value), deny);
  }),
);
app.post(
  "/v1/refund",
  authorized(["limit"], async (c, principal) => {
    const body = await readJson(c.req.raw);
    if (body instanceof Problem) return body;
    return decisionResponse(await callRefund(clientOf(c), principal, body.value), 200);
  }),
);
app.get(
  "/v1/policies",
  authorized(["limit", "admin"], (c, principal) => c.json(listPolicies(principal), 200, NOT_STORED)),
);
const KEY_PATH = "/v1/policies/:policy/keys/:key";
app.get(
  KEY_PATH,
  authorized(["limit", "admin"], async (c, principal) => {
    const input = pathInput(c);
    if (input instanceof Problem) return input;
    return decisionResponse(await callPeek(clientOf(c), principal, input), 200);
  }),
);
app.delete(
  KEY_PATH,
  authorized(["admin"], async (c, principal) => {
    const input = pathInput(c);
    const answered = input instanceof Problem ? input : await callReset(clientOf(c), principal, input);
    return answered instanceof Problem ? answered : c.body(null, 204);
  }),
);
app.get("/healthz", (c) => c.json({ status: "ok" }, 200, NOT_STORED));
app.get(
  "/openapi.json",
  (c) => configurationProblem(c.env.API_TOKENS)?.toResponse() ?? c.json(openApiDocument()),
);

for (const [path, methods] of Object.entries({
  "/v1/limit": "POST",
  "/v1/refund": "POST",
  "/v1/policies": "GET, HEAD",
  [KEY_PATH]: "GET, HEAD, DELETE",
  "/healthz": "GET, HEAD",
  "/openapi.json": "GET, HEAD",
})) {
  app.all(path, (c) => {
    const problem = path === "/healthz" ? undefined : configurationProblem(c.env.API_TOKENS);
    if (problem !== undefined) return problem.toResponse();
    const detail = `the method is ${c.req.method}: must be one of ${methods}`;
    return new Problem(PROBLEMS.methodNotAllowed, detail, { headers: { allow: methods } }).toResponse();
  });
}

app.notFound((c) => {
  const problem = configurationProblem(c.env.API_TOKENS);
  return (problem ?? new Problem(PROBLEMS.noRoute, "see /openapi.json for what there is")).toResponse();
});

app.onError((error) => {
  console.error(error);
  return new Problem(
    PROBLEMS.internal,
    "this is a bug in the limiter; nothing about it is secret, see its log",
  ).toResponse();
});

const NOT_STORED = { "cache-control": "no-store" };

/** A handler for callers with one of these scopes. */
function authorized(
  scopes: readonly Scope[],
  handle: (c: Ctx, principal: Principal) => Response | Problem | Promise<Response | Problem>,
): (c: Ctx) => Promise<Response> {
  return async (c) => {
    const authentication = authenticate(c.req.raw.headers.get("authorization"), c.env.API_TOKENS);
    const principal = authentication instanceof Promise ? await authentication : authentication;
    if (principal instanceof Problem) return principal.toResponse();
    const answer = scopeProblem(principal, scopes) ?? (await handle(c, principal));
    return answer instanceof Problem ? answer.toResponse() : answer;
  };
}

function clientOf(c: Ctx): LimiterClient {
  return new LimiterClient(c.env.OBJECTS);
}

/** 200 for every decision, unless the caller is a proxy that only reads the status: then `?deny=429`. */
function denyStatus(c: Ctx): 200 | 429 | Problem {
  // A look at the text first: most calls have no query, and parsing one costs more than finding none.
  const deny = c.req.raw.url.includes("?") ? c.req.query("deny") : undefined;
  if (deny === undefined) return 200;
  if (deny === "429") return 429;
  return notAllowed([{ path: ["deny"], detail: violation(["deny"], deny, "429, or left out") }]);
}

function decisionResponse(answered: Answered<Decision> | Problem, deny: 200 | 429): Response | Problem {
  if (answered instanceof Problem) return answered;
  const { policy, answer } = answered;
  const headers = decisionHeaders(policy, answer);
  if (answer.success || deny === 200) return new Response(JSON.stringify(answer), { headers });
  if (answer.reason === "degraded") return problemResponse(503, temporarilyReduced(answer), headers);
  return problemResponse(429, quotaExceeded(answer), headers);
}

/** The two problem types of draft-ietf-httpapi-ratelimit-headers-11, with the decision in them. */
function quotaExceeded(decision: Decision): object {
  return {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "The quota of this key is used up",
    status: 429,
    detail:
      decision.retryAfterMs === null
        ? "the cost is over the limit: it will never be admitted"
        : `the same call passes in ${decision.retryAfterMs} ms if nobody else comes`,
    "violated-policies": decision.violated ?? [],
    decision,
  };
}

function temporarilyReduced(decision: Decision): object {
  return {
    type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "The limiter could not decide",
    status: 503,
    detail: 'the key\'s object did not answer, and this policy is onFailure = "closed"',
    "violated-policies": [],
    decision,
  };
}

/** Policy and key of an address, decoded strictly: a broken escape is an error and not another key. */
function pathInput(c: Ctx): { policy: string; key: string } | Problem {
  const [, , , policy = "", , key = ""] = new URL(c.req.url).pathname.split("/");
  try {
    return { policy: decodeURIComponent(policy), key: decodeURIComponent(key) };
  } catch {
    return new Problem(PROBLEMS.malformed, "policy and key in the address must be percent-encoded UTF-8");
  }
}
