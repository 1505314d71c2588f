/** The dashboard: a page, a script and a style. It asks for everything over the calls that anybody may make. */
import type { Hono } from "hono";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import type { Env } from "../bindings/env.ts";
import { FILES, type DashboardFile } from "./dashboard-files.js";
import { toResponse } from "./problem-responses.ts";

const POLICY = [
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
  "content-security-policy": POLICY,
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
};
/** A name says what is in its file; the page says which names there are. */
const FOR_EVER = "public, max-age=31536000, immutable";
const ASK_AGAIN = "no-cache";

/** Adds the dashboard. It needs no token: whoever opens it enters one. */
export function addDashboardRoutes(app: Hono<{ Bindings: Env }>): void {
  app.get("/dashboard", (c) => answer(c.req.raw, FILES[""], ASK_AGAIN));
  app.get("/dashboard/:file", (c) => {
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
