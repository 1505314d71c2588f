/** Calls the worker from inside workerd. */
import { SELF } from "cloudflare:test";
import { TOKENS } from "./fixtures.ts";

export interface Called {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Record<string, unknown>;
}

interface Options {
  readonly token?: string | undefined;
  readonly method?: string;
  readonly body?: unknown;
  readonly headers?: Record<string, string>;
}

/** One call over HTTP with the full token, or another one; the body becomes JSON unless it is text. */
export async function call(
  path: string,
  { token = TOKENS.full, method, body, headers }: Options = {},
): Promise<Called> {
  const response = await SELF.fetch(`https://weir.test${path}`, {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers: {
      ...(token !== "" && { authorization: `Bearer ${token}` }),
      ...(body !== undefined && { "content-type": "application/json" }),
      ...headers,
    },
    ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  return {
    status: response.status,
    headers: response.headers,
    body: text === "" ? {} : (JSON.parse(text) as Record<string, unknown>),
  };
}

export function limit(policy: string, key: string, fields: Record<string, unknown> = {}): Promise<Called> {
  return call("/v1/limit", { body: { policy, key, ...fields } });
}

export function acquire(policy: string, key: string, fields: Record<string, unknown> = {}): Promise<Called> {
  return call("/v1/leases", { body: { policy, key, ...fields } });
}

export function release(id: string): Promise<Called> {
  return call(`/v1/leases/${id}`, { method: "DELETE" });
}

export function idIn({ body }: Called): string {
  const { id } = (body["lease"] ?? body["hold"]) as { id: string };
  return id;
}

export function report(policy: string, key: string): Promise<Called> {
  return call(`/v1/policies/${policy}/keys/${key}`);
}

/** A key no other test uses; storage is shared within a file. */
export function freshKey(name = "key"): string {
  return `${name}-${crypto.randomUUID()}`;
}
