/** The laws of every answer to any request. */
import type { RawAnswer } from "../raw-connection.ts";
import type { FuzzedRequest } from "./http-requests.ts";
import type { Operation, Operations } from "./openapi-operations.ts";

/** The largest answer to anything but /openapi.json, in UTF-16 units. */
const MAX_ANSWER = 65_536;
const MAX_ERRORS = 20;
/** Debts are cut where doubles stop being exact. */
const MAX_FIGURE = 2 ** 53;
const PROBLEM = "application/problem+json";

/** Whether the call concerns the catalog or objects of the bundle, which this limiter lacks. */
function isUnbound(body: string): boolean {
  return body.includes("urn:weir:problem:not-configured") && /no binding (?:CATALOG|STATS)/.test(body);
}

/** The fault of an answer, if any. `isSampled`: its schema is checked too. */
export function faultIn(
  operations: Operations,
  request: FuzzedRequest,
  answered: RawAnswer,
  isSampled: boolean,
): string | undefined {
  const { method, target, isExact } = request;
  const { status, contentType, body } = answered;
  if (isRefusedHandshake(request, answered)) return undefined;
  // A HEAD does not say why.
  if (isUnbound(body) || (method === "HEAD" && status === 503)) return undefined;
  if (status >= 500 && !(status === 503 && isMadeTwice(body))) return "a status of 5xx";
  if (body.length > MAX_ANSWER && !target.includes("openapi.json")) return "an answer of over 64 KiB";
  const operation = operations.at(method, target.split(/[?#]/)[0] ?? "");
  const stray = strayStatus(operation, isExact, status);
  if (stray !== undefined) return stray;
  if (method === "HEAD" || status === 204 || status === 101) return body === "" ? undefined : "a body";
  const answer = parsed(body);
  if (typeof answer !== "object" || answer === null) return "an answer that is no JSON";
  const fields = answer as Record<string, unknown>;
  const wrong =
    status >= 400
      ? faultInProblem(fields, status, contentType)
      : (faultInType(operation, status, contentType) ?? faultInDecisions(fields));
  if (wrong !== undefined || !isSampled) return wrong;
  return operation
    ?.check(
      status,
      contentType,
    )?.(answer)
    .map((each) => `not what the document says: ${each}`)[0];
}

/**
 * The same for bytes that may be no HTTP. The runtime refuses most: also with 501 (an unknown method) and
 * 505, and CONNECT, which no worker can answer, with a 500.
 */
export function faultInLastWords(bytes: Buffer, text: string): string | undefined {
  const isServerError = /^HTTP\/1\.1 5(?!01|05)/m.test(text);
  return isServerError && !isUnbound(text) && !bytes.includes("CONNECT ") ? "a status of 5xx" : undefined;
}

/** The runtime refuses WebSocket handshakes that break RFC 6455, without a problem document. */
function isRefusedHandshake({ bytes }: FuzzedRequest, { status, contentType, body }: RawAnswer): boolean {
  const isRefused =
    status >= 400 && status < 500 && contentType === "text/plain" && /^(ERROR: .*)?$/.test(body);
  return isRefused && /^upgrade: *websocket/im.test(bytes.toString("latin1"));
}

function strayStatus(operation: Operation | undefined, isExact: boolean, status: number): string | undefined {
  // The document promises a 405 for other methods than the operation's.
  const isOwnMethod = isExact && status === 405;
  if (operation?.promises(status) !== undefined && !isOwnMethod) return undefined;
  // Addresses that are no operation, or no longer one, get this answer.
  if ((operation === undefined || !isExact) && [404, 405].includes(status)) return undefined;
  return `a status that ${operation?.id ?? "an address without an operation"} does not have in the document`;
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

function faultInProblem(
  { type, title, status: told, detail, errors = [] }: Record<string, unknown>,
  status: number,
  contentType: string,
): string | undefined {
  if (contentType !== PROBLEM) return "an error that is no problem document";
  const isWhole = [type, title, detail].every((text) => typeof text === "string" && text !== "");
  if (!isWhole || told !== status) return "a problem document that lacks something";
  if (!Array.isArray(errors) || errors.length > MAX_ERRORS) return "more than 20 errors";
  return errors.every(isFieldError) ? undefined : "an error that does not say where or what";
}

function isFieldError(error: unknown): boolean {
  const { pointer, detail } = error as Record<string, unknown>;
  return typeof pointer === "string" && typeof detail === "string" && detail.length < 2_000;
}

function faultInType(
  operation: Operation | undefined,
  status: number,
  contentType: string,
): string | undefined {
  const promised = operation?.promises(status);
  return promised?.includes(contentType) === false ? `a content type ${contentType}` : undefined;
}

function faultInDecisions(answer: Record<string, unknown>): string | undefined {
  const { decisions } = answer;
  if (Array.isArray(decisions))
    return (decisions as Record<string, unknown>[]).map(faultInDecision).find((wrong) => wrong !== undefined);
  return "success" in answer ? faultInDecision(answer) : undefined;
}

/** Two simultaneous calls with one idempotency key, one denied: the other one has to be repeated. */
export function isMadeTwice(text: string): boolean {
  return text.includes("this call was made twice at once, and the other one was denied");
}

function isWait(ms: unknown): boolean {
  return Number.isInteger(ms) && Number(ms) >= 0;
}

/** The same over HTTP and over the binding. No policy here has a deadline that a busy machine could miss. */
export function faultInDecision(answer: Record<string, unknown>): string | undefined {
  const { success, limit, remaining, resetAfterMs, retryAfterMs, rules, reason, problem } = answer;
  if (reason === "refused") {
    const { status, code, detail } = (problem ?? {}) as Record<string, unknown>;
    const isKnown = status === 409 || status === 429;
    return !success && isKnown && code !== "" && detail !== "" ? undefined : "a refusal that lacks something";
  }
  // Shed since machines are busy, in shadow or not: no rule was evaluated.
  const isShed = (reason === "shed" || reason === "shadow") && Array.isArray(rules) && rules.length === 0;
  if (isShed) return isWait(retryAfterMs) ? undefined : "a call that was shed and is not told for how long";
  const isWhole = typeof success === "boolean" && Array.isArray(rules) && rules.length > 0;
  if (!isWhole || reason === "degraded") return "a decision that lacks something";
  const figures = [limit, remaining, resetAfterMs, retryAfterMs ?? 0];
  if (
    !figures.every(
      (figure) => Number.isInteger(figure) && Number(figure) >= 0 && Number(figure) <= MAX_FIGURE,
    )
  )
    return "a decision with a figure that is none";
  if (success && reason !== "shadow" && retryAfterMs !== 0) return "an admission that has to wait";
  return undefined;
}
