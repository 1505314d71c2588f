/** Calls of the limiter. */
import type { Problem } from "./answers.ts";

export type Answer<Value> =
  | { readonly value: Value; readonly etag: string | undefined; readonly problem?: undefined }
  | { readonly value?: undefined; readonly problem: Problem };

export interface CallOptions {
  readonly body?: unknown;
  readonly query?: Readonly<Record<string, string | undefined>>;
  readonly ifMatch?: string | undefined;
  readonly ifNoneMatch?: "*" | undefined;
  readonly accept?: string;
}

export type Ask = <Value>(method: string, address: string, options?: CallOptions) => Promise<Answer<Value>>;

/**
 * Calls with this token.
 * @param onRefused is called when the token is no longer valid
 * @param onChanged is called, and waited for, after a change, and after one that came too late
 */
export function askWith(token: string, onRefused: () => void, onChanged = () => Promise.resolve()): Ask {
  return async <Value>(
    method: string,
    address: string,
    options: CallOptions = {},
  ): Promise<Answer<Value>> => {
    const isChange = method !== "GET" && options.query?.["dryRun"] === undefined;
    let response: Response;
    try {
      response = await fetch(address + queryText(options.query), requestOf(token, method, options));
    } catch {
      return { problem: unreachable(isChange) };
    }
    if (response.status === 401) onRefused();
    const text = await response.text().catch(() => "");
    if (response.status === 412 || (response.ok && isChange)) await onChanged();
    return response.ok ? valueOf<Value>(response, text) : { problem: problemOf(response, text) };
  };
}

/** The parts of an address, each percent-encoded. */
export function path(...parts: readonly string[]): string {
  return `/v1/${parts.map((part) => encodeURIComponent(part.toWellFormed())).join("/")}`;
}

/** Whether a key can be part of an address: browsers take these two for folders. */
export function canStandInAddress(key: string): boolean {
  return key !== "." && key !== "..";
}

function queryText(query: CallOptions["query"] = {}): string {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    value === undefined ? [] : [`${name}=${encodeURIComponent(value.toWellFormed())}`],
  );
  return pairs.length === 0 ? "" : `?${pairs.join("&")}`;
}

function requestOf(token: string, method: string, options: CallOptions): RequestInit {
  const headers = {
    authorization: `Bearer ${token}`,
    ...(options.body !== undefined && { "content-type": "application/json" }),
    ...(options.ifMatch !== undefined && { "if-match": options.ifMatch }),
    ...(options.ifNoneMatch !== undefined && { "if-none-match": options.ifNoneMatch }),
    ...(options.accept !== undefined && { accept: options.accept }),
  };
  const body = options.body === undefined ? {} : { body: JSON.stringify(options.body) };
  return { method, headers, cache: "no-store", credentials: "omit", ...body };
}

function valueOf<Value>(response: Response, text: string): Answer<Value> {
  const isJson = response.headers.get("content-type")?.startsWith("application/json") === true;
  const value = (isJson ? (JSON.parse(text) as unknown) : text) as Value;
  return { value, etag: response.headers.get("etag") ?? undefined };
}

function problemOf(response: Response, text: string): Problem {
  try {
    const problem = JSON.parse(text) as Problem;
    if (typeof problem.detail === "string") return problem;
  } catch {
    // The answer is from something in between, and not from the limiter.
  }
  return {
    type: "",
    title: "An answer that is not the limiter's",
    status: response.status,
    detail: `the answer has status ${response.status}, and is not the limiter's`,
  };
}

function unreachable(isChange: boolean): Problem {
  const title = "The limiter cannot be reached";
  const more = isChange ? ": the change may have been made, so check before you repeat it" : "";
  return { type: "", title, status: 0, detail: title + more };
}
