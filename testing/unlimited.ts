/** A limiter without limits, for tests of what comes after it. */
import { type KeyRequest, type Limiter, withRelease } from "../client/limiter.ts";
import type { Hold, Lease } from "../core/protocol/answers.ts";
import type { Decision } from "../core/protocol/decision.ts";
import { testLimiter, type TestLimiter } from "./test-limiter.ts";

/** The limit that decisions tell of: the largest cost that there is. */
const LIMIT = 1_000_000_000;
/** How long leases and holds are said to live, in milliseconds. */
const USUAL_TTL_MS = 60_000;

/** A limiter that admits everything, whatever the policy. It knows no policies, keys or ids, so it refuses none. */
export function unlimited(): TestLimiter {
  let count = 0;
  const idOf = (kind: string) => `${kind}_unlimited.${(count += 1)}`;
  const leaseOf = (id: string, ttlMs = USUAL_TTL_MS): Lease => ({
    id,
    fencingToken: count,
    expiresAfterMs: ttlMs,
  });
  const limiter: Limiter = {
    limit: async (asked) => admitted(asked),
    limitAll: async ({ checks }) => ({ success: true, decisions: checks.map((check) => admitted(check)) }),
    refund: async (asked) => admitted(asked),
    hold: async ({ units, ttlMs = USUAL_TTL_MS, ...asked }) => {
      const hold: Hold = { id: idOf("hold"), units, expiresAfterMs: ttlMs };
      return { ...admitted(asked), hold };
    },
    settle: async () => admitted({ key: "" }),
    cancel: async () => undefined,
    acquire: async ({ ttlMs, ...asked }) => {
      const granted = { ...admitted(asked), waitedMs: 0, lease: leaseOf(idOf("lease"), ttlMs) };
      return withRelease(granted, (id) => limiter.release({ id }));
    },
    renew: async ({ id, ttlMs }) => leaseOf(id, ttlMs),
    release: async () => undefined,
    peek: async (asked) => ({ ...admitted(asked), ...NOBODY }),
    reset: async () => undefined,
    policies: async () => ({ policies: [] }),
    close: async () => undefined,
    [Symbol.asyncDispose]: async () => undefined,
  };
  return testLimiter(limiter);
}

const NOBODY = { outstanding: 0, holds: 0, leases: 0, reclaimed: 0, queueLength: 0, longestWaitMs: 0 };

function admitted({ policy = "", key }: KeyRequest): Decision {
  const figures = { limit: LIMIT, remaining: LIMIT, resetAfterMs: 0, retryAfterMs: 0, reason: "ok" } as const;
  const rules = [{ name: policy, success: true, ...figures }];
  return { success: true, policy, key, ...figures, source: "isolate", rules };
}
