/**
 * The HTTP worker, with its most frequent calls past the router: router, schema and promises would be a third of a
 * local decision, and the router a tenth of a call to an object. Only plain calls are answered here; all others go
 * through app.ts.
 */
import { type PlainCall, plainCall } from "../../client/local-limiter.ts";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { Call } from "../api/call.ts";
import { RECORDS } from "../api/records.ts";
import {
  decisionResponse,
  type DenyStatus,
  internalProblem,
  plainResponse,
  responseOf,
  toResponse,
} from "../api/responses.ts";
import { knownCaller, type Principal } from "../auth/tokens.ts";
import { callingFrom, clientOf, freshen, giveBackAll } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { decidedBy, findTarget, limitOf } from "../calls/limits.ts";
import { LimitRequest } from "../calls/schemas/request-schemas.ts";
import { parse } from "../calls/validate.ts";
import { app } from "./app.ts";
import { carryOut, malformedBody, MAX_BODY_BYTES, readBody, utf8, withPlace } from "./serve-call.ts";
import { STOP_HEADER } from "./stop-header.ts";

export const handler = {
  fetch(request: Request, env: Env, ctx: ExecutionContext): Response | Promise<Response> {
    return (
      answerLimit(request, env) ??
      answerOperation(request, env, ctx) ??
      answerStop(request, env) ??
      app.fetch(request, env, ctx)
    );
  },
};

const PATH = "/v1/limit";

/** The answer to a plain call; `undefined`: not plain or not permitted, and its body is unread. */
export function answerLimit(request: Request, env: Env): Response | Promise<Response> | undefined {
  if (request.method !== "POST") return undefined;
  const query = queryOf(request.url);
  if (query === undefined) return undefined;
  if (query === "") return answerBody(request, env, 200);
  return query === "deny=429" ? answerBody(request, env, 429) : answerQuery(request, env, query);
}

/** The query of /v1/limit ("": it has none); `undefined`: it is another address. */
function queryOf(url: string): string | undefined {
  // 8 skips "https://", or "http://" and one character of the host.
  const start = url.indexOf("/", 8);
  if (!url.startsWith(PATH, start)) return undefined;
  const query = url.slice(start + PATH.length);
  return query === "" || query.startsWith("?") ? query.slice(1) : undefined;
}

const QUERY =
  /^policy=([\w-]{1,64})&key=([^&#+]{1,512})(?:&cost=(\d{1,9}))?(?:&plan=([\w-]{1,64}))?(&deny=429)?$/;

function answerQuery(request: Request, env: Env, query: string): Response | Promise<Response> | undefined {
  const [, policy, encoded = "", cost = "1", plan, deny] = QUERY.exec(query) ?? [];
  if (policy === undefined || !hasNoBody(request)) return undefined;
  const call = plainCall({ policy, key: decoded(encoded), cost: Number(cost), plan });
  const principal = limitCaller(request, env);
  if (call === undefined || principal === undefined) return undefined;
  try {
    return decide(request, env, principal, call, call, deny === undefined ? 200 : 429);
  } catch (error) {
    return internalProblem(error);
  }
}

function decoded(text: string): string | undefined {
  if (!text.includes("%")) return text;
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
}

/** If no length is declared, only reading shows whether there is a body. */
function hasNoBody(request: Request): boolean {
  const declared = request.headers.get("content-length");
  return declared === "0" || (declared === null && request.body === null);
}

function answerBody(request: Request, env: Env, deny: DenyStatus): Promise<Response> | undefined {
  if (!hasPlainBody(request.headers)) return undefined;
  const principal = limitCaller(request, env);
  if (principal === undefined) return undefined;
  return withBody(request, (bytes) => decideBody(request, env, principal, bytes, deny));
}

function withBody(
  request: Request,
  answer: (bytes: ArrayBuffer) => Response | Promise<Response>,
): Promise<Response> {
  const respond = (bytes: ArrayBuffer) => {
    try {
      return answer(bytes);
    } catch (error) {
      return internalProblem(error);
    }
  };
  // Not async: each promise costs the runtime a resume.
  return request.arrayBuffer().then(respond, (error: unknown) => toResponse(malformedBody(error)));
}

/** Whether `readJson` would read the body as it is: JSON, not encoded, with a declared and allowed length. */
function hasPlainBody(headers: Headers): boolean {
  if (headers.get("content-type") !== "application/json" || headers.get("content-encoding") !== null)
    return false;
  const declared = headers.get("content-length");
  return declared !== null && Number(declared) <= MAX_BODY_BYTES;
}

/** The caller, if it was verified before and may take units. A call that must wait for the catalog goes through app.ts. */
function limitCaller(request: Request, env: Env): Principal | undefined {
  const principal = knownCaller(request.headers.get("authorization"), env.API_TOKENS);
  if (principal?.scopes.includes("limit") !== true) return undefined;
  return freshen(env) === undefined ? principal : undefined;
}

function decideBody(
  http: Request,
  env: Env,
  principal: Principal,
  bytes: ArrayBuffer,
  deny: DenyStatus,
): Response | Promise<Response> {
  let input: unknown;
  try {
    input = JSON.parse(utf8.decode(bytes));
  } catch (error) {
    return toResponse(malformedBody(error));
  }
  const request = plainCall(input) ?? parse(LimitRequest, input);
  return request instanceof Problem
    ? toResponse(request)
    : decide(http, env, principal, request, input, deny);
}

function decide(
  http: Request,
  env: Env,
  caller: Principal,
  request: PlainCall | (Parameters<typeof limitOf>[3] & Pick<PlainCall, "policy" | "key">),
  input: unknown,
  deny: DenyStatus,
): Response | Promise<Response> {
  const client: LimiterClient = clientOf(env, caller);
  const principal = callingFrom(caller, http);
  const target = findTarget(client, principal, request);
  if (target instanceof Problem) return toResponse(target);
  // Only a call that waits needs the signal, which the runtime has to make.
  const signal = "waitMs" in request && (request.waitMs ?? 0) > 0 ? http.signal : undefined;
  const decided = limitOf(client, principal, target, request, input, signal);
  if (decided instanceof Problem) return toResponse(decided);
  if (!(decided instanceof Promise)) return plainResponse(target.policy, decided, deny);
  return decided
    .then((answer) =>
      answer instanceof Problem
        ? toResponse(answer)
        : decisionResponse(decidedBy(client, target, answer), deny),
    )
    .catch(internalProblem);
}

/** Calls on holds, leases and charges: by method and route, without those that have a query. */
const OPERATIONS: ReadonlyMap<string, Call> = new Map(
  Object.values(RECORDS).flatMap((record) =>
    record.kind === "call" && record.query === undefined && /^\/v1\/(holds|leases|refund)/.test(record.path)
      ? [[`${record.method} ${record.path}`, record] as const]
      : [],
  ),
);
/** Nothing in the id of a claim has to be decoded. */
const OPERATION_PATH = /^(\/v1\/(?:holds|leases|refund))(?:\/([\w-]+\.[\w-]+)(\/[a-z]+)?)?$/;

/** The answer to a call on a hold, a lease or a charge, as `answerLimit`. */
export function answerOperation(
  request: Request,
  env: Env,
  ctx: Pick<ExecutionContext, "waitUntil">,
): Promise<Response> | undefined {
  const { url, method } = request;
  const [, base, id, end = ""] = OPERATION_PATH.exec(url.slice(url.indexOf("/", 8))) ?? [];
  if (base === undefined) return undefined;
  const record = OPERATIONS.get(`${method} ${base}${id === undefined ? "" : `/:id${end}`}`);
  if (record === undefined || (record.body !== undefined && !hasPlainBody(request.headers))) return undefined;
  const caller = limitCaller(request, env);
  if (caller === undefined) return undefined;
  const place: Record<string, string> = id === undefined ? {} : { id };
  const waitUntil = (work: Promise<unknown>) => ctx.waitUntil(work);
  const call = { env, principal: callingFrom(caller, request), request, waitUntil };
  const make = (input: unknown) =>
    carryOut(record, call, { input, deny: 200 }).then(responseOf).catch(internalProblem);
  const { body } = record;
  if (body === undefined) return make(place);
  return withBody(request, (bytes) => {
    const read = readBody(bytes, body.isOptional);
    const input = read instanceof Problem ? read : withPlace(place, read.value);
    return input instanceof Problem ? toResponse(input) : make(input);
  });
}

/** Ends a process of `npm run serve`; `undefined`: another request. On Cloudflare there is no such secret. */
function answerStop(request: Request, env: Env): Promise<Response> | undefined {
  const { STOP_SECRET } = env;
  if (STOP_SECRET === undefined || request.headers.get(STOP_HEADER) !== STOP_SECRET) return undefined;
  return stop(request, env);
}

/** A namespace of objects by id instead of by name. */
interface ObjectsById {
  idFromString(id: string): object;
  get(id: object): { rest(): Promise<void> };
}

/** Returns units, and has the named objects write their state. */
async function stop(request: Request, env: Env): Promise<Response> {
  const ids: readonly string[] = await request.json();
  await giveBackAll(env);
  const objects = env.OBJECTS as unknown as ObjectsById;
  // An id of another class fails here, and must not keep the others from writing.
  await Promise.allSettled(ids.map(async (id) => await objects.get(objects.idFromString(id)).rest()));
  return new Response(null, { status: 204 });
}
