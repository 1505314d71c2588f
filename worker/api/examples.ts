/** The examples of the OpenAPI document. A mock that answers with them behaves like a limiter. */
import { claimId } from "../../core/protocol/names.ts";

const EXPORT = { policy: "export", key: "customer:1" };
const LLM = { policy: "llm", key: "customer:1" };
/** It opens nothing. */
const SECRET = "mT3xQ9vLwK2pZ7rN5sYb1A";
const USER = { policy: "api", key: "user:42" };

const TAKEN = { limit: 500, remaining: 499, resetAfterMs: 10, retryAfterMs: 0, reason: "ok" };
const EMPTY = { limit: 500, remaining: 0, resetAfterMs: 5_000, retryAfterMs: 10, reason: "quota" };
const REQUESTS = { limit: 60, remaining: 59, resetAfterMs: 1_000, retryAfterMs: 0, reason: "ok" };
const TOKENS = { resetAfterMs: 60_000, retryAfterMs: 0, reason: "ok" };
const UNITS = { requests: 1, tokens: 1_200 };
const SLOT = { limit: 10, remaining: 9, resetAfterMs: 60_000, retryAfterMs: 0, reason: "ok" };
const FULL = { limit: 10, remaining: 0, resetAfterMs: 60_000, retryAfterMs: 12_000, reason: "quota" };
const LEASE = { id: claimId("lease", EXPORT, SECRET), fencingToken: 7, expiresAfterMs: 60_000 };

/** A decision by one rule, which has the policy's name. */
function decided(success: boolean, place: { readonly policy: string }, quota: object, others: object = {}) {
  const rules = [{ name: place.policy, success, ...quota }];
  const violated = success ? {} : { violated: [place.policy] };
  return { success, ...place, ...quota, ...others, source: "object", rules, ...violated };
}

const admitted = decided(true, USER, TAKEN);
const denied = decided(false, USER, EMPTY);
const leased = decided(true, EXPORT, SLOT);
const waited = { ...decided(false, EXPORT, FULL, { reason: "wait-timeout" }), waitedMs: 5_000 };
const estimated = (remaining: number) => ({
  success: true,
  ...LLM,
  ...REQUESTS,
  source: "object",
  rules: [
    { name: "requests", success: true, ...REQUESTS },
    { name: "tokens", success: true, limit: 100_000, remaining, ...TOKENS },
  ],
});

const quotaExceeded = {
  type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
  title: "The quota of this key is used up",
  status: 429,
  detail: "the same call passes in 10 ms if nobody else comes",
};
const NOBODY = {
  outstanding: 0,
  holds: 0,
  leases: 0,
  reclaimed: 0,
  queueLength: 0,
  longestWaitMs: 0,
  holders: 0,
};
const LISTED = { limit: 30, remaining: 28, resetAfterMs: 4_000, outstanding: 0, holds: 0, leases: 0 };

const someDenied = [denied, estimated(100_000)];
const several = { success: true, decisions: [admitted, estimated(98_800)] };
const POLICY = {
  name: "api",
  rules: [{ name: "api", algorithm: "token-bucket", limit: 100, windowMs: 1_000, burst: 500 }],
  onFailure: "closed",
  deadlineMs: 500,
  objects: "per-key",
  maxWaitMs: 30_000,
  maxWaiters: 1_000,
  reservationTtlMs: 8_000,
  denialTtlMs: 10_000,
  shadow: false,
  keyKind: "text",
  priorities: ["critical", "high", "normal", "low"],
  defaultPriority: "normal",
  ageingMs: 10_000,
  reserve: {},
  headers: ["draft-11"],
};
const HOLD = { id: claimId("hold", LLM, SECRET), units: UNITS, expiresAfterMs: 60_000 };
const HOLDER = { holder: "b64u_5Zr1", turn: 1 };
const WANTED = { ttlMs: 4_000, isShort: true, rules: { api: { used: 0, kept: 0, wanted: 20 } } };
const GRANTED = {
  rules: [{ name: "api", success: true, ...TAKEN }],
  reserved: { ttlMs: 4_000, isNew: true, units: { api: 20 } },
};
const POINT = {
  at: "2026-11-22T18:04:00.000Z",
  admitted: 4_810,
  denied: 92,
  degraded: 0,
  reasons: { quota: 92 },
};
const TOP = { policy: "api", by: "denied", since: "2026-11-22T17:00:00.000Z" };

const FIELDS = { algorithm: "token-bucket", limit: 200, window: "1s", burst: 500 };
const CATALOG_POLICY = { policy: "api", version: 3, source: "catalog", overrides: 2, ...FIELDS };
const TRIED = { ...FIELDS, limit: 150 };
const CANDIDATE = { policy: "api", version: 5, candidate: TRIED, since: "2027-01-24T09:30:00.000Z" };
const COMPARED = {
  calls: 48308,
  admittedByBoth: 47900,
  deniedByBoth: 97,
  deniedByPolicyAlone: 0,
  deniedByCandidateAlone: 311,
  undecided: 0,
};
const COMPARED_KEYS = [{ key: "customer:9", count: 288, error: 0 }];
const RAISED = { multiply: 10, expiresAt: "2027-01-31T12:00:00Z", note: "launch week" };
const OVERRIDE = { policy: "api", pattern: "customer:7", version: 4, ...RAISED };
const TOKEN = { name: "billing", scopes: ["limit"], policies: ["api"] };
const SHA_256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const CATALOG = {
  policies: { api: FIELDS },
  overrides: { api: { "customer:7": RAISED, "trial:*": { limit: 5, burst: 5 } } },
  tokens: { billing: { sha256: SHA_256, scopes: ["limit"], policies: ["api"] } },
};
const CHANGE = { target: "override api customer:7", before: null, after: RAISED };

const KEY = { key: { ...admitted, ...NOBODY } };

/** An example of a call: its request, and its answers by the names of the examples. */
export interface CallExample {
  readonly request?: object;
  readonly answers?: Readonly<Record<string, object>>;
  /** Under `?deny=429`. */
  readonly denied?: object;
}

/** By the id of the operation. */
export const EXAMPLES: Readonly<Record<string, CallExample>> = {
  limit: {
    request: USER,
    answers: { admitted, denied },
    denied: { ...quotaExceeded, "violated-policies": ["api"], decision: denied },
  },
  limitAll: {
    request: { checks: [USER, { ...LLM, cost: UNITS }] },
    answers: { admitted: several, denied: { success: false, decisions: someDenied } },
    denied: { ...quotaExceeded, "violated-policies": ["api"], decision: denied, decisions: someDenied },
  },
  refund: {
    request: { ...USER, units: 1, charge: "order-7", idempotencyKey: "refund-of-order-7" },
    answers: { given: admitted },
  },
  reserve: {
    request: { protocol: 1, calls: [{ reserve: { ...USER, cost: 1, ...HOLDER, ...WANTED } }] },
    answers: { granted: { protocol: 1, answers: [GRANTED], policies: {} } },
  },
  hold: {
    request: { ...LLM, units: UNITS, ttlMs: 60_000 },
    answers: { admitted: { ...estimated(98_800), hold: HOLD } },
  },
  settle: { request: { used: { tokens: 830 } }, answers: { settled: estimated(99_170) } },
  acquire: {
    request: { ...EXPORT, waitMs: 5_000 },
    answers: { granted: { ...leased, lease: LEASE }, denied: waited },
    denied: { ...quotaExceeded, "violated-policies": ["export"], decision: waited },
  },
  renew: { request: { ttlMs: 60_000 }, answers: { renewed: LEASE } },
  releaseWithReport: { request: { outcome: "ok", durationMs: 1_250 } },
  policies: { answers: { policies: { policies: [POLICY] } } },
  keys: { answers: { page: { keys: [{ key: "192.0.2.7", ...LISTED }], cursor: "MTp1c2Vy" } } },
  countKeys: { answers: { count: { count: 1_204 } } },
  peek: { answers: KEY },
  setUsed: { request: { used: 1 }, answers: KEY },
  getPolicy: { answers: { policy: CATALOG_POLICY } },
  putPolicy: { request: FIELDS, answers: { policy: CATALOG_POLICY } },
  getCandidate: { answers: { candidate: { ...CANDIDATE, compared: COMPARED, keys: COMPARED_KEYS } } },
  putCandidate: { request: TRIED, answers: { candidate: CANDIDATE } },
  promoteCandidate: { answers: { policy: { ...CATALOG_POLICY, ...TRIED, version: 6 } } },
  listOverrides: { answers: { page: { overrides: [OVERRIDE] } } },
  getOverride: { answers: { override: OVERRIDE } },
  putOverride: { request: RAISED, answers: { override: OVERRIDE } },
  ownToken: { answers: { token: TOKEN } },
  listTokens: { answers: { tokens: { tokens: [TOKEN] } } },
  issueToken: { request: TOKEN, answers: { issued: { ...TOKEN, token: "weir_mT3xQ9vLwK2pZ7rN5sYb1A" } } },
  getCatalog: { answers: { catalog: CATALOG } },
  putCatalog: { request: CATALOG, answers: { catalog: CATALOG } },
  audit: {
    answers: {
      page: { entries: [{ id: 12, at: "2027-01-24T09:30:00.000Z", by: 'the token "ops"', ...CHANGE }] },
    },
  },
  history: {
    answers: { hour: { policy: "api", step: "minute", since: "2026-11-22T17:30:00.000Z", points: [POINT] } },
  },
  topKeys: { answers: { keys: { ...TOP, keys: [{ key: "user:42", count: 88, error: 0 }] } } },
  healthz: { answers: { up: { status: "ok" } } },
};
