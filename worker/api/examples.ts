/** What the examples of the records are made of. A mock that answers with these examples behaves like a limiter. */
import { END_MS } from "../../core/algorithms/credits.ts";
import { claimId } from "../../core/protocol/names.ts";

export const EXPORT = { policy: "export", key: "customer:1" };
export const LLM = { policy: "llm", key: "customer:1" };
/** It opens nothing. */
const SECRET = "mT3xQ9vLwK2pZ7rN5sYb1A";
export const USER = { policy: "api", key: "user:42" };

const TAKEN = { limit: 500, remaining: 499, resetAfterMs: 10, retryAfterMs: 0, reason: "ok" };
const EMPTY = { limit: 500, remaining: 0, resetAfterMs: 5_000, retryAfterMs: 10, reason: "quota" };
const REQUESTS = { limit: 60, remaining: 59, resetAfterMs: 1_000, retryAfterMs: 0, reason: "ok" };
const TOKENS = { resetAfterMs: 60_000, retryAfterMs: 0, reason: "ok" };
export const UNITS = { requests: 1, tokens: 1_200 };
const SLOT = { limit: 10, remaining: 9, resetAfterMs: 60_000, retryAfterMs: 0, reason: "ok" };
const FULL = { limit: 10, remaining: 0, resetAfterMs: 60_000, retryAfterMs: 12_000, reason: "quota" };
export const LEASE = { id: claimId("lease", EXPORT, SECRET), fencingToken: 7, expiresAfterMs: 60_000 };

/** A decision by one rule, which has the policy's name. */
function decided(success: boolean, place: { readonly policy: string }, quota: object, others: object = {}) {
  const rules = [{ name: place.policy, success, ...quota }];
  const violated = success ? {} : { violated: [place.policy] };
  return { success, ...place, ...quota, ...others, source: "object", rules, ...violated };
}

export const admitted = decided(true, USER, TAKEN);
export const denied = decided(false, USER, EMPTY);
export const refunded = decided(true, USER, { ...TAKEN, refunded: 1 });
/** Credits never come back by themselves. */
const NEVER_MS = END_MS - Date.UTC(2026, 0);
const CREDITS = { limit: 10_000, remaining: 2_499, resetAfterMs: NEVER_MS, retryAfterMs: 0, reason: "ok" };
export const BOUGHT = { policy: "credits", key: "user:42" };
export const bought = decided(true, BOUGHT, CREDITS);
export const spent = decided(false, BOUGHT, {
  ...CREDITS,
  remaining: 0,
  retryAfterMs: null,
  reason: "quota",
});
export const leased = decided(true, EXPORT, SLOT);
export const waited = { ...decided(false, EXPORT, FULL, { reason: "wait-timeout" }), waitedMs: 5_000 };
export const estimated = (remaining: number) => ({
  success: true,
  ...LLM,
  ...REQUESTS,
  source: "object",
  rules: [
    { name: "requests", success: true, ...REQUESTS },
    { name: "tokens", success: true, limit: 100_000, remaining, ...TOKENS },
  ],
});

export const quotaExceeded = {
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
export const LISTED_KEY = {
  limit: 30,
  remaining: 28,
  resetAfterMs: 4_000,
  outstanding: 0,
  holds: 0,
  leases: 0,
};

export const someDenied = [denied, estimated(100_000)];
export const several = { success: true, decisions: [admitted, estimated(98_800)] };
export const POLICY = {
  name: "api",
  rules: [
    {
      name: "api",
      algorithm: "token-bucket",
      unit: "requests",
      capacity: 500,
      limit: 100,
      windowMs: 1_000,
      burst: 500,
    },
  ],
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
export const HOLD = { id: claimId("hold", LLM, SECRET), units: UNITS, expiresAfterMs: 60_000 };
export const HOLDER = { holder: "b64u_5Zr1", turn: 1 };
export const WANTED = { ttlMs: 4_000, isShort: true, rules: { api: { used: 0, kept: 0, wanted: 20 } } };
export const GRANTED = {
  rules: [{ name: "api", success: true, ...TAKEN }],
  reserved: { ttlMs: 4_000, isNew: true, units: { api: 20 } },
};
export const POINT = {
  at: "2026-11-22T18:04:00.000Z",
  admitted: 4_810,
  denied: 92,
  degraded: 0,
  reasons: { quota: 92 },
  plans: { pro: { admitted: 1_200, denied: 3 } },
};
export const TOP = { policy: "api", by: "denied", since: "2026-11-22T17:00:00.000Z" };

export const FIELDS = { algorithm: "token-bucket", limit: 200, window: "1s", burst: 500 };
export const CATALOG_POLICY = { policy: "api", version: 3, source: "catalog", overrides: 2, ...FIELDS };
export const TRIED = { ...FIELDS, limit: 150 };
export const CANDIDATE = { policy: "api", version: 5, candidate: TRIED, since: "2027-01-24T09:30:00.000Z" };
export const COMPARED = {
  calls: 48308,
  admittedByBoth: 47900,
  deniedByBoth: 97,
  deniedByPolicyAlone: 0,
  deniedByCandidateAlone: 311,
  undecided: 0,
};
export const COMPARED_KEYS = [{ key: "customer:9", count: 288, error: 0 }];
export const RAISED = {
  multiply: 10,
  startsAt: "2027-01-24T12:00:00Z",
  expiresAt: "2027-01-31T12:00:00Z",
  note: "launch week",
};
export const OVERRIDE = { policy: "api", pattern: "customer:7", version: 4, ...RAISED };
export const TOKEN = { name: "billing", scopes: ["limit"], policies: ["api"] };
const SHA_256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
export const CATALOG = {
  policies: { api: FIELDS },
  overrides: { api: { "customer:7": RAISED, "trial:*": { limit: 5, burst: 5 } } },
  tokens: { billing: { sha256: SHA_256, scopes: ["limit"], policies: ["api"] } },
};
export const CHANGE = { target: "override api customer:7", before: null, after: RAISED };

export const KEY = { key: { ...admitted, ...NOBODY } };
