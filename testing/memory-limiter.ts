/** Limiters for tests: one with the real algorithms, and one without limits. */
import { type KeyRequest, type Limiter, type PolicyName, withRelease } from "../client/limiter.ts";
import type { UniformCall } from "../client/local-call.ts";
import { type Address, ADDRESSES } from "../client/transports/transport.ts";
import type { Lease } from "../core/protocol/answers.ts";
import type { Decision } from "../core/protocol/decision.ts";
import { requireKnownOptions, requireTime } from "../core/violations.ts";
import { makeMemoryLimiter } from "../worker/embedded/memory-limiter.ts";
import type { ManualClock } from "./manual-clock.ts";
import { testLimiter, type TestLimiter } from "./test-limiter.ts";

/** The options of `memoryLimiter`. */
export interface MemoryLimiterOptions {
  /** The policies, as in `[vars.POLICIES]`. */
  readonly policies: Readonly<Record<string, object>>;
  /** The policy of calls that name none. */
  readonly policy?: PolicyName;
  /** The clock of the test. Absent: the real one. */
  readonly clock?: ManualClock;
}

const KNOWN = ["policies", "policy", "clock"];
/** The name of the option in `weir-limiter/memory` and middleware. If it were ignored, the test would run on the real clock. */
const SYNONYMS = new Map([["time", "clock"]]);

/**
 * A limiter in memory that decides with the real algorithms.
 *
 * @throws TypeError that names the option, its value and what is allowed
 * @throws Error that names every bad policy, field and value, and what is allowed
 */
export function memoryLimiter(options: MemoryLimiterOptions): TestLimiter {
  requireKnownOptions(options, KNOWN, SYNONYMS);
  const { policies, policy, clock } = options;
  requireTime("clock", clock);
  const parts = { policies, ...(policy !== undefined && { policy }), ...(clock && { time: clock }) };
  return testLimiter(makeMemoryLimiter(parts), policy, clock);
}

/** The limit in its decisions: the largest cost. */
const NO_LIMIT = 1_000_000_000;
/** The lifetime of leases and holds in its answers, in milliseconds. */
const DEFAULT_TTL_MS = 60_000;
const UNUSED = {
  outstanding: 0,
  holds: 0,
  leases: 0,
  reclaimed: 0,
  queueLength: 0,
  longestWaitMs: 0,
  holders: 0,
};

/** A limiter that admits every call. It knows no policies, keys or ids, so it refuses none. */
export function unlimited(): TestLimiter {
  let count = 0;
  const idOf = (kind: string) => `${kind}_unlimited.${(count += 1)}`;
  const leaseOf = (id: string, ttlMs = DEFAULT_TTL_MS): Lease => ({
    id,
    fencingToken: count,
    expiresAfterMs: ttlMs,
  });
  const answers = Object.entries<Address>(ADDRESSES).map(([name, { shape }]) => [
    name,
    async (request: KeyRequest) => (shape === "nothing" ? undefined : admitted(request)),
  ]);
  const limiter: Limiter = {
    ...(Object.fromEntries(answers) as Pick<Limiter, UniformCall>),
    limit: async (request) => admitted(request),
    limitAll: async ({ checks }) => ({ success: true, decisions: checks.map((check) => admitted(check)) }),
    limitAny: async ({ checks }) => ({
      success: true,
      chosen: 0,
      decisions: checks.slice(0, 1).map((check) => admitted(check)),
    }),
    hold: async ({ units, ttlMs = DEFAULT_TTL_MS, ...request }) => {
      const hold = { id: idOf("hold"), units, expiresAfterMs: ttlMs };
      return { ...admitted(request), hold };
    },
    acquire: async ({ ttlMs, ...request }) => {
      const granted = { ...admitted(request), waitedMs: 0, lease: leaseOf(idOf("lease"), ttlMs) };
      return withRelease(granted, (id) => limiter.release({ id }));
    },
    renew: async ({ id, ttlMs }) => leaseOf(id, ttlMs),
    peek: async (request) => ({ ...admitted(request), ...UNUSED }),
    policies: async () => ({ policies: [] }),
    close: async () => undefined,
    [Symbol.asyncDispose]: async () => undefined,
  };
  return testLimiter(limiter);
}

function admitted({ policy = "", key = "" }: Partial<KeyRequest>): Decision {
  const quota = { limit: NO_LIMIT, remaining: NO_LIMIT, resetAfterMs: 0, retryAfterMs: 0 };
  const rule = { ...quota, success: true, reason: "ok" } as const;
  return { ...rule, policy, key, source: "isolate", rules: [{ ...rule, name: policy }] };
}
