/** A lease for as long as a request takes, its answer's stream included. */
import type { AcquireRequest, Grant, Limiter } from "../client/limiter.ts";
import { SYSTEM_TIME } from "../core/clock.ts";
import type { Cost } from "../core/policies/policy.ts";
import type { Lease } from "../core/protocol/answers.ts";
import type { SharedOptions } from "./decide.ts";
import type { End } from "./end.ts";
import { valueOf, type Given } from "./given.ts";
import { keyOf } from "./key-refused.ts";

/** The calls of a limiter that leasing needs. */
export type LeasingLimiter = Pick<Limiter, "acquire" | "renew" | "release" | "policies">;

/** What leasing for a request needs. Each may be a function of the request. */
export interface LeaseOptions<Args extends readonly unknown[]> extends SharedOptions<Args> {
  readonly limiter: Given<Args, LeasingLimiter>;
  /** Absent: the limiter's own. */
  readonly policy?: Given<Args, string>;
  readonly key: Given<Args, string>;
  /** Absent: 1. */
  readonly units?: Given<Args, Cost>;
  /** The longest wait in the queue, in milliseconds. Absent: none. */
  readonly waitMs?: number;
  /** How long a lease lives between two renewals, in milliseconds. Absent: what the policy says. */
  readonly ttlMs?: number;
  /** A lease is renewed for no longer than this, in milliseconds. Absent: an hour. */
  readonly mostMs?: number;
}

/** An answer that nobody reads, and nobody cancels, would be leased for ever. */
const MAX_MS = 3_600_000;
/** A lease is renewed so many times in its lifetime: one renewal that is lost does not end it. */
const RENEWALS = 3;

/** Asks for a lease. What the limiter throws is the application's error. */
export async function acquire<Args extends readonly unknown[]>(
  limiter: LeasingLimiter,
  options: LeaseOptions<Args>,
  args: Args,
): Promise<Grant> {
  const { policy, units, priority, waitMs, ttlMs } = options;
  const asked: AcquireRequest = {
    ...(policy !== undefined && { policy: await valueOf(policy, args) }),
    key: await keyOf(options.key, args),
    ...(units !== undefined && { units: await valueOf(units, args) }),
    ...(priority !== undefined && { priority: await valueOf(priority, args) }),
    ...(waitMs !== undefined && { waitMs }),
    ...(ttlMs !== undefined && { ttlMs }),
  };
  return await limiter.acquire(asked);
}

/**
 * Renews a lease until it is released.
 *
 * @returns releases it, once. A lease that cannot be released ends by itself, when it expires.
 */
export function keepLease(
  limiter: LeasingLimiter,
  { id, expiresAfterMs }: Lease,
  { ttlMs, mostMs = MAX_MS, time = SYSTEM_TIME }: Pick<LeaseOptions<[]>, "ttlMs" | "mostMs" | "time">,
): (end: End) => Promise<void> {
  const asked = { id, ...(ttlMs !== undefined && { ttlMs }) };
  const everyMs = Math.max(1, Math.floor(expiresAfterMs / RENEWALS));
  const endsAtMs = time.nowMs() + mostMs;
  let released: Promise<void> | undefined;
  let cancel = renewLater();
  function renewLater(): () => void {
    return time.after(everyMs, () => void renew());
  }
  async function renew(): Promise<void> {
    const isThere = await limiter.renew(asked).then(() => true, isWorthAnother);
    if (isThere && released === undefined && time.nowMs() < endsAtMs) cancel = renewLater();
  }
  return (end) => {
    cancel();
    const report = end === "torn" ? ({ outcome: "ignore" } as const) : {};
    released ??= limiter.release({ id, ...report }).catch(() => undefined);
    return released;
  };
}

/**
 * Whether a lease may be there still, though it was not renewed: it is gone only when the limiter says so. The error is
 * known by its status: the limiter may be of another bundle, with a class of its own.
 */
function isWorthAnother(error: unknown): boolean {
  const isRefusal = error instanceof Error && "status" in error && typeof error.status === "number";
  return !isRefusal || Number(error.status) >= 500;
}
