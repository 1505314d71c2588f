/** The calls that take units of a quota, and give them back. */
import { ADDRESSES } from "../../client/transports/transport.ts";
import { callLimitSeveral } from "../calls/limit-all.ts";
import { callLimit, callRefund } from "../calls/limits.ts";
import { callReserve } from "../calls/reservations.ts";
import { call } from "./call.ts";
import * as examples from "./examples.ts";
import { DECISION_HEADERS, RETRY_AFTER } from "./openapi-parts.ts";
import { ALL_DECISIONS, DECISION, JSON_ANSWER } from "./responses.ts";

export const limitRecords = {
  limit: call({
    ...ADDRESSES.limit,
    tag: "limits",
    scopes: ["limit", "force", "admin"],
    body: { schema: "LimitRequest" },
    orQuery: { beginning: ["policy", "key"], numbers: ["cost", "waitMs"] },
    bound: "key",
    handle: callLimit,
    answer: DECISION,
    summary: "Take units of a key's quota if they fit",
    description:
      "The call may stand in the query instead, without a body: " +
      "`POST /v1/limit?policy=api&key=user%3A42&cost=2`, beside `deny`.",
    ok: {
      says: "A decision, whether it admits or not",
      schema: "Decision",
      headers: { ...DECISION_HEADERS, ...RETRY_AFTER },
    },
    denials: ["QuotaExceeded", "ReducedCapacity", { ...DECISION_HEADERS, ...RETRY_AFTER }],
    example: examples.limit,
  }),
  limitAll: call({
    ...ADDRESSES.limitAll,
    tag: "limits",
    scopes: ["limit"],
    body: { schema: "LimitAllRequest" },
    bound: "checks",
    handle: callLimitSeveral,
    answer: ALL_DECISIONS,
    summary:
      "Take units of up to 16 keys' quotas, of all or of none; or of up to 100, each decided by itself",
    ok: {
      says: "All decisions, whether they admit or not",
      schema: "AllDecisions",
      headers: RETRY_AFTER,
    },
    denials: ["SeveralExceeded", "SeveralReduced", RETRY_AFTER],
    example: examples.limitAll,
  }),
  refund: call({
    ...ADDRESSES.refund,
    tag: "limits",
    scopes: ["limit", "refund"],
    body: { schema: "RefundRequest" },
    bound: "key",
    handle: callRefund,
    answer: DECISION,
    summary: "Give back units that were taken and not used",
    ok: { says: "The key's decision after the refund", schema: "Decision", headers: DECISION_HEADERS },
    example: examples.refund,
  }),
  reserve: call({
    ...ADDRESSES.reserve,
    tag: "reservations",
    scopes: ["reserve"],
    body: { schema: "ReservationsRequest" },
    bound: "alone",
    handle: callReserve,
    answer: JSON_ANSWER,
    summary: "Hold units of many keys in the caller's own process; needs the scope reserve",
    description:
      "One message for many keys. A client says what it has used of each key since it began, what it keeps and " +
      "what it wants, and may ask for decisions. The answer grants units for a lifetime, which the client counts " +
      "from before it sent the message. What a client holds and does not give back counts as used.",
    ok: {
      says: "An answer to each call, and the policies that the client has to know",
      schema: "ReservationsAnswer",
    },
    example: examples.reserve,
  }),
} as const;
