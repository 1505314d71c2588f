/** A lease for the duration of a request and its answer's stream, without a framework. */
import type {
  AcquireRequest,
  CallFields,
  Grant,
  GrantedLease,
  Limiter,
  withRelease,
} from "../client/limiter.ts";
import { SYSTEM_TIME } from "../core/clock.ts";
import { busyBody } from "../core/protocol/denied-body.ts";
import { type Caller, waits } from "./callers.ts";
import { endedStream } from "./ended-stream.ts";
import {
  type Given,
  type GivenFields,
  type InBackground,
  requireLimiter,
  valueOf,
  valuesOf,
} from "./options.ts";
import type { SharedOptions } from "./rate-limited.ts";
import { unlessRefused } from "./refused-calls.ts";
import { headerPolicies, RequestLimits, type RequestLease } from "./request-limits.ts";
import { type End, LEFT, refusalOf, requireKeySize, SKIPPED, type Verdict, verdictOn } from "./verdict.ts";

export type LeasingLimiter = Pick<Limiter, "acquire" | "renew" | "release" | "policies">;

export type LeaseOptions<Args extends readonly unknown[]> = SharedOptions<Args> &
  GivenFields<Args, CallFields<"leases", "plan" | "priority" | "units" | "group">> & {
    readonly limiter: Given<Args, LeasingLimiter>;
    readonly key: Given<Args, string>;
    /** The longest wait in the queue, in milliseconds. Absent: none. */
    readonly waitMs?: number;
    /** The lifetime between two renewals, in milliseconds. Absent: the policy's ttl. */
    readonly ttlMs?: number;
    /** The longest time for which a lease is renewed, in milliseconds. Absent: an hour. */
    readonly mostMs?: number;
  };

/** Without it, an answer that is neither read nor cancelled would be leased for ever. */
const MAX_MS = 3_600_000;
/** Renewals in a lifetime: one lost renewal does not end the lease. */
const RENEWALS = 3;
/** So many turns of the microtask queue take less than a timer, and are enough for a handler that waits for nothing. */
const TURNS = 32;
const FIELDS = ["waitMs", "ttlMs", "policy", "units", "plan", "group", "priority", "key"] as const;

/**
 * Leases units for a request, and notes the decision. A caller that leaves the queue gets none. Refusals of the
 * limiter are the application's errors.
 */
export async function leased<Args extends readonly unknown[]>(
  request: object,
  options: LeaseOptions<Args>,
  args: Args,
  inBackground: InBackground,
  caller: Caller,
): Promise<Verdict> {
  const { skip, time = SYSTEM_TIME } = options;
  if (skip !== undefined && (await skip(...args))) return SKIPPED;
  const limiter = requireLimiter(await valueOf(options.limiter, args));
  // The list first: a granted lease must not wait for anything that may fail.
  const policies = await headerPolicies(limiter, time, inBackground);
  const signal = waits(options) ? caller.signal : undefined;
  let grant: Grant & Partial<ReturnType<typeof withRelease>>;
  try {
    const values = await valuesOf<AcquireRequest>(options, FIELDS, args);
    requireKeySize(options.key, values.key);
    grant = await unlessRefused(() => limiter.acquire({ ...values, ...(signal && { signal }) }));
  } catch (error) {
    return refusalOf(error, signal);
  }
  const outcome = { success: grant.success, decisions: [grant] };
  const verdict = verdictOn(request, outcome, policies, () => busyBody(grant), time);
  const kept = grant.lease && keepLease(limiter, grant.lease, options, grant.endHere);
  const end = (how: End) => {
    const released = kept?.release(how);
    if (released !== undefined) inBackground(released);
  };
  if (signal?.aborted === true) {
    end("aborted");
    return LEFT;
  }
  if (kept === undefined) return verdict;
  RequestLimits.of(request).noteLease(grant.policy, kept.lease);
  return { ...verdict, end };
}

/** A lease that is renewed until it is released, or lost. */
interface KeptLease {
  readonly lease: RequestLease;
  /** Releases it, once. If that fails, the lease expires. `undefined`: it has ended, without a message. */
  readonly release: (end: End) => Promise<void> | undefined;
}

/**
 * Keeps a lease, with one timer and no message while its request is shorter than the time until the first renewal, and
 * without the timer if it waits for nothing.
 * @param endHere ends it in this isolate, if it can (`withRelease`)
 */
export function keepLease(
  limiter: LeasingLimiter,
  granted: GrantedLease,
  { ttlMs, mostMs = MAX_MS, time = SYSTEM_TIME }: Pick<LeaseOptions<[]>, "ttlMs" | "mostMs" | "time">,
  endHere?: () => boolean,
): KeptLease {
  const { id, expiresAfterMs } = granted;
  const params = { id, ...(ttlMs !== undefined && { ttlMs }) };
  const everyMs = Math.max(1, Math.floor(expiresAfterMs / RENEWALS));
  const sinceMs = time.nowMs();
  const endsAtMs = sinceMs + mostMs;
  /** `true`: it has ended here. */
  let released: Promise<void> | true | undefined;
  // The runtime's signals are dear, and few handlers ask for one.
  let lost: AbortController | undefined;
  let lostBy: unknown;
  let cancelRenewal: (() => void) | undefined;
  let cancelExpiry: (() => void) | undefined;
  function stop(): void {
    cancelRenewal?.();
    cancelExpiry?.();
  }
  function lose(reason: unknown = new Error(`the lease ${id} is lost`)): void {
    stop();
    if (released !== undefined) return;
    lostBy ??= reason;
    lost?.abort(lostBy);
  }
  async function renewed(): Promise<void> {
    const sentMs = time.nowMs();
    const answer = await limiter.renew(params).catch(mayBeThere);
    if (released !== undefined || lostBy !== undefined) return;
    if (answer === false) return lose();
    const nowMs = time.nowMs();
    if (answer !== true) {
      cancelExpiry?.();
      cancelExpiry = time.after(Math.max(0, answer.expiresAfterMs - (nowMs - sentMs)), lose);
    }
    if (nowMs < endsAtMs) cancelRenewal = time.after(everyMs, renew);
  }
  function renew(): void {
    // Before its first renewal the lease does not expire, and most requests are shorter. The timer may be late.
    const passedMs = Math.max(everyMs, time.nowMs() - sinceMs);
    cancelExpiry ??= time.after(Math.max(0, expiresAfterMs - passedMs), lose);
    void renewed();
  }
  // Timers of the runtime are dear: a request that is over before the event loop turns has none.
  void (async () => {
    for (let turns = 0; turns < TURNS && released === undefined; turns += 1) await Promise.resolve();
    if (released === undefined && lostBy === undefined) cancelRenewal = time.after(everyMs, renew);
  })();
  const own = granted.signal as AbortSignal | undefined;
  own?.addEventListener("abort", () => lose(own.reason));
  if (own?.aborted === true) lose(own.reason);
  const signal = (): RequestLease["signal"] => {
    lost ??= new AbortController();
    if (lostBy !== undefined) lost.abort(lostBy);
    return lost.signal as unknown as RequestLease["signal"];
  };
  const release = (end: End) => {
    stop();
    const report = end === "aborted" ? ({ outcome: "ignore" } as const) : {};
    released ??= endHere?.() === true || limiter.release({ id, ...report }).catch(() => undefined);
    return released === true ? undefined : released;
  };
  return {
    lease: new LeaseInUse(granted, signal),
    release,
  };
}

/** What the handler has of a lease. */
class LeaseInUse implements RequestLease {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
  readonly #signal: () => RequestLease["signal"];

  constructor({ id, fencingToken, expiresAfterMs }: GrantedLease, signal: () => RequestLease["signal"]) {
    this.id = id;
    this.fencingToken = fencingToken;
    this.expiresAfterMs = expiresAfterMs;
    this.#signal = signal;
  }

  get signal(): RequestLease["signal"] {
    return this.#signal();
  }
}

/** Whether a lease may exist after a failed renewal. Error classes differ by bundle: the status decides. */
function mayBeThere(error: unknown): boolean {
  const isRefusal = error instanceof Error && "status" in error && typeof error.status === "number";
  return !isRefusal || Number(error.status) >= 500;
}

/**
 * The same response. `end` is called once when its body was read, was cancelled or failed, or at once without
 * a body or when protocols are switched.
 */
export function untilEnded(response: Response, end: (end: End) => void): Response {
  if (response.body === null || response.status === 101) {
    end("complete");
    return response;
  }
  return new Response(endedStream(response.body, end), response);
}
