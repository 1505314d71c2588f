/** The calls on quotas, policies, keys and counts; and all calls, by the ids of their operations. */
import { ADDRESSES } from "../../client/transports/transport.ts";
import { MAX_KEY_BYTES } from "../../core/protocol/names.ts";
import { STEPS, TOP_KINDS } from "../../core/stats/messages.ts";
import { METRIC_FORMATS } from "../../core/stats/metrics-text.ts";
import { callKeyCount, callKeys, KeyListRequest, listPolicies, MAX_LISTED } from "../calls/keys.ts";
import { callLimitSeveral } from "../calls/limit-all.ts";
import { callLimitAny } from "../calls/limit-any.ts";
import { callEndWaits, callLimit, callPeek, callRefund, callReset, callSetUsed } from "../calls/limits.ts";
import { callReserve } from "../calls/reservations.ts";
import { LimitRequest } from "../calls/schemas/request-schemas.ts";
import { callHistory, callMetrics, callTopGroups, callTopKeys, HistoryRequest } from "../calls/stats.ts";
import {
  type Call,
  call,
  type CatalogCall,
  DECISION_HEADERS,
  DENIAL_HEADERS,
  query,
  RETRY_AFTER,
} from "./call.ts";
import { catalogRecords } from "./catalog-records.ts";
import { claimRecords } from "./claim-records.ts";
import * as examples from "./examples.ts";
import { ALL_DECISIONS, ANY_DECISION, DECISION, JSON_ANSWER, METRICS, NOTHING } from "./responses.ts";

const LIMITS = { tag: "limits", scopes: ["limit"] } as const;
const KEYS = { tag: "keys", scopes: ["admin"] } as const;
const STATS = { tag: "stats", scopes: ["admin"] } as const;

// A table cannot be in a query.
const { limits: _, ...IN_QUERY } = LimitRequest.entries;

const limitRecords = {
  limit: call({
    ...ADDRESSES.limit,
    tag: "limits",
    scopes: ["limit", "force", "admin"],
    needed: "limit (with force: force or admin)",
    body: { schema: "LimitRequest" },
    orQuery: {
      beginning: ["policy", "key"],
      known: [...Object.keys(IN_QUERY), "deny"],
      typed: ["cost", "waitMs", "utilization", "refundable", "force"],
    },
    on: "key",
    handle: callLimit,
    answer: DECISION,
    summary: "Take units of a key's quota if they fit",
    description:
      "The call may stand in the query instead, without a body: " +
      "`POST /v1/limit?policy=api&key=user%3A42&cost=2`, beside `deny`.",
    ok: { says: "A decision, whether it admits or not", schema: "Decision", headers: DENIAL_HEADERS },
    denials: ["QuotaExceeded", "ReducedCapacity", DENIAL_HEADERS],
    example: {
      request: examples.USER,
      answers: { admitted: examples.admitted, denied: examples.denied },
      denied: { ...examples.quotaExceeded, "violated-policies": ["api"], decision: examples.denied },
    },
  }),
  limitAll: call({
    ...ADDRESSES.limitAll,
    ...LIMITS,
    body: { schema: "LimitAllRequest" },
    on: "checks",
    handle: callLimitSeveral,
    answer: ALL_DECISIONS,
    summary:
      "Take units of up to 16 keys' quotas, of all or of none; or of up to 100, each decided by itself",
    ok: { says: "All decisions, whether they admit or not", schema: "AllDecisions", headers: RETRY_AFTER },
    denials: ["SeveralExceeded", "SeveralReduced", RETRY_AFTER],
    example: {
      request: { checks: [examples.USER, { ...examples.LLM, cost: examples.UNITS }] },
      answers: { admitted: examples.several, denied: { success: false, decisions: examples.someDenied } },
      denied: {
        ...examples.quotaExceeded,
        "violated-policies": ["api"],
        decision: examples.denied,
        decisions: examples.someDenied,
      },
    },
  }),
  limitAny: call({
    ...ADDRESSES.limitAny,
    ...LIMITS,
    body: { schema: "LimitAnyRequest" },
    on: "checks",
    handle: callLimitAny,
    answer: ANY_DECISION,
    summary: "Take units of the first of up to 16 keys' quotas that has them, and of no other",
    description:
      "The checks are tried in their order. A check that is tried and denied changes nothing, so policies with " +
      "`countDenied` or `blockFor` are refused. The headers are those of the chosen check; when all deny, those of the " +
      "denial with the shortest wait. A check that is not answered ends the call, since it may have been charged.",
    ok: {
      says: "The decisions of the checks that were tried, and which of them was charged",
      schema: "AnyDecision",
      headers: DENIAL_HEADERS,
    },
    denials: ["SeveralExceeded", "SeveralReduced", DENIAL_HEADERS],
    example: {
      request: { checks: [examples.USER, examples.BOUGHT] },
      answers: {
        charged: { success: true, chosen: 1, decisions: [examples.denied, examples.bought] },
        denied: { success: false, chosen: null, decisions: [examples.denied, examples.spent] },
      },
      denied: {
        ...examples.quotaExceeded,
        "violated-policies": ["api", "credits"],
        decision: examples.denied,
        decisions: [examples.denied, examples.spent],
      },
    },
  }),
  refund: call({
    ...ADDRESSES.refund,
    tag: "limits",
    scopes: ["limit", "refund"],
    needed: "limit (without charge: refund)",
    body: { schema: "RefundRequest" },
    handle: callRefund,
    answer: DECISION,
    summary: "Give back units that were taken and not used",
    ok: { says: "The key's decision after the refund", schema: "Decision", headers: DECISION_HEADERS },
    example: {
      request: { ...examples.USER, units: 1, charge: "order-7", idempotencyKey: "refund-of-order-7" },
      answers: { given: examples.refunded },
    },
  }),
  reserve: call({
    ...ADDRESSES.reserve,
    tag: "reservations",
    scopes: ["reserve"],
    body: { schema: "ReservationsRequest" },
    on: "none",
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
    example: {
      request: {
        protocol: 1,
        calls: [{ reserve: { ...examples.USER, cost: 1, ...examples.HOLDER, ...examples.WANTED } }],
      },
      answers: { granted: { protocol: 1, answers: [examples.GRANTED], policies: {} } },
    },
  }),
};

const LIST_FIELDS = [
  query("prefix", { type: "string", minLength: 1, maxLength: MAX_KEY_BYTES }),
  query("cursor", { type: "string" }),
];
const LIST_DEFAULT = KeyListRequest.entries.limit.default;
const SINCE = HistoryRequest.entries.since.wrapped.pipe[1].description;
const POLICY_FIELD = query("policy", { type: "string" }, true);
const PLAN_OF_KEY = query(
  "plan",
  { type: "string" },
  false,
  "The plan whose figures count, one of the policy's `plans`; empty: the policy's own. Absent: the one that the key has.",
);
/** It is checked as elsewhere, and a key that is as new has no plan to keep. */
const PLAN_CHECKED = query(
  "plan",
  { type: "string" },
  false,
  "One of the policy's `plans`. It changes nothing.",
);
const KEY_OK = { says: "The key's decision", schema: "KeyReport", headers: DENIAL_HEADERS } as const;
/** Whether it runs: nothing is checked. */
const UP = { type: "object", properties: { status: { type: "string", const: "ok" } }, required: ["status"] };

const keyRecords = {
  policies: call({
    ...ADDRESSES.policies,
    tag: "keys",
    scopes: ["limit", "admin"],
    on: "none",
    handle: listPolicies,
    answer: JSON_ANSWER,
    summary: "The policies this token may use",
    ok: { says: "The policies", schema: "PolicyList" },
    neverProblems: [404, 429],
    example: { answers: { policies: { policies: [examples.POLICY] } } },
  }),
  keys: call({
    method: "GET",
    path: "/v1/policies/:policy/keys",
    ...KEYS,
    query: [
      ...LIST_FIELDS,
      query("limit", { type: "integer", minimum: 1, maximum: MAX_LISTED, default: LIST_DEFAULT }),
    ],
    on: "key",
    handle: callKeys,
    answer: JSON_ANSWER,
    summary: "The keys of a policy with a number of objects, page by page; needs the scope admin",
    ok: { says: "A page of keys", schema: "KeyList" },
    example: {
      answers: { page: { keys: [{ key: "192.0.2.7", ...examples.LISTED_KEY }], cursor: "MTp1c2Vy" } },
    },
  }),
  countKeys: call({
    method: "GET",
    path: "/v1/policies/:policy/key-count",
    ...KEYS,
    query: LIST_FIELDS,
    on: "key",
    handle: callKeyCount,
    answer: JSON_ANSWER,
    summary: "How many keys a policy with a number of objects has; needs the scope admin",
    ok: { says: "How many there are", schema: "KeyCount" },
    example: { answers: { count: { count: 1_204 } } },
  }),
  peek: call({
    ...ADDRESSES.peek,
    tag: "keys",
    scopes: ["limit", "admin"],
    query: [
      PLAN_OF_KEY,
      query("group", { type: "string", minLength: 1 }),
      query("waitFor", { type: "string", enum: ["idle"] }),
      query("waitMs", { type: "integer", minimum: 0, default: 0 }),
    ],
    handle: callPeek,
    answer: DECISION,
    summary: "What a call of cost 1 would be answered, and how many units are held; takes nothing",
    ok: KEY_OK,
    example: { answers: examples.KEY },
  }),
  setUsed: call({
    method: "PUT",
    path: ADDRESSES.peek.path,
    ...KEYS,
    body: { schema: "SetRequest" },
    on: "key",
    handle: callSetUsed,
    answer: DECISION,
    summary: "Set what the key has used, and look at it; needs the scope admin",
    ok: KEY_OK,
    example: { request: { used: 1 }, answers: examples.KEY },
  }),
  reset: call({
    ...ADDRESSES.reset,
    ...KEYS,
    query: [PLAN_CHECKED],
    handle: callReset,
    answer: NOTHING,
    summary: "Make the key as new; needs the scope admin",
  }),
  endWaits: call({
    ...ADDRESSES.endWaits,
    ...KEYS,
    query: [PLAN_CHECKED],
    handle: callEndWaits,
    answer: NOTHING,
    summary: "End the waits of the key's callers; needs the scope admin",
    description:
      "Each caller that cannot pass now is denied with the reason `wait-timeout`. Callers that wait in another isolate, " +
      "for slots that it leases by itself, are answered when that isolate next hears from the key's object, within half " +
      "a second as a rule. Callers in other regions of a pool, and those with `waitFor=idle`, go on.",
  }),
};

const SAMPLE = 'weir_decisions_total{policy="api",outcome="denied",reason="quota",source="isolate"} 12';
const sample = (value: string) => ({ schema: { type: "string" }, examples: { metrics: { value } } });
/** What /metrics answers, by its type. */
const METRICS_CONTENT = {
  [METRIC_FORMATS.openmetrics]: sample(`# TYPE weir_decisions counter\n${SAMPLE}\n# EOF\n`),
  [METRIC_FORMATS.prometheus]: sample(`# TYPE weir_decisions_total counter\n${SAMPLE}\n`),
};

const statsRecords = {
  metrics: call({
    method: "GET",
    path: "/metrics",
    tag: "stats",
    scopes: ["metrics", "admin"],
    handle: async (context) => {
      const answered = await callMetrics(context);
      return "counts" in answered
        ? { ...answered, accept: context.request?.headers.get("accept") }
        : answered;
    },
    answer: METRICS,
    summary: "All counts, for Prometheus; needs the scope metrics or admin",
    responses: { 200: { description: "OpenMetrics 1.0", content: METRICS_CONTENT } },
    neverProblems: [404, 429],
  }),
  history: call({
    method: "GET",
    path: "/v1/stats",
    ...STATS,
    query: [
      POLICY_FIELD,
      query("since", { type: "string", description: SINCE }),
      query("step", { type: "string", enum: STEPS, default: HistoryRequest.entries.step.default }),
    ],
    handle: callHistory,
    answer: JSON_ANSWER,
    summary: "What happened under a policy, by the minute or by the hour; needs the scope admin",
    ok: { says: "The steps with traffic", schema: "History" },
    neverProblems: [429],
    example: {
      answers: {
        hour: { policy: "api", step: "minute", since: "2026-11-22T17:30:00.000Z", points: [examples.POINT] },
      },
    },
  }),
  topKeys: call({
    method: "GET",
    path: "/v1/stats/keys",
    ...STATS,
    query: [POLICY_FIELD, query("by", { type: "string", enum: TOP_KINDS, default: "denied" })],
    handle: callTopKeys,
    answer: JSON_ANSWER,
    summary: "The keys of a policy that came, or were denied, most often; needs the scope admin",
    ok: { says: "The keys, the highest counts first", schema: "TopKeyList" },
    neverProblems: [429],
    example: { answers: { keys: { ...examples.TOP, keys: [{ key: "user:42", count: 88, error: 0 }] } } },
  }),
  topGroups: call({
    method: "GET",
    path: "/v1/stats/groups",
    ...STATS,
    query: [POLICY_FIELD, query("by", { type: "string", enum: TOP_KINDS, default: "denied" })],
    handle: callTopGroups,
    answer: JSON_ANSWER,
    summary: "The groups whose calls came, or were denied, most often, under fair; needs the scope admin",
    ok: { says: "The groups, the highest counts first", schema: "TopGroupList" },
    neverProblems: [429],
    example: {
      answers: {
        groups: { ...examples.TOP, policy: "model", groups: [{ group: "customer:7", count: 412, error: 0 }] },
      },
    },
  }),
  healthz: call({
    method: "GET",
    path: "/healthz",
    tag: "service",
    handle: () => ({ status: "ok" }),
    answer: JSON_ANSWER,
    summary: "Whether the worker runs",
    responses: { 200: { description: "The worker runs", content: { "application/json": { schema: UP } } } },
    example: { answers: { up: { status: "ok" } } },
  }),
};

/** In the order in which they are routed: what is at a fixed address stands before what may have any name there. */
export const RECORDS: Readonly<Record<string, Call | CatalogCall>> = {
  ...limitRecords,
  ...claimRecords,
  ...keyRecords,
  ...catalogRecords,
  ...statsRecords,
};
