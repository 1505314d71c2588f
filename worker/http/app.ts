import { Hono } from "hono";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { METRIC_FORMATS, type MetricFormat, metricsText } from "../../core/stats/metrics-text.ts";
import { configurationProblem, type Principal, type Scope } from "../auth/tokens.ts";
import { clientOf } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { callHold } from "../calls/holds.ts";
import { callKeyCount, callKeys } from "../calls/keys.ts";
import { callAcquire } from "../calls/leases.ts";
import { callLimitSeveral } from "../calls/limit-all.ts";
import { callLimit, callPeek, callRefund, callReset, callSetUsed } from "../calls/limits.ts";
import { listPolicies } from "../calls/policy-list.ts";
import { callReserve } from "../calls/reservations.ts";
import { callHistory, callMetrics, callTopKeys } from "../calls/stats.ts";
import { openApiText } from "../openapi/openapi.ts";
import { type Ctx, pathInput, policyInput, queryInput, withQuery } from "./addresses.ts";
import { catalogRoutes } from "./catalog-routes.ts";
import { addClaimRoutes } from "./claim-routes.ts";
import { type DashboardFile, FILES } from "./dashboard-files.js";
import {
  authorized,
  jsonAnswer,
  noContent,
  withBody,
  withBodyOrQuery,
  withoutQuery,
  withPlace,
} from "./handlers.ts";
import { allResponse, decisionResponse, internalProblem, toResponse } from "./responses.ts";

/** The address of one key. */
const KEY_PATH = "/v1/policies/:policy/keys/:key";

/** The methods of each address, for those who used another one. */
const METHODS: Readonly<Record<string, string>> = {
  "/v1/limit": "POST",
  "/v1/limit/all": "POST",
  "/v1/refund": "POST",
  "/v1/reservations": "POST",
  "/v1/holds": "POST",
  "/v1/holds/:id": "DELETE",
  "/v1/holds/:id/settle": "POST",
  "/v1/leases": "POST",
  "/v1/leases/socket": "GET",
  "/v1/leases/:id": "DELETE",
  "/v1/leases/:id/release": "POST",
  "/v1/leases/:id/renew": "POST",
  "/v1/policies": "GET, HEAD",
  "/v1/policies/:policy/keys": "GET, HEAD",
  "/v1/policies/:policy/key-count": "GET, HEAD",
  [KEY_PATH]: "GET, HEAD, PUT, DELETE",
  "/v1/policies/:policy": "GET, HEAD, PUT, DELETE",
  "/v1/policies/:policy/overrides": "GET, HEAD",
  "/v1/policies/:policy/overrides/:pattern": "GET, HEAD, PUT, DELETE",
  "/v1/policies/:policy/candidate": "GET, HEAD, PUT, DELETE",
  "/v1/policies/:policy/candidate/promote": "POST",
  "/v1/token": "GET, HEAD",
  "/v1/tokens": "GET, HEAD, POST",
  "/v1/tokens/:name": "DELETE",
  "/v1/catalog": "GET, HEAD, PUT",
  "/v1/audit": "GET, HEAD",
  "/v1/stats": "GET, HEAD",
  "/v1/stats/keys": "GET, HEAD",
  "/metrics": "GET, HEAD",
  "/dashboard": "GET, HEAD",
  "/dashboard/:file": "GET, HEAD",
  "/healthz": "GET, HEAD",
  "/openapi.json": "GET, HEAD",
};

/** All HTTP routes. */
export const app = new Hono<{ Bindings: Env }>();

/** Calls that are answered with a decision, by path. */
const DECISIONS = {
  "/v1/limit": (client, principal, input, c) => callLimit(client, principal, input, c.req.raw.signal),
  "/v1/refund": callRefund,
  "/v1/holds": callHold,
  "/v1/leases": (client, principal, input, c) =>
    callAcquire(client, principal, input, c.req.raw.signal, (work) => c.executionCtx.waitUntil(work)),
} satisfies Record<string, DecisionCall>;

/** Which of them a call needs depends on its body. */
const SCOPES_OF: Readonly<Record<string, readonly Scope[]>> = {
  "/v1/limit": ["limit", "force", "admin"],
  "/v1/refund": ["limit", "refund"],
};

type DecisionCall = (
  client: LimiterClient,
  principal: Principal,
  input: unknown,
  c: Ctx,
) => ReturnType<typeof callLimit>;

for (const [path, call] of Object.entries<DecisionCall>(DECISIONS)) {
  const handle: Parameters<typeof withBody>[0] = async (c, principal, input, deny) =>
    decisionResponse(await call(clientOf(c.env, principal), principal, input, c), deny);
  const scopes = SCOPES_OF[path] ?? ["limit"];
  app.post(
    path,
    path === "/v1/limit"
      ? withBodyOrQuery(handle, ["policy", "key"], ["cost", "waitMs"], scopes)
      : withBody(handle, { scopes }),
  );
}
app.post(
  "/v1/limit/all",
  withBody(async (c, principal, input, deny) =>
    allResponse(await callLimitSeveral(clientOf(c.env, principal), principal, input), deny),
  ),
);
app.post(
  "/v1/reservations",
  withBody(
    async (c, principal, input) =>
      jsonAnswer(await callReserve(clientOf(c.env, principal), principal, input)),
    { scopes: ["reserve"] },
  ),
);
addClaimRoutes(app);
app.get(
  "/v1/policies",
  withoutQuery(["limit", "admin"], (c, principal) =>
    jsonAnswer(listPolicies(clientOf(c.env, principal), principal)),
  ),
);
for (const [path, call] of Object.entries({
  "/v1/policies/:policy/keys": callKeys,
  "/v1/policies/:policy/key-count": callKeyCount,
})) {
  app.get(
    path,
    authorized(["admin"], async (c, principal) => {
      const input = withQuery(c, policyInput(c), ["limit"]);
      if (input instanceof Problem) return input;
      return jsonAnswer(await call(clientOf(c.env, principal), principal, input));
    }),
  );
}
app.get(
  KEY_PATH,
  authorized(["limit", "admin"], async (c, principal) => {
    const input = withQuery(c, pathInput(c), ["waitMs"]);
    if (input instanceof Problem) return input;
    const report = await callPeek(clientOf(c.env, principal), principal, input, c.req.raw.signal);
    return decisionResponse(report, 200);
  }),
);
app.put(
  KEY_PATH,
  withBody(
    async (c, principal, body) => {
      const input = withPlace(c, body);
      if (input instanceof Problem) return input;
      return decisionResponse(await callSetUsed(clientOf(c.env, principal), principal, input), 200);
    },
    { scopes: ["admin"] },
  ),
);
app.delete(
  KEY_PATH,
  withoutQuery(["admin"], async (c, principal) => {
    const input = pathInput(c);
    const answered =
      input instanceof Problem ? input : await callReset(clientOf(c.env, principal), principal, input);
    return noContent(c, answered instanceof Problem ? answered : undefined);
  }),
);
app.route("/", catalogRoutes);
addStatsRoutes(app);
addDashboardRoutes(app);
app.get("/healthz", () => jsonAnswer({ status: "ok" }));
app.get("/openapi.json", (c) => {
  const problem = configurationProblem(c.env.API_TOKENS);
  if (problem !== undefined) return toResponse(problem);
  const { text, etag } = openApiText();
  const headers = { etag, "cache-control": "no-cache", "content-type": "application/json" };
  const known = c.req.raw.headers.get("if-none-match") ?? "";
  const isKnown = known.split(",").some((tag) => tag.trim().replace(/^W\//, "") === etag);
  return isKnown ? new Response(null, { status: 304, headers }) : new Response(text, { headers });
});

for (const [path, methods] of Object.entries(METHODS)) {
  app.all(path, (c) => {
    const problem = path === "/healthz" ? undefined : configurationProblem(c.env.API_TOKENS);
    if (problem !== undefined) return toResponse(problem);
    const detail = `the method is ${c.req.method}: must be one of ${methods}`;
    return toResponse(new Problem(PROBLEMS.methodNotAllowed, detail, { headers: { allow: methods } }));
  });
}

app.notFound((c) => {
  const problem = configurationProblem(c.env.API_TOKENS);
  return toResponse(problem ?? new Problem(PROBLEMS.noRoute, "/openapi.json describes all routes"));
});
app.onError(internalProblem);

/* The dashboard: a page, a script and a style. It asks for everything over the calls that anybody may make. */

const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  "img-src 'self' data:",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");
const SECURITY = {
  "content-security-policy": CONTENT_SECURITY_POLICY,
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
};
/** A name says what is in its file; the page says which names there are. */
const FOR_EVER = "public, max-age=31536000, immutable";
const ASK_AGAIN = "no-cache";

/** Adds the dashboard. It needs no token: whoever opens it enters one. */
function addDashboardRoutes(routes: Hono<{ Bindings: Env }>): void {
  routes.get("/dashboard", (c) => answer(c.req.raw, FILES[""], ASK_AGAIN));
  routes.get("/dashboard/:file", (c) => {
    const name = c.req.param("file");
    return answer(c.req.raw, Object.hasOwn(FILES, name) ? FILES[name] : undefined, FOR_EVER);
  });
}

function answer(request: Request, file: DashboardFile | undefined, caching: string): Response {
  if (file === undefined)
    return toResponse(new Problem(PROBLEMS.noRoute, "the dashboard has no such file: load /dashboard again"));
  const { type, etag, body } = file;
  const headers = { ...SECURITY, "content-type": type, etag, "cache-control": caching };
  const known = request.headers.get("if-none-match")?.split(",") ?? [];
  const isKnown = known.some((tag) => tag.trim().replace(/^W\//, "") === etag);
  return isKnown ? new Response(null, { status: 304, headers }) : new Response(body, { headers });
}

/** Adds the routes about what the limiter did. */
function addStatsRoutes(routes: Hono<{ Bindings: Env }>): void {
  routes.get(
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
    routes.get(
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
