import { LimiterError, PROBLEMS, Problem } from "../../core/protocol/problems.ts";
import { clip, violation } from "../../core/words.ts";
import { partOf, requireFields } from "./address-parts.ts";
import type { KeyAsked, PeekAsked, Signal } from "./asked.ts";
import { waitOf, type FarSide, type RequestBounds } from "./far-side.ts";
import { jsonOf, refusedField, requirePlain } from "./plain-json.ts";
import { Requests, type Waiting } from "./requests.ts";
import { SHAPES, type Shape } from "./shapes.ts";

/** Where a limiter is, and how it is reached. */
export interface HttpWay {
  /** The address of the limiter, such as `https://weir.example.workers.dev`. */
  readonly url: string;
  readonly token: string;
  /** A `fetch`; absent: the global one. Its types are the platform's, and this file is read on all of them. */
  readonly fetch?: (url: string, init: never) => Promise<unknown>;
}

/** The limiter over HTTP. */
export function overHttp({ url, token, fetch: given = fetch }: HttpWay, bounds?: RequestBounds): FarSide {
  const send = given as (at: string, init: RequestInit) => Promise<Response>;
  const base = url.replace(/\/+$/, "");
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const requests = new Requests(bounds);
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
  return {
    limit: (asked, ended) =>
      ask("decision", "POST", "limit", { ended, isOnlyRead: true, isPatient: waitOf(asked) > 0 }, asked),
    limitAll: (asked, ended) => post("decisions", "limit/all", asked, ended),
    refund: (asked, ended) => post("decision", "refund", asked, ended),
    hold: (asked, ended) => post("decision", "holds", asked, ended),
    settle: async ({ id, ...asked }, ended) => await post("decision", `${holdPath(id)}/settle`, asked, ended),
    cancel: async (asked, ended) => {
      requireFields(asked, ["id"]);
      await ask("nothing", "DELETE", holdPath(asked.id), { ended });
    },
    acquire: (asked, ended) =>
      ask("decision", "POST", "leases", { ended, isPatient: waitOf(asked) > 0 }, asked),
    renew: async ({ id, ...asked }, ended) => await post("lease", `${leasePath(id)}/renew`, asked, ended),
    release: async ({ id, ...asked }, ended) =>
      await post("nothing", `${leasePath(id)}/release`, asked, ended),
    peek: async (asked, ended) => {
      requireFields(asked, ["policy", "key", "waitFor", "waitMs"]);
      const waiting = { ended, isOnlyRead: true, isPatient: waitOf(asked) > 0 };
      return await ask("decision", "GET", keyPath(asked) + queryOf(asked), waiting);
    },
    reset: async (asked, ended) => {
      requireFields(asked, ["policy", "key"]);
      await ask("nothing", "DELETE", keyPath(asked), { ended });
    },
    policies: (ended) => ask("policies", "GET", "policies", { ended, isOnlyRead: true }),
    reserve: (asked, withinMs) => ask("reservations", "POST", "reservations", { withinMs }, asked),
    close: () => requests.close(),
  };
}

const holdPath = (id: unknown) => `holds/${partOf({ id }, "id", "the id of a hold", PROBLEMS.holdNotFound)}`;
const leasePath = (id: unknown) =>
  `leases/${partOf({ id }, "id", "the id of a lease", PROBLEMS.leaseNotFound)}`;

function keyPath(asked: KeyAsked): string {
  const policy = partOf(asked, "policy", "the name of a policy", PROBLEMS.policyNotFound);
  return `policies/${policy}/keys/${partOf(asked, "key", "1 to 512 bytes of UTF-8")}`;
}

/** The limiter says what else is wrong with these. */
function queryOf(asked: PeekAsked): string {
  const { waitFor, waitMs } = asked;
  const query: string[] = [];
  if (waitFor !== undefined) query.push(`waitFor=${partOf(asked, "waitFor", '"idle"')}`);
  if (waitMs !== undefined) {
    requirePlain(asked);
    if (typeof waitMs !== "number")
      throw refusedField(["waitMs"], violation(["waitMs"], waitMs, "an integer"));
    query.push(`waitMs=${encodeURIComponent(waitMs)}`);
  }
  return query.length === 0 ? "" : `?${query.join("&")}`;
}

/**
 * What a response says.
 *
 * @throws LimiterError when the limiter has refused the call
 * @throws Error when whoever answered is no limiter
 */
async function answerIn<Answer>(response: Response, shape: Shape): Promise<Answer> {
  const { status, url } = response;
  const text = status === 204 ? "" : await response.text();
  const type = response.headers.get("content-type") ?? "no content-type";
  if (status === 204 && shape === "nothing") return undefined as Answer;
  const answer = text === "" ? undefined : parsed(text);
  if (type.startsWith("application/problem+json")) throwProblem(answer);
  else if (status === 200 && shape !== "nothing" && SHAPES[shape](answer)) return answer as Answer;
  const who = url === "" ? "the address" : url.split("?", 1)[0];
  throw new Error(`${who} does not answer as Weir does: ${status}, ${type}, ${JSON.stringify(clip(text))}`);
}

/** @throws LimiterError if the answer is a problem */
function throwProblem(answer: unknown): void {
  const { type: name } = (answer ?? {}) as { readonly type?: unknown };
  if (typeof name !== "string") return;
  const { errors = [], ...others } = answer as { readonly errors?: unknown };
  const problem = { ...others, errors, code: name.split(":").at(-1) ?? name };
  if (SHAPES.problem(problem))
    throw new LimiterError(problem as unknown as ConstructorParameters<typeof LimiterError>[0]);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** The error of a call that a limiter did not answer. */
export function notAnswered(detail: string): LimiterError {
  return new Problem(PROBLEMS.unavailable, detail).toError();
}
