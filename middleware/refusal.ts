import { PROBLEMS } from "../core/protocol/problems.ts";
import type { Denial } from "./denial.ts";
import { KeyRefused } from "./key-refused.ts";

/** The answer to a request whose key was refused; any other error is thrown again. */
export function refusalOf(error: unknown): Denial {
  if (!(error instanceof KeyRefused)) throw error;
  const [status, code, title] = PROBLEMS.notAllowed;
  const headers = new Map([
    ["content-type", "application/problem+json"],
    ["cache-control", "no-store"],
  ]);
  const body = { type: `urn:weir:problem:${code}`, title, status, detail: error.message };
  return { status, headers, body: JSON.stringify(body) };
}
