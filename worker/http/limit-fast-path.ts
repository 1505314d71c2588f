/**
 * POST /v1/limit past the router. A call that is decided in the isolate costs little more than what the runtime does
 * for a request with a body, so a router, a schema and a promise for every layer would be a third of it
 * (docs/performance.md). Only plain calls are answered here. All others go through app.ts.
 */
import type * as v from "valibot";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { MAX_UNITS } from "../../core/algorithms/algorithm.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { Problem } from "../../core/protocol/problems.ts";
import {
  decisionResponse,
  type DenyStatus,
  internalProblem,
  plainResponse,
  toResponse,
} from "../api/responses.ts";
import { knownCaller, type Principal } from "../auth/tokens.ts";
import { callingFrom, clientOf, freshen } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { limitOf } from "../calls/limits.ts";
import { LimitRequest, MAX_KEY_BYTES } from "../calls/schemas/request-schemas.ts";
import { findTarget } from "../calls/target.ts";
import { parse } from "../calls/validate.ts";
import { decode, malformed, MAX_BODY_BYTES } from "./request-input.ts";

const PATH = "/v1/limit";

/** The answer to a plain call; `undefined`: the call is not plain or not permitted, and its body has not been read. */
export function answerLimit(request: Request, env: Env): Response | Promise<Response> | undefined {
  if (request.method !== "POST") return undefined;
  const query = queryOf(request.url);
  // A call that has to wait for the catalog first takes the long way.
  if (query === undefined || freshen(env) !== undefined) return undefined;
  const deny = plainDeny(query);
  return deny === undefined ? answerQuery(request, env, query) : answerBody(request, env, deny);
}

/** The answer to a call that stands in the query. */
function answerQuery(request: Request, env: Env, query: string): Response | Promise<Response> | undefined {
  const call = plainQuery(query);
  if (call === undefined || !hasNoBody(request)) return undefined;
  const principal = knownCaller(request.headers.get("authorization"), env.API_TOKENS);
  if (principal?.scopes.includes("limit") !== true) return undefined;
  const { deny, ...asked } = call;
  try {
    return decide(clientOf(env, principal), callingFrom(principal, request), asked, asked, deny, request);
  } catch (error) {
    return internalProblem(error);
  }
}

function answerBody(request: Request, env: Env, deny: DenyStatus): Promise<Response> | undefined {
  if (!hasPlainBody(request.headers)) return undefined;
  const principal = knownCaller(request.headers.get("authorization"), env.API_TOKENS);
  if (principal?.scopes.includes("limit") !== true) return undefined;
  const respond = (bytes: ArrayBuffer) => {
    try {
      const client = clientOf(env, principal);
      return answer(client, callingFrom(principal, request), bytes, deny, request);
    } catch (error) {
      return internalProblem(error);
    }
  };
  // Not an async function: every promise less is one less for the runtime to resume.
  return request.arrayBuffer().then(respond, (error: unknown) => toResponse(malformed(error)));
}

/** The query of an address that is /v1/limit, with its `?` ("": it has none); `undefined`: it is another address. */
function queryOf(url: string): string | undefined {
  // 8 skips "https://", or "http://" and one character of the host.
  const start = url.indexOf("/", 8);
  if (!url.startsWith(PATH, start)) return undefined;
  const query = url.slice(start + PATH.length);
  return query === "" || query.startsWith("?") ? query.slice(1) : undefined;
}

/** The status of denials when the query says nothing else; `undefined`: it does. */
function plainDeny(query: string): DenyStatus | undefined {
  if (query === "") return 200;
  return query === "deny=429" ? 429 : undefined;
}

/** Whether `readJson` would read the body whole: JSON, not encoded, and of a length that is known and allowed. */
function hasPlainBody(headers: Headers): boolean {
  if (headers.get("content-type") !== "application/json" || headers.get("content-encoding") !== null)
    return false;
  const declared = headers.get("content-length");
  return declared !== null && Number(declared) <= MAX_BODY_BYTES;
}

function answer(
  client: LimiterClient,
  principal: Principal,
  bytes: ArrayBuffer,
  deny: DenyStatus,
  http: Request,
): Response | Promise<Response> {
  let input: unknown;
  try {
    input = decode(bytes);
  } catch (error) {
    return toResponse(malformed(error));
  }
  const request = plainRequest(input) ?? parse(LimitRequest, input);
  return decide(client, principal, request, input, deny, http);
}

function decide(
  client: LimiterClient,
  principal: Principal,
  request: LimitAsked | Problem,
  input: unknown,
  deny: DenyStatus,
  http: Request,
): Response | Promise<Response> {
  const target = request instanceof Problem ? request : findTarget(client, principal, request);
  if (request instanceof Problem) return toResponse(request);
  if (target instanceof Problem) return toResponse(target);
  // Only a call that waits needs the signal, which the runtime has to make.
  const signal = "waitMs" in request && request.waitMs > 0 ? http.signal : undefined;
  const decided = limitOf(client, principal, target, request, input, signal);
  if (decided instanceof Problem) return toResponse(decided);
  const { policy } = target;
  if (!(decided instanceof Promise)) return plainResponse(policy, decided, deny);
  return decided.then((late) => lateResponse(policy, late, deny)).catch(internalProblem);
}

function lateResponse(policy: Policy, decided: Decision | Problem, deny: DenyStatus): Response {
  if (decided instanceof Problem) return toResponse(decided);
  const response = decisionResponse({ policy, answer: decided }, deny);
  return response instanceof Problem ? toResponse(response) : response;
}

type LimitAsked = PlainRequest | v.InferOutput<typeof LimitRequest>;

/** Of a length that is not said, only the body itself tells whether there is one. */
function hasNoBody(request: Request): boolean {
  const declared = request.headers.get("content-length");
  return declared === "0" || (declared === null && request.body === null);
}

interface PlainRequest {
  readonly policy: string;
  readonly key: string;
  readonly cost: number;
  readonly idempotencyKey?: undefined;
}

/** A plain request, as LimitRequest would parse it; `undefined`: the schema has to parse it, or say what is wrong. */
function plainRequest(input: unknown): PlainRequest | undefined {
  if (typeof input !== "object" || input === null) return undefined;
  for (const field in input) {
    if (field !== "policy" && field !== "key" && field !== "cost") return undefined;
  }
  const { policy, key, cost = 1 } = input as { readonly [Field in keyof PlainRequest]?: unknown };
  if (typeof policy !== "string" || typeof key !== "string" || typeof cost !== "number") return undefined;
  // A UTF-16 unit takes at most three bytes of UTF-8. The schema measures longer text.
  if (key.length === 0 || key.length * 3 > MAX_KEY_BYTES || !key.isWellFormed()) return undefined;
  if (!Number.isInteger(cost) || cost < 0 || cost > MAX_UNITS) return undefined;
  return { policy, key, cost };
}

/** A call that stands in the query. */
interface QueryCall {
  readonly policy: string;
  readonly key: string;
  readonly cost: number;
  readonly deny: DenyStatus;
}

const PLAIN = /^policy=([\w-]{1,64})&key=([^&#+]{1,512})(?:&cost=(\d{1,9}))?(&deny=429)?$/;

/**
 * A call in the query whose fields stand in this order, and whose key fits whatever its characters; `undefined`: the
 * schema has to parse it, or say what is wrong.
 *
 * @param query what follows the `?`
 */
function plainQuery(query: string): QueryCall | undefined {
  const [, policy, given, cost = "1", deny] = PLAIN.exec(query) ?? [];
  if (policy === undefined || given === undefined) return undefined;
  let key = given;
  if (given.includes("%")) {
    try {
      key = decodeURIComponent(given);
    } catch {
      return undefined;
    }
  }
  // A UTF-16 unit takes at most three bytes of UTF-8. The schema measures longer text.
  if (key.length > MAX_LENGTH || !key.isWellFormed()) return undefined;
  return { policy, key, cost: Number(cost), deny: deny === undefined ? 200 : 429 };
}

/** A third of the bytes that a key may have. */
const MAX_LENGTH = 170;
