import {
  type Algorithm,
  type AnyAlgorithm,
  configProblem,
  type LeaseTerms,
  scaleLimit,
} from "./algorithm.ts";
import { constantForecast } from "./forecast.ts";

/**
 * Concurrency: at most `limit` units held at once. It is a semaphore, and with a limit of 1 a mutex.
 *
 * A caller occupies units by a lease, which is a hold (core/accounts/account.ts) whose units are free when it expires.
 * Units are not used up, so this algorithm counts nothing. A cost passes when
 *
 *     cost + outstanding  <=  limit
 *
 * The exact wait lasts until enough leases have expired. account.ts computes it, because it has the holds.
 *
 * Example: limit 10, leases of 4 until 300 ms and of 5 until 800 ms. A cost of 1 passes, a cost of 2 waits 300 ms.
 *
 * The state is only what outlasts a lease. The fencing token rises with every grant: it is the time in microseconds
 * since the Unix epoch, or the last token plus 1 if that is larger. So it keeps rising after the state is forgotten,
 * unless the clock is set back by more than the key was idle. A record has a later token, so that not each grant writes
 * one; after a crash tokens go on from there. (Fencing: M. Kleppmann, "How to do distributed locking", 2016.)
 *
 * The bound, at any instant: `limit` units. The worst boundary is a holder that pauses for longer than its lease
 * without noticing: the fencing token is for that. What it is bad at: a rate, since many short leases are many calls.
 */
export interface ConcurrencyConfig extends LeaseTerms {
  readonly limit: number;
  /** `relaxed`: holders may have slots, and lease them by themselves (durable-objects/operations/slots.ts). */
  readonly order: (typeof ORDERS)[number];
}

const ORDERS = ["strict", "relaxed"] as const;
/** From this limit on `relaxed` is the default: of fewer slots, those that lie idle with a holder are too many. */
const RELAXED_FROM = 10;

export interface ConcurrencyState {
  readonly fencingToken: number;
  readonly reclaimed: number;
}

const DEFAULT_TTL_MS = 60_000;
/** Bounds how long the units of a crashed caller stay occupied. A caller may renew for ever. */
const DEFAULT_MAX_TTL_MS = 3_600_000;
export const DEFAULT_MAX_WAIT_MS = 30_000;
/** A waiting request takes memory and a connection. The runtime ends it after some minutes anyway. */
export const MAX_WAIT_MS = 600_000;
export const DEFAULT_MAX_WAITERS = 1_000;
/** Each waiter is a pending request in the object, which has 128 MB. With 2,000 waiters, each took 110 KB. */
export const MAX_WAITERS = 1_000;
/** A record covers the tokens of the next minute, in microseconds. After a crash they go on from its end. */
const TOKENS_AHEAD = 60_000_000;
/** Of tokens that are ahead of the clock it covers so many: otherwise each restart would put them further ahead. */
const TOKENS_MORE = 1_000;
/** 2^31 - 1 ms: the maximum of a timer. */
const MAX_TTL_MS = 2_147_483_647;

/** From when on the clock alone makes later tokens than the last one of a rule that leases. Until then its state is kept. */
export function tokenPassedMs({ leasing }: AnyAlgorithm, state: unknown): number {
  const token = state === undefined ? 0 : (leasing?.fencingToken(state) ?? 0);
  return Math.floor(token / 1_000) + 1;
}

function nextToken(state: ConcurrencyState | undefined, nowMs: number): number {
  return Math.max((state?.fencingToken ?? 0) + 1, nowMs * 1_000);
}

function usualOrder(limit: number): ConcurrencyConfig["order"] {
  return limit < RELAXED_FROM ? "strict" : "relaxed";
}

export const concurrency: Algorithm<ConcurrencyConfig, ConcurrencyState> = {
  name: "concurrency",
  isPoolable: true,
  fields: {
    limit: "units",
    ttl: "duration?",
    maxTtl: "duration?",
    maxWait: "duration?",
    maxWaiters: "integer?",
    order: ORDERS,
  },
  leasing: {
    terms: (config) => config,
    fencingToken: (state) => state.fencingToken,
    resumed: (fencingToken) => ({ fencingToken, reclaimed: 0 }),
    reclaimed: (state) => state.reclaimed,
    isRelaxed: ({ order }) => order === "relaxed",
    tokens(state, nowMs, count) {
      const from = nextToken(state, nowMs);
      return { from, state: { fencingToken: from + count - 1, reclaimed: state?.reclaimed ?? 0 } };
    },
  },

  configure(fields) {
    const ttlMs = Number(fields["ttl"] ?? DEFAULT_TTL_MS);
    const maxTtlMs = Number(fields["maxTtl"] ?? Math.max(ttlMs, DEFAULT_MAX_TTL_MS));
    const maxWaitMs = Number(fields["maxWait"] ?? DEFAULT_MAX_WAIT_MS);
    const maxWaiters = Number(fields["maxWaiters"] ?? DEFAULT_MAX_WAITERS);
    if (ttlMs > MAX_TTL_MS) return configProblem("ttl", `at most ${MAX_TTL_MS} ms`);
    if (maxTtlMs < ttlMs || maxTtlMs > MAX_TTL_MS)
      return configProblem("maxTtl", `at least the ttl of ${ttlMs} ms and at most ${MAX_TTL_MS} ms`);
    if (maxWaitMs > MAX_WAIT_MS) return configProblem("maxWait", `at most ${MAX_WAIT_MS} ms`);
    if (maxWaiters > MAX_WAITERS) return configProblem("maxWaiters", `at most ${MAX_WAITERS}`);
    const limit = Number(fields["limit"]);
    const order = (fields["order"] as (typeof ORDERS)[number] | undefined) ?? usualOrder(limit);
    if (order === "relaxed" && limit === 1)
      return configProblem("order", '"strict" where the limit is 1: fencing tokens rise with each lease');
    return { limit, ttlMs, maxTtlMs, maxWaitMs, maxWaiters, order };
  },

  capacity: (config) => config.limit,
  quota: (config) => ({ units: config.limit }),
  localDecisions: () => ({ admits: false, denies: false }),
  refillMs: () => 0,
  scale: scaleLimit,

  decide({ limit }, state, nowMs, cost, outstanding) {
    const remaining = Math.max(0, limit - outstanding);
    if (cost === 0) return { allowed: true, state, remaining, resetAfterMs: 0 };
    if (cost <= remaining) {
      const fencingToken = nextToken(state, nowMs);
      const granted = { fencingToken, reclaimed: state?.reclaimed ?? 0 };
      return { allowed: true, state: granted, remaining: remaining - cost, resetAfterMs: 0 };
    }
    const reason = cost > limit ? "cost-over-limit" : "quota";
    return { allowed: false, reason, retryAfterMs: null, remaining, resetAfterMs: 0 };
  },

  // More than 0 units: a lease has expired. Only the expiry is counted.
  debit: (_, state, __, units) =>
    units === 0 || state === undefined ? state : { ...state, reclaimed: state.reclaimed + 1 },

  // No units are used up. Only the end of a lease returns units.
  credit: (_, state) => state,
  untouchedAtMs: () => -Infinity,

  forecast: ({ limit }) =>
    constantForecast((atMs, cost, outstanding) =>
      cost === 0 || cost + outstanding <= limit ? atMs : Infinity,
    ),

  // Leases have rows of their own.
  covers: (_, stored, ahead, state, outstanding) =>
    outstanding <= ahead &&
    (state === undefined ||
      ((stored as ConcurrencyState | undefined)?.fencingToken ?? 0) >= state.fencingToken),

  pack(_, state, nowMs) {
    const latest = Math.max(state.fencingToken + TOKENS_MORE, nowMs * 1_000 + TOKENS_AHEAD);
    return { record: { ...state, fencingToken: latest } };
  },
  unpack: (_, record) => record as ConcurrencyState,
  used: () => 0,
};
