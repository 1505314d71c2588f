/** Problems as HTTP answers them: application/problem+json, RFC 9457. */
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";

/** The response of a problem. */
export function toResponse({ code, status, title, detail, errors, headers }: Problem): Response {
  const body = { type: `urn:weir:problem:${code}`, title, status, detail };
  return problemResponse(status, errors.length === 0 ? body : { ...body, errors }, headers);
}

/** Logs an error that must not happen, and answers 500. */
export function internalProblem(error: unknown): Response {
  console.error(error);
  const detail = "this is a bug in the limiter; the error is in its log";
  return toResponse(new Problem(PROBLEMS.internal, detail));
}

/** A response of type application/problem+json. */
export function problemResponse(
  status: number,
  body: object,
  headers: Readonly<Record<string, string>> = {},
): Response {
  return new Response(JSON.stringify(body), {
    status,
    headers: { ...headers, "content-type": "application/problem+json", "cache-control": "no-store" },
  });
}
