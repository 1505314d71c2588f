/** The calls on holds and leases. */
import { ADDRESSES } from "../../client/transports/transport.ts";
import { callCancel, callHold, callSettle } from "../calls/holds.ts";
import { callAcquire, callRelease, callRenew } from "../calls/leases.ts";
import { MIN_PING_MS } from "../calls/schemas/request-schemas.ts";
import { call, query } from "./call.ts";
import * as examples from "./examples.ts";
import { openSocket } from "./lease-sockets.ts";
import { DECISION_HEADERS, RETRY_AFTER } from "./openapi-parts.ts";
import { DECISION, JSON_ANSWER, NOTHING, RESPONSE } from "./responses.ts";

const headers = { ...DECISION_HEADERS, ...RETRY_AFTER };
const NOBODY_ABORTS = new AbortController().signal;

export const claimRecords = {
  hold: call({
    ...ADDRESSES.hold,
    tag: "holds",
    scopes: ["limit"],
    body: { schema: "HoldRequest" },
    bound: "key",
    handle: ({ client, principal }, input) => callHold(client, principal, input),
    answer: DECISION,
    summary: "Set units apart until it is known how many were used",
    ok: { says: "A decision; if it admits, with the hold", schema: "HoldDecision", headers },
    denials: ["QuotaExceeded", "ReducedCapacity", headers],
    example: examples.hold,
  }),
  settle: call({
    ...ADDRESSES.settle,
    tag: "holds",
    scopes: ["limit"],
    body: { schema: "SettleRequest" },
    bound: "alone",
    handle: ({ client, principal }, input) => callSettle(client, principal, input),
    answer: DECISION,
    summary: "End a hold with the units really used; late or again, it changes nothing",
    ok: { says: "The key's decision after the settling", schema: "Decision", headers: DECISION_HEADERS },
    example: examples.settle,
  }),
  cancel: call({
    ...ADDRESSES.cancel,
    tag: "holds",
    scopes: ["limit"],
    bound: "alone",
    handle: ({ client, principal }, input) => callCancel(client, principal, input),
    answer: NOTHING,
    summary: "End a hold of which nothing was used",
  }),
  acquire: call({
    ...ADDRESSES.acquire,
    tag: "leases",
    scopes: ["limit"],
    body: { schema: "AcquireRequest" },
    bound: "key",
    handle: ({ client, principal, request, waitUntil }, input) =>
      callAcquire(client, principal, input, request?.signal ?? NOBODY_ABORTS, waitUntil),
    answer: DECISION,
    summary: "Lease units, waiting in the queue if asked to",
    ok: { says: "A decision; if it admits, with the lease", schema: "LeaseDecision", headers },
    denials: ["QuotaExceeded", "ReducedCapacity", headers],
    example: examples.acquire,
  }),
  acquireSocket: call({
    method: "GET",
    path: "/v1/leases/socket",
    tag: "leases",
    scopes: ["limit"],
    query: [
      query("policy", { type: "string" }, true),
      query("key", { type: "string" }, true),
      query("units", { type: "integer", minimum: 1, default: 1 }),
      query("waitMs", { type: "integer", minimum: 0, default: 0 }),
      query("priority", { type: "string" }),
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
    tag: "leases",
    scopes: ["limit"],
    body: { schema: "RenewRequest", isOptional: true },
    bound: "alone",
    handle: ({ client, principal }, input) => callRenew(client, principal, input),
    answer: JSON_ANSWER,
    summary: "Move a lease's end",
    ok: { says: "The lease", schema: "Lease" },
    example: examples.renew,
  }),
  releaseWithReport: call({
    ...ADDRESSES.release,
    tag: "leases",
    scopes: ["limit"],
    body: { schema: "ReleaseRequest", isOptional: true },
    handle: ({ client, principal }, input) => callRelease(client, principal, input),
    answer: NOTHING,
    summary: "End a lease, and report how the call went; the next caller in the queue gets its units at once",
    example: examples.releaseWithReport,
  }),
  release: call({
    method: "DELETE",
    path: "/v1/leases/:id",
    tag: "leases",
    scopes: ["limit"],
    bound: "alone",
    handle: ({ client, principal }, input) => callRelease(client, principal, input),
    answer: NOTHING,
    summary: "End a lease; the next caller in the queue gets its units at once",
  }),
} as const;
