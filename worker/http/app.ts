/** All HTTP routes: those of the records, the dashboard, and the OpenAPI document. */
import { Hono } from "hono";
import { Problem, LIMITER_PROBLEMS } from "../../core/protocol/problems.ts";
import { openApiBytes } from "../api/openapi.ts";
import { RECORDS } from "../api/records.ts";
import { internalProblem, toResponse } from "../api/responses.ts";
import { configurationProblem } from "../auth/tokens.ts";
import type { Env } from "../bindings/env.ts";
import { FILES } from "./dashboard-files.js";
import { serve } from "./serve-call.ts";

export const app = new Hono<{ Bindings: Env }>();

const methods = new Map<string, string[]>();
for (const record of Object.values(RECORDS)) {
  app.on(record.method, record.path, serve(record));
  methods.set(record.path, [...(methods.get(record.path) ?? []), record.method]);
}

app.get("/dashboard", (c) => dashboardFile(c.req.raw, "", ASK_AGAIN));
app.get("/dashboard/:file", (c) => dashboardFile(c.req.raw, c.req.param("file"), FOR_EVER));
app.get("/openapi.json", (c) => {
  const problem = configurationProblem(c.env.API_TOKENS);
  if (problem !== undefined) return toResponse(problem);
  const headers = { "cache-control": "no-cache", "content-type": "application/json" };
  return fileResponse(c.req.raw, openApiBytes(), headers);
});
for (const path of ["/dashboard", "/dashboard/:file", "/openapi.json"]) methods.set(path, ["GET"]);

const IN_ORDER = ["GET", "HEAD", "POST", "PUT", "DELETE"];
for (const [path, taken] of methods) {
  const all = taken.includes("GET") ? [...taken, "HEAD"] : taken;
  const allow = all.toSorted((a, b) => IN_ORDER.indexOf(a) - IN_ORDER.indexOf(b)).join(", ");
  app.all(path, (c) => {
    const problem = path === "/healthz" ? undefined : configurationProblem(c.env.API_TOKENS);
    if (problem !== undefined) return toResponse(problem);
    const detail = `the method is ${c.req.method}: must be one of ${allow}`;
    return toResponse(new Problem(LIMITER_PROBLEMS.methodNotAllowed, detail, { headers: { allow } }));
  });
}

app.notFound((c) => {
  const problem = configurationProblem(c.env.API_TOKENS);
  return toResponse(problem ?? new Problem(LIMITER_PROBLEMS.noRoute, "/openapi.json describes all routes"));
});
app.onError(internalProblem);

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
/** A file's name is a hash of its content; the page has the names. */
const FOR_EVER = "public, max-age=31536000, immutable";
const ASK_AGAIN = "no-cache";

/** A file of the dashboard. It needs no token: the user enters one on the page. */
function dashboardFile(request: Request, name: string, caching: string): Response {
  const file = Object.hasOwn(FILES, name) ? FILES[name] : undefined;
  if (file === undefined)
    return toResponse(
      new Problem(LIMITER_PROBLEMS.noRoute, "the dashboard has no such file: load /dashboard again"),
    );
  const headers = { ...SECURITY, "content-type": file.type, "cache-control": caching };
  return fileResponse(request, file, headers);
}

function fileResponse(
  request: Request,
  { body, etag }: { readonly body: string | Uint8Array; readonly etag: string },
  others: Readonly<Record<string, string>>,
): Response {
  const headers = { ...others, etag };
  const known = request.headers.get("if-none-match")?.split(",") ?? [];
  const isKnown = known.some((tag) => tag.trim().replace(/^W\//, "") === etag);
  return isKnown ? new Response(null, { status: 304, headers }) : new Response(body, { headers });
}
