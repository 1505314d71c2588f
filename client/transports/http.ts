import { LimiterError, PROBLEMS, Problem, type FieldError } from "../../core/protocol/problems.ts";
import type { Signal } from "./asked.ts";
import type { FarSide } from "./far-side.ts";

/** Where a limiter is, and how it is reached. */
export interface HttpWay {
  /** The address of the limiter, such as `https://weir.example.workers.dev`. */
  readonly url: string;
  readonly token: string;
  /** A `fetch`; absent: the global one. Its types are the platform's, and this file is read on all of them. */
  readonly fetch?: (url: string, init: never) => Promise<unknown>;
}

/** No request takes longer, in milliseconds, beside what it may wait; whoever asked has mostly stopped waiting before. */
const MOST_MS = 30_000;

/** The limiter over HTTP. */
export function overHttp({ url, token, fetch: given = fetch }: HttpWay): FarSide {
  const send = given as (at: string, init: RequestInit) => Promise<Response>;
  const base = url.replace(/\/+$/, "");
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const ask = async <Answer>(
    method: string,
    path: string,
    body?: object,
    ended?: Signal,
  ): Promise<Answer> => {
    const waitMs = body !== undefined && "waitMs" in body ? Number(body.waitMs) : 0;
    const late = AbortSignal.timeout(MOST_MS + (waitMs > 0 ? waitMs : 0));
    const signal = ended === undefined ? late : AbortSignal.any([late, ended as AbortSignal]);
    const text = body === undefined ? {} : { body: textOf(body) };
    const response = await send(`${base}/v1/${path}`, { method, headers, signal, ...text });
    return await answerIn<Answer>(response);
  };
  const post = <Answer>(path: string, body: object, ended?: Signal) => ask<Answer>("POST", path, body, ended);
  const keyPath = ({ policy = "", key }: { readonly policy?: string; readonly key: string }) =>
    `policies/${encodeURIComponent(policy)}/keys/${encodeURIComponent(key)}`;
  const at = (id: unknown) => encodeURIComponent(String(id));
  return {
    limit: (asked, ended) => post("limit", asked, ended),
    limitAll: (asked) => post("limit/all", asked),
    refund: (asked) => post("refund", asked),
    hold: (asked) => post("holds", asked),
    settle: ({ id, ...asked }) => post(`holds/${at(id)}/settle`, asked),
    cancel: ({ id }) => ask("DELETE", `holds/${at(id)}`),
    acquire: (asked) => post("leases", asked),
    renew: ({ id, ...asked }) => post(`leases/${at(id)}/renew`, asked),
    release: ({ id, ...asked }) => post(`leases/${at(id)}/release`, asked),
    peek: ({ waitFor, waitMs, ...asked }) => {
      const query = new URLSearchParams({
        ...(waitFor !== undefined && { waitFor }),
        ...(waitMs !== undefined && { waitMs: String(waitMs) }),
      });
      return ask("GET", `${keyPath(asked)}${query.size > 0 ? `?${query.toString()}` : ""}`);
    },
    reset: (asked) => ask("DELETE", keyPath(asked)),
    policies: () => ask("GET", "policies"),
    reserve: (asked) => post("reservations", asked),
  };
}

/** A message as JSON. @throws LimiterError when it has what JSON cannot carry: that is bad input, and no outage */
function textOf(body: object): string {
  const refuse = (field: string, found: string) => {
    const errors = [
      { pointer: `/${field}`, detail: `${field} is ${found}: must be plain data, as JSON has it` },
    ];
    return new Problem(PROBLEMS.notAllowed, "one value is not allowed", { errors }).toError();
  };
  const plain = (field: string, value: unknown): unknown => {
    if (["bigint", "function", "symbol"].includes(typeof value)) throw refuse(field, `a ${typeof value}`);
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    const prototype: unknown = Object.getPrototypeOf(value);
    if (prototype === null || Object.getPrototypeOf(prototype) === null) return value;
    throw refuse(field, `a ${value.constructor.name}`);
  };
  try {
    return JSON.stringify(body, plain);
  } catch (error) {
    throw error instanceof LimiterError ? error : refuse("", "a circle");
  }
}

/**
 * What a response says.
 *
 * @throws LimiterError when the limiter has refused the call
 * @throws Error when whoever answered is no limiter
 */
async function answerIn<Answer>(response: Response): Promise<Answer> {
  if (response.status === 204) return undefined as Answer;
  const text = await response.text();
  const isProblem = response.headers.get("content-type")?.startsWith("application/problem+json") === true;
  if (response.ok && !isProblem) return JSON.parse(text) as Answer;
  if (!isProblem) throw new Error(`the limiter answered ${response.status} without a problem`);
  const {
    type,
    title,
    status,
    detail,
    errors = [],
  } = JSON.parse(text) as {
    readonly type: string;
    readonly title: string;
    readonly status: number;
    readonly detail: string;
    readonly errors?: readonly FieldError[];
  };
  throw new LimiterError({ status, title, detail, errors, code: type.split(":").at(-1) ?? type });
}

/** The error of a call that a limiter did not answer. */
export function notAnswered(detail: string): LimiterError {
  return new Problem(PROBLEMS.unavailable, detail).toError();
}
