import { Hono } from "hono";
import type { LimiterClient } from "../../client/limiter-client.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import type { Scope } from "../auth/token-entries.ts";
import { configurationProblem, type Principal } from "../auth/tokens.ts";
import { clientOf } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { callHold } from "../calls/holds.ts";
import { callKeyCount, callKeys } from "../calls/keys.ts";
import { callAcquire } from "../calls/leases.ts";
import { callLimitSeveral } from "../calls/limit-several.ts";
import { callPeek, callLimit, callRefund, callReset } from "../calls/limits.ts";
import { listPolicies } from "../calls/policy-list.ts";
import { callReserve } from "../calls/reservations.ts";
import { callSetUsed } from "../calls/set-used.ts";
import { pathInput, policyInput, withQuery, type Ctx } from "./addresses.ts";
import { catalogRoutes } from "./catalog-routes.ts";
import { addClaimRoutes } from "./claim-routes.ts";
import { addDashboardRoutes } from "./dashboard-routes.ts";
import {
  authorized,
  jsonAnswer,
  noContent,
  withBody,
  withBodyOrQuery,
  withPlace,
  withoutQuery,
} from "./handlers.ts";
import { KEY_PATH, METHODS } from "./methods.ts";
import { openApiText } from "./openapi.ts";
import { internalProblem, toResponse } from "./problem-responses.ts";
import { allResponse, decisionResponse } from "./responses.ts";
import { addStatsRoutes } from "./stats-routes.ts";

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
