/** A lease for the duration of a request and its answer's stream, without a framework. */
import type {
  AcquireRequest,
  CallFields,
  Grant,
  GrantedLease,
  Limiter,
  withRelease,
} from "../client/limiter.ts";
import { SYSTEM_TIME, type Time } from "../core/clock.ts";
import { busyBody } from "../core/protocol/denied-body.ts";
import { endedStream } from "./ended-stream.ts";
import { type Given, type GivenFields, type InBackground, limiterOf, valuesOf } from "./options.ts";
import type { SharedOptions } from "./rate-limited.ts";
import { headerPolicies, RequestLimits, type RequestLease } from "./request-limits.ts";
import { type End, keyOf, refusalOf, SKIPPED, type Verdict, verdictOn } from "./verdict.ts";

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

/** Leases units for a request, and notes the decision. Errors of the limiter are the application's. */
export async function leased<Args extends readonly unknown[]>(
  request: object,
  options: LeaseOptions<Args>,
  args: Args,
  inBackground: InBackground,
): Promise<Verdict> {
  const { skip, time = SYSTEM_TIME } = options;
  if (skip !== undefined && (await skip(...args))) return SKIPPED;
  const limiter = await limiterOf(options.limiter, args);
  // The list first: a granted lease must not wait for anything that may fail.
  const policies = await headerPolicies(limiter, time, inBackground);
  const grant = await acquire(limiter, options, args).catch(refusalOf);
  if (!("success" in grant)) return grant;
  const outcome = { success: grant.success, decisions: [grant] };
  const verdict = verdictOn(request, outcome, policies, () => busyBody(grant), time);
  const { endHere }: ReturnType<typeof withRelease> = grant;
  const kept = grant.lease && new KeptLease(limiter, grant.lease, options, endHere);
  if (kept !== undefined) RequestLimits.of(request).noteLease(grant.policy, kept);
  const end = (how: End) => {
    const released = kept?.release(how);
    if (released !== undefined) inBackground(released);
  };
  return { ...verdict, end };
}

async function acquire<Args extends readonly unknown[]>(
  limiter: LeasingLimiter,
  options: LeaseOptions<Args>,
  args: Args,
): Promise<Grant> {
  const { waitMs, ttlMs } = options;
  const params: AcquireRequest = {
    ...(await valuesOf<AcquireRequest>(options, ["policy", "units", "plan", "group", "priority"], args)),
    key: await keyOf(options.key, args),
    ...(waitMs !== undefined && { waitMs }),
    ...(ttlMs !== undefined && { ttlMs }),
  };
  return await limiter.acquire(params);
}

/** How a lease is kept. */
type KeepOptions = Pick<LeaseOptions<[]>, "ttlMs" | "mostMs" | "time">;

/**
 * A lease that is renewed until it is released, or lost: with one timer and no message while its request is shorter than
 * the time until the first renewal, and without the timer if it waits for nothing. An object and no closures: most
 * requests need none of it, and each closure is made anew.
 */
export class KeptLease implements RequestLease {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
  readonly #limiter: LeasingLimiter;
  readonly #ttlMs: number | undefined;
  readonly #time: Time;
  readonly #endHere: (() => boolean) | undefined;
  readonly #sinceMs: number;
  readonly #endsAtMs: number;
  /** `true`: it has ended here. */
  #released: Promise<void> | true | undefined;
  /** The runtime's signals are dear, and few handlers ask for one. */
  #lost: AbortController | undefined;
  #lostBy: unknown;
  #cancelRenewal: (() => void) | undefined;
  #cancelExpiry: (() => void) | undefined;

  /** @param endHere ends it in this isolate, if it can (`withRelease`) */
  constructor(
    limiter: LeasingLimiter,
    granted: GrantedLease,
    { ttlMs, mostMs = MAX_MS, time = SYSTEM_TIME }: KeepOptions,
    endHere?: () => boolean,
  ) {
    this.id = granted.id;
    this.fencingToken = granted.fencingToken;
    this.expiresAfterMs = granted.expiresAfterMs;
    this.#limiter = limiter;
    this.#ttlMs = ttlMs;
    this.#time = time;
    this.#endHere = endHere;
    this.#sinceMs = time.nowMs();
    this.#endsAtMs = this.#sinceMs + mostMs;
    void this.#renewLater();
    const own = granted.signal as AbortSignal | undefined;
    if (own === undefined) return;
    own.addEventListener("abort", () => this.#lose(own.reason));
    if (own.aborted) this.#lose(own.reason);
  }

  get signal(): RequestLease["signal"] {
    this.#lost ??= new AbortController();
    if (this.#lostBy !== undefined) this.#lost.abort(this.#lostBy);
    return this.#lost.signal as unknown as RequestLease["signal"];
  }

  /** Releases it, once. If that fails, the lease expires. `undefined`: it has ended, without a message. */
  release(end: End): Promise<void> | undefined {
    this.#stop();
    this.#released ??= this.#endHere?.() === true || this.#send(end);
    return this.#released === true ? undefined : this.#released;
  }

  #send(end: End): Promise<void> {
    const report = end === "aborted" ? ({ outcome: "ignore" } as const) : {};
    return this.#limiter.release({ id: this.id, ...report }).catch(() => undefined);
  }

  #stop(): void {
    this.#cancelRenewal?.();
    this.#cancelExpiry?.();
  }

  #lose(reason: unknown = new Error(`the lease ${this.id} is lost`)): void {
    this.#stop();
    if (this.#released !== undefined) return;
    this.#lostBy ??= reason;
    this.#lost?.abort(this.#lostBy);
  }

  get #everyMs(): number {
    return Math.max(1, Math.floor(this.expiresAfterMs / RENEWALS));
  }

  get #isOver(): boolean {
    return this.#released !== undefined || this.#lostBy !== undefined;
  }

  /** Timers of the runtime are dear: a request that is over before the event loop turns has none. */
  async #renewLater(): Promise<void> {
    for (let turns = 0; turns < TURNS && !this.#isOver; turns += 1) await Promise.resolve();
    if (!this.#isOver) this.#cancelRenewal = this.#time.after(this.#everyMs, () => this.#renew());
  }

  #renew(): void {
    // Before its first renewal the lease does not expire, and most requests are shorter. The timer may be late.
    const passedMs = Math.max(this.#everyMs, this.#time.nowMs() - this.#sinceMs);
    this.#cancelExpiry ??= this.#time.after(Math.max(0, this.expiresAfterMs - passedMs), () => this.#lose());
    void this.#renewed();
  }

  async #renewed(): Promise<void> {
    const time = this.#time;
    const sentMs = time.nowMs();
    const params = { id: this.id, ...(this.#ttlMs !== undefined && { ttlMs: this.#ttlMs }) };
    const answer = await this.#limiter.renew(params).catch(mayBeThere);
    if (this.#isOver) return;
    if (answer === false) return this.#lose();
    const nowMs = time.nowMs();
    if (answer !== true) {
      this.#cancelExpiry?.();
      const leftMs = Math.max(0, answer.expiresAfterMs - (nowMs - sentMs));
      this.#cancelExpiry = time.after(leftMs, () => this.#lose());
    }
    if (nowMs < this.#endsAtMs) this.#cancelRenewal = time.after(this.#everyMs, () => this.#renew());
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
