/** The calls on holds and leases. */
import { ADDRESSES } from "../../client/transports/transport.ts";
import { readClockMs } from "../../core/clock.ts";
import {
  type Answered,
  CLOSE_BROKEN,
  CLOSE_FAILED,
  CLOSE_NORMAL,
  Problem,
  LIMITER_PROBLEMS,
} from "../../core/protocol/problems.ts";
import * as calls from "../calls/claims.ts";
import { MIN_PING_MS } from "../calls/schemas/request-schemas.ts";
import { call, type CallContext, DECISION_HEADERS, DENIAL_HEADERS as headers, query } from "./call.ts";
import * as examples from "./examples.ts";
import { DECISION, JSON_ANSWER, NOTHING, RESPONSE } from "./responses.ts";

const HOLDS = { tag: "holds", scopes: ["limit"] } as const;
const LEASES = { tag: "leases", scopes: ["limit"] } as const;
const DENIALS = ["QuotaExceeded", "ReducedCapacity", headers] as const;

export const claimRecords = {
  hold: call({
    ...ADDRESSES.hold,
    ...HOLDS,
    body: { schema: "HoldRequest" },
    handle: calls.callHold,
    answer: DECISION,
    summary: "Set units apart until it is known how many were used",
    ok: { says: "A decision; if it admits, with the hold", schema: "HoldDecision", headers },
    denials: DENIALS,
    example: {
      request: { ...examples.LLM, units: examples.UNITS, ttlMs: 60_000 },
      answers: { admitted: { ...examples.estimated(98_800), hold: examples.HOLD } },
    },
  }),
  settle: call({
    ...ADDRESSES.settle,
    ...HOLDS,
    body: { schema: "SettleRequest" },
    handle: calls.callSettle,
    answer: DECISION,
    summary:
      "End a hold with the units really used; late or again, it changes nothing, and after a cancel it is a 404",
    ok: { says: "The key's decision after the settling", schema: "Decision", headers: DECISION_HEADERS },
    example: { request: { used: { tokens: 830 } }, answers: { settled: examples.estimated(99_170) } },
  }),
  cancel: call({
    ...ADDRESSES.cancel,
    ...HOLDS,
    handle: calls.callCancel,
    answer: NOTHING,
    summary: "End a hold of which nothing was used",
  }),
  acquire: call({
    ...ADDRESSES.acquire,
    ...LEASES,
    body: { schema: "AcquireRequest" },
    on: "key",
    handle: calls.callAcquire,
    answer: DECISION,
    summary: "Lease units, waiting in the queue if asked to",
    ok: { says: "A decision; if it admits, with the lease", schema: "LeaseDecision", headers },
    denials: DENIALS,
    example: {
      request: { ...examples.EXPORT, waitMs: 5_000 },
      answers: { granted: { ...examples.leased, lease: examples.LEASE }, denied: examples.waited },
      denied: { ...examples.quotaExceeded, "violated-policies": ["export"], decision: examples.waited },
    },
  }),
  acquireSocket: call({
    method: "GET",
    path: "/v1/leases/socket",
    ...LEASES,
    query: [
      query("policy", { type: "string" }, true),
      query("key", { type: "string" }, true),
      query("units", { type: "integer", minimum: 1, default: 1 }),
      query("waitMs", { type: "integer", minimum: 0, default: 0 }),
      query("priority", { type: "string" }),
      query(
        "plan",
        { type: "string" },
        false,
        "One of the policy's `plans`. Absent: the policy's own figures.",
      ),
      query("group", { type: "string" }, false, "Whose call it is. Needed under a policy with `fair`."),
      query("graceMs", { type: "integer", minimum: 1 }),
      query("pingWithinMs", { type: "integer", minimum: MIN_PING_MS }),
      query("resume", { type: "string" }),
    ],
    handle: openSocket,
    answer: RESPONSE,
    summary: "Lease units for as long as a WebSocket is open",
    description:
      "The first message is the decision, as JSON; a denial closes the socket with 4429. Later ones say " +
      "`{ renewed: { expiresAfterMs } }`. A socket whose lease has ended is closed with 4408, and one whose lease " +
      "another socket resumed with 4409. The message `ping` is answered with `pong`. With `pingWithinMs`, a holder of " +
      "whom no `ping` came for so long has lost its lease: the socket is closed with 4410.",
    responses: { 101: { description: "The socket is open" } },
    alsoProblems: [426],
  }),
  renew: call({
    ...ADDRESSES.renew,
    ...LEASES,
    body: { schema: "RenewRequest", isOptional: true },
    handle: calls.callRenew,
    answer: JSON_ANSWER,
    summary: "Move a lease's end",
    ok: { says: "The lease", schema: "Lease" },
    example: { request: { ttlMs: 60_000 }, answers: { renewed: examples.LEASE } },
  }),
  releaseWithReport: call({
    ...ADDRESSES.release,
    // Over the service binding `release` takes the report, too.
    on: undefined,
    ...LEASES,
    body: { schema: "ReleaseRequest", isOptional: true },
    handle: calls.callRelease,
    answer: NOTHING,
    summary: "End a lease, and report how the call went; the next caller in the queue gets its units at once",
    example: { request: { outcome: "ok", durationMs: 1_250 } },
  }),
  release: call({
    method: "DELETE",
    path: "/v1/leases/:id",
    ...LEASES,
    on: "lease",
    handle: calls.callRelease,
    answer: NOTHING,
    summary: "End a lease; the next caller in the queue gets its units at once",
  }),
};

/* A lease that ends with a WebSocket: the handshake, and what is passed on between a caller and an object. */

async function openSocket(context: CallContext, input: unknown): Answered<Response> {
  const { env, request } = context;
  if (request?.headers.get("upgrade")?.toLowerCase() !== "websocket") {
    const detail = "the Upgrade header must be websocket";
    return new Problem(LIMITER_PROBLEMS.upgradeRequired, detail, { headers: { upgrade: "websocket" } });
  }
  const answered = await calls.callSocket(context, input);
  if (answered instanceof Problem) return answered;
  return env.SOCKETS === "relayed" ? relayed(request, answered.answer) : answered.answer;
}

/** The codes of a socket that broke, and of one that was closed without a code: RFC 6455, section 7.1.5. */
const BROKEN = 1006;
const WITHOUT_CODE = 1005;
const PING = "ping";
/** Closer pings are dropped, in milliseconds: a caller that reads no answers would fill the memory with them. */
const PINGS_APART_MS = 100;

/**
 * Whether the runtime will write the 101: a handshake over HTTP has a key and this version (RFC 6455, section 4.2.1). The
 * runtime refuses others after the worker has answered, and only the end that the worker answered with learns of it.
 */
function isHandshake({ headers: fields }: Request): boolean {
  return fields.has("sec-websocket-key") && fields.get("sec-websocket-version") === "13";
}

/**
 * Passes on the messages between a caller and an object, rather than the socket itself. When the runtime cannot write the
 * 101 because the connection was reset, workerd (2026-10-23) keeps a socket that was passed on open for ever, and its
 * object is not notified; of a socket that ends here it is.
 */
function relayed(request: Request, answer: Response): Response {
  const { webSocket: object } = answer;
  if (object === null || !isHandshake(request)) return answer;
  const { 0: client, 1: caller } = new WebSocketPair();
  object.accept();
  caller.accept();
  let pingedMs = -Infinity;
  caller.addEventListener("message", ({ data }) => {
    const nowMs = readClockMs();
    if (data !== PING || nowMs - pingedMs < PINGS_APART_MS) return;
    pingedMs = nowMs;
    if (object.readyState === WebSocket.OPEN) object.send(PING);
  });
  object.addEventListener("message", ({ data }) => {
    if (caller.readyState === WebSocket.OPEN) caller.send(data as string);
  });
  // A caller may send any code, also one that may not be passed on.
  caller.addEventListener("close", ({ wasClean }) => object.close(wasClean ? CLOSE_NORMAL : CLOSE_BROKEN));
  caller.addEventListener("error", () => object.close(CLOSE_BROKEN));
  const failed = () => caller.close(CLOSE_FAILED, "the limiter failed");
  object.addEventListener("close", ({ code, reason }) => {
    if (code === BROKEN) failed();
    else if (code === WITHOUT_CODE) caller.close();
    else caller.close(code, reason);
  });
  object.addEventListener("error", failed);
  return new Response(null, { status: 101, webSocket: client });
}
