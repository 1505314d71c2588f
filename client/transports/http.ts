import { LimiterError, Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, meant, pointerTo, violation } from "../../core/violations.ts";
import { Requests } from "./requests.ts";
import {
  type Address,
  ADDRESSES,
  callsBy,
  type LimiterCalls,
  type LimiterTransport,
  type PeekRequest,
  type RequestBounds,
  type Shape,
  SHAPES,
  type Signal,
  waitOf,
} from "./transport.ts";

/** Where a limiter is, and how it is reached. */
export interface HttpWay {
  /** The address of the limiter, such as `https://weir.example.workers.dev`. */
  readonly url: string;
  readonly token: string;
  /** A `fetch`; absent: the global one. Its types are the platform's, and this file is read on all of them. */
  readonly fetch?: (url: string, init: never) => Promise<unknown>;
}

/** The limiter over HTTP. */
export function overHttp(
  { url, token, fetch: given = fetch }: HttpWay,
  bounds?: RequestBounds,
): LimiterTransport {
  const send = given as (at: string, init: RequestInit) => Promise<Response>;
  const base = url.replace(/\/+$/, "");
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const requests = new Requests(bounds);
  const make = async (name: keyof LimiterCalls, asked: object, until?: Signal | number): Promise<unknown> => {
    const { method, path, shape, query, isOnlyRead }: Address = ADDRESSES[name];
    const inPath = [...path.matchAll(/:(\w+)/g)].map(([, field = ""]) => field);
    if (method !== "POST" && inPath.length > 0) requireFields(asked, [...inPath, ...(query ?? [])]);
    const [, family = ""] = /^\/v1\/(\w+)/.exec(path) ?? [];
    const filled = path.replaceAll(/:(\w+)/g, (_, field: string) =>
      partOf(asked, field, ...partIn(family, field)),
    );
    const isInPath = ([field]: [string, unknown]) => inPath.includes(field);
    const body =
      inPath.length === 0
        ? asked
        : Object.fromEntries(Object.entries(asked).filter((each) => !isInPath(each)));
    const at = base + filled + (query === undefined ? "" : queryOf(asked as PeekRequest));
    const text = method === "POST" ? { body: jsonOf(body) } : {};
    const read = async (signal: AbortSignal) =>
      answerIn(await send(at, { method, headers, signal, ...text }), shape);
    const isPatient = waitOf(asked) > 0;
    const waiting = typeof until === "number" ? { withinMs: until } : { ended: until };
    return await requests.make(read, { ...waiting, isOnlyRead: isOnlyRead === true, isPatient });
  };
  return { ...callsBy(make), close: () => requests.close() };
}

/** What a part of an address must be, and which problem it is to be none. */
function partIn(
  family: string,
  field: string,
): [allowed: string, kind?: (typeof PROBLEMS)[keyof typeof PROBLEMS]] {
  if (field === "policy") return ["the name of a policy", PROBLEMS.policyNotFound];
  if (field === "key") return ["1 to 512 bytes of UTF-8"];
  return family === "holds"
    ? ["the id of a hold", PROBLEMS.holdNotFound]
    : ["the id of a lease", PROBLEMS.leaseNotFound];
}

/** The limiter says what else is wrong with these. */
function queryOf(asked: PeekRequest): string {
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
async function answerIn(response: Response, shape: Shape): Promise<unknown> {
  const { status, url } = response;
  const text = status === 204 ? "" : await response.text();
  const type = response.headers.get("content-type") ?? "no content-type";
  if (status === 204 && shape === "nothing") return undefined;
  const answer = text === "" ? undefined : parsed(text);
  if (type.startsWith("application/problem+json")) throwProblem(answer);
  else if (status === 200 && shape !== "nothing" && SHAPES[shape](answer)) return answer;
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

/* What callers write into an address, where a wrong value would be another key, or another address. */

/**
 * The field as a part of an address.
 *
 * @param allowed what it must be
 * @param kind of the problem of a text that names nothing
 * @throws LimiterError that names the field, when it is no text, or none that an address can have
 */
function partOf(
  asked: object,
  field: string,
  allowed: string,
  kind: (typeof PROBLEMS)[keyof typeof PROBLEMS] = PROBLEMS.notAllowed,
): string {
  const value = (asked as Readonly<Record<string, unknown>>)[field];
  const isText = typeof value === "string";
  if (isText && value !== "" && value.isWellFormed()) return encodeURIComponent(value);
  throw refusedField([field], violation([field], value, allowed), isText ? kind : PROBLEMS.notAllowed);
}

/** @throws LimiterError that names a field which the call does not know, and the one that was meant */
function requireFields(asked: object, known: readonly string[]): void {
  for (const [name, value] of Object.entries(asked))
    if (value !== undefined && !known.includes(name))
      throw refusedField(
        [name],
        `${clip(name)} is not a field: there are ${known.join(", ")}${meant(name, known)}`,
      );
}

/* What a message can carry. What it cannot is bad input, and no outage. */

/** Nothing that is sent has so many levels. What has more may be without an end. */
const MAX_LEVELS = 32;

/** A message as JSON. @throws LimiterError that names a field which JSON cannot carry, or would carry as another value */
function jsonOf(body: object): string {
  requirePlain(body);
  return JSON.stringify(body);
}

/** @throws LimiterError that names the first field that is no plain data */
function requirePlain(value: unknown, path: readonly string[] = []): void {
  const refuse = (found: string, allowed: string) => {
    const field = path.length === 0 ? "the argument" : clip(path.join("."));
    return refusedField(path, `${field} is ${found}: must be ${allowed}`);
  };
  if (typeof value === "number" && !Number.isFinite(value)) throw refuse(String(value), "a finite number");
  if (["bigint", "function", "symbol"].includes(typeof value))
    throw refuse(`a ${typeof value}`, "plain data, as JSON has it");
  if (typeof value !== "object" || value === null) return;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (!Array.isArray(value) && prototype !== null && Object.getPrototypeOf(prototype) !== null)
    throw refuse(
      "constructor" in value ? `a ${value.constructor.name}` : "no plain object",
      "plain data, as JSON has it",
    );
  if (path.length === MAX_LEVELS) throw refusedField([], `a field is over ${MAX_LEVELS} levels deep`);
  for (const [name, item] of Object.entries(value)) requirePlain(item, [...path, name]);
}

/** The error of a call with one field that is not allowed. */
function refusedField(
  path: readonly string[],
  detail: string,
  kind: (typeof PROBLEMS)[keyof typeof PROBLEMS] = PROBLEMS.notAllowed,
): LimiterError {
  const errors = [{ pointer: pointerTo(path), detail }];
  return new Problem(kind, "one value is not allowed", { errors }).toError();
}
