import { LimiterError, PROBLEMS, Problem, type FieldError } from "../../core/protocol/problems.ts";
import { clip } from "../../core/words.ts";
import type { Signal } from "./asked.ts";
import type { FarSide } from "./far-side.ts";
import { jsonOf, requirePlain } from "./plain-json.ts";
import { Requests, type Waiting } from "./requests.ts";

/** Where a limiter is, and how it is reached. */
export interface HttpWay {
  /** The address of the limiter, such as `https://weir.example.workers.dev`. */
  readonly url: string;
  readonly token: string;
  /** A `fetch`; absent: the global one. Its types are the platform's, and this file is read on all of them. */
  readonly fetch?: (url: string, init: never) => Promise<unknown>;
}

/** The limiter over HTTP. */
export function overHttp({ url, token, fetch: given = fetch }: HttpWay): FarSide {
  const send = given as (at: string, init: RequestInit) => Promise<Response>;
  const base = url.replace(/\/+$/, "");
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const requests = new Requests();
  const ask = async <Answer>(
    shape: Shape,
    method: string,
    path: string,
    waiting: Waiting,
    body?: object,
  ): Promise<Answer> => {
    const text = body === undefined ? {} : { body: jsonOf(body) };
    const read = async (signal: AbortSignal) =>
      answerIn<Answer>(await send(`${base}/v1/${path}`, { method, headers, signal, ...text }), shape);
    return await requests.make(read, waiting);
  };
  const post = <Answer>(shape: Shape, path: string, body: object, ended?: Signal) =>
    ask<Answer>(shape, "POST", path, { ended }, body);
  const keyPath = ({ policy = "", key }: { readonly policy?: string; readonly key: string }) =>
    `policies/${encodeURIComponent(policy)}/keys/${encodeURIComponent(key)}`;
  const at = (id: unknown) => encodeURIComponent(String(id));
  return {
    limit: (asked, ended) => ask("decision", "POST", "limit", { ended, isOnlyRead: true }, asked),
    limitAll: (asked, ended) => post("decisions", "limit/all", asked, ended),
    refund: (asked, ended) => post("decision", "refund", asked, ended),
    hold: (asked, ended) => post("decision", "holds", asked, ended),
    settle: ({ id, ...asked }, ended) => post("decision", `holds/${at(id)}/settle`, asked, ended),
    cancel: ({ id }, ended) => ask("nothing", "DELETE", `holds/${at(id)}`, { ended }),
    acquire: (asked, ended) => post("decision", "leases", asked, ended),
    renew: ({ id, ...asked }, ended) => post("lease", `leases/${at(id)}/renew`, asked, ended),
    release: ({ id, ...asked }, ended) => post("nothing", `leases/${at(id)}/release`, asked, ended),
    peek: async (whole, ended) => {
      requirePlain(whole);
      const { waitFor, waitMs, ...asked } = whole;
      const query = new URLSearchParams({
        ...(waitFor !== undefined && { waitFor }),
        ...(waitMs !== undefined && { waitMs: String(waitMs) }),
      });
      const path = `${keyPath(asked)}${query.size > 0 ? `?${query.toString()}` : ""}`;
      return await ask("decision", "GET", path, { ended, isOnlyRead: true });
    },
    reset: (asked, ended) => ask("nothing", "DELETE", keyPath(asked), { ended }),
    policies: (ended) => ask("policies", "GET", "policies", { ended, isOnlyRead: true }),
    reserve: (asked, withinMs) => ask("answers", "POST", "reservations", { withinMs }, asked),
    close: () => requests.close(),
  };
}

/**
 * What a response says.
 *
 * @throws LimiterError when the limiter has refused the call
 * @throws Error when whoever answered is no limiter
 */
async function answerIn<Answer>(response: Response, shape: Shape): Promise<Answer> {
  const text = response.status === 204 ? "" : await response.text();
  const type = response.headers.get("content-type") ?? "no content-type";
  if (!type.startsWith("application/problem+json")) return wellFormed<Answer>(response, type, text, shape);
  const {
    type: name,
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
  throw new LimiterError({ status, title, detail, errors, code: name.split(":").at(-1) ?? name });
}

/**
 * What an answer has to have. A wrong address, a proxy or a sign-in page may answer 200 too, and what it says must be
 * taken for no decision.
 */
const SHAPES = {
  nothing: () => false,
  decision: ({ success, rules }) => typeof success === "boolean" && Array.isArray(rules),
  decisions: ({ success, decisions }) => typeof success === "boolean" && Array.isArray(decisions),
  lease: ({ id, expiresAfterMs }) => typeof id === "string" && typeof expiresAfterMs === "number",
  policies: ({ policies }) => Array.isArray(policies),
  answers: ({ answers, policies }) => Array.isArray(answers) && typeof policies === "object",
} as const satisfies Record<string, (answer: Readonly<Record<string, unknown>>) => boolean>;

type Shape = keyof typeof SHAPES;

/** @throws Error that says what was answered instead, if it is not of this shape */
function wellFormed<Answer>(response: Response, type: string, text: string, shape: Shape): Answer {
  const { status, url } = response;
  if (status === 204 && shape === "nothing") return undefined as Answer;
  const answer = status === 200 ? parsed(text) : undefined;
  if (typeof answer === "object" && answer !== null && SHAPES[shape](answer)) return answer as Answer;
  const who = url === "" ? "the address" : url.split("?", 1)[0];
  throw new Error(`${who} does not answer as Weir does: ${status}, ${type}, ${JSON.stringify(clip(text))}`);
}

function parsed(text: string): Readonly<Record<string, unknown>> | null | undefined {
  try {
    return JSON.parse(text) as Readonly<Record<string, unknown>> | null;
  } catch {
    return undefined;
  }
}

/** The error of a call that a limiter did not answer. */
export function notAnswered(detail: string): LimiterError {
  return new Problem(PROBLEMS.unavailable, detail).toError();
}
