import type { Denial } from "./denial.ts";
import { KeyRefused } from "./key-refused.ts";

/** What the limiter answers to such a key. Its table of all problems would be a fifth of what a browser loads. */
const REFUSED = {
  type: "urn:weir:problem:not-allowed",
  title: "The request was understood, but a value is not allowed",
  status: 422,
};

/** The answer to a request whose key was refused; any other error is thrown again. */
export function refusalOf(error: unknown): Denial {
  if (!(error instanceof KeyRefused)) throw error;
  const headers = new Map([
    ["content-type", "application/problem+json"],
    ["cache-control", "no-store"],
  ]);
  return { status: REFUSED.status, headers, body: JSON.stringify({ ...REFUSED, detail: error.message }) };
}
