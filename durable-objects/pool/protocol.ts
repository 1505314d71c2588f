/**
 * The messages to a pool in Redis: one call of the script, and its answer. Every program that shares the pool sends
 * these messages, so they only grow: fields may be added, and none is renamed. docs/pools.md has the layout of the
 * keys.
 *
 * Calls contain only durations. Instants of the server's clock come out in marks, which only the server itself
 * understands. A list of units has one number for each rule, in the order of `rules`.
 */
import type { Policies } from "../../core/policies/policy.ts";
import type { RuleDecision } from "../../core/protocol/answers.ts";
import type { Full } from "../../core/protocol/problems.ts";
import { describe } from "../../core/validation.ts";

/** A pool of units, as a region's object calls it. */
export interface Pool {
  /**
   * Makes one call, in one round trip.
   *
   * @param keys all keys of the pool that the call may touch: see `poolKeys`
   * @throws when no answer that makes sense comes within the deadline; the pool may still carry out the call
   */
  call(keys: readonly string[], call: PoolCall, deadlineMs: number): Promise<PoolAnswer>;
}

/** One call of the script. */
export interface PoolCall {
  /**
   * - `limit`: decides on `cost` and takes it. If the policy leases units, and the call has `holding` and no
   *   `request`, the cost is added to the holder's units.
   * - `hold`: decides on `cost` and sets it apart under `id` for `ttlMs`. Units of rules that lease become a lease.
   * - `settle`: ends the hold or lease `id` and debits `used`; of a lease nothing is debited.
   * - `renew`: moves the end of the hold or lease `id` to `ttlMs` from now.
   * - `refund`: gives `cost` back, at most up to an untouched quota; with `isNamed`, only of one charge.
   * - `peek`: says what `cost` would be answered; takes nothing.
   * - `reset`: forgets consumption, and all holds and leases that `hold` made. Units of holders stay apart.
   */
  readonly op: "limit" | "hold" | "settle" | "renew" | "refund" | "peek" | "reset";
  readonly rules: readonly PoolRule[];
  /** Units of each rule. */
  readonly cost: readonly number[];
  /** The id of the hold or lease, which the caller draws. */
  readonly id?: string;
  /** Of `hold` and `renew`, in milliseconds. */
  readonly ttlMs?: number;
  /** Of `settle`: the units that were used; -1 for as many as were held. Absent: none were used (a cancel). */
  readonly used?: readonly number[];
  /**
   * The request as text. Present: the last of the call's keys is that of an idempotency key, and the call is charged
   * once, however often it comes. The same idempotency key with another text is a conflict.
   */
  readonly request?: string;
  /**
   * Of `refund`: the last key but one is that of the idempotency key of a `limit`. At most what that took comes back,
   * once, and nothing that time has given back since.
   */
  readonly isNamed?: true;
  /** Present: the caller is a holder, and this is its message. */
  readonly holding?: HolderMessage;
}

/** A rule, with the configuration of its algorithm. */
export interface PoolRule {
  readonly name: string;
  /** The name of an algorithm in the registry. */
  readonly algorithm: string;
  /** In units; `burst` only of a token bucket. */
  readonly limit: number;
  readonly burst?: number;
  /** Of a rate, in milliseconds. */
  readonly windowMs?: number;
  /** Of a sliding log. */
  readonly minIntervalMs?: number;
  readonly countDenied?: boolean;
}

/**
 * The message of a holder (a region). It reports everything about the holder, so it does not matter which of the
 * earlier messages arrived. The pool takes note of it before it decides on the call.
 */
export interface HolderMessage {
  /** The holder's id, which no other object has. */
  readonly holder: string;
  /** Rises with each message of the holder. */
  readonly turn: number;
  /** The holder has begun anew: `used` counts from 0, and it does not know which units of rates it had. */
  readonly isFresh: boolean;
  /** The mark of the last answer that reached the holder, if any. A pool that does not know it has lost writes. */
  readonly seen?: PoolMark;
  /** Units that the holder has used since it began; 0 for rules that lease. */
  readonly used: readonly number[];
  /** Units that the holder keeps. All others that it had are free again. */
  readonly kept: readonly number[];
  /** Units that the holder would like to have, including those that it keeps. The cost of the call comes on top. */
  readonly wanted: readonly number[];
  /** Calls had to wait for units: the holder uses at once what it is granted. */
  readonly isShort: boolean;
  /** How long the holder wants the units; and how long, when the pool cannot spare them for so long. */
  readonly lifetime: PoolLifetime;
  readonly shortest: PoolLifetime;
  /** The longest time in milliseconds for which a holder may have slots. After lost writes none are given for so long. */
  readonly mostHeldMs: number;
  /**
   * How many leases the holder has given, and how many callers wait at the holder. `peek` counts both. While callers
   * wait, the pool is contended for other holders.
   */
  readonly leases: number;
  readonly queueLength: number;
}

/** How long units are granted, in milliseconds. */
export interface PoolLifetime {
  /** How long the holder has them. Of rates, it stops spending a little earlier (`spendableMs`). */
  readonly ttlMs: number;
  /** How long the pool keeps them apart: never shorter than `ttlMs`. */
  readonly heldMs: number;
}

/** What the server remembers of an answer that it gave. The holder does not read it, and sends it back unchanged. */
export interface PoolMark {
  readonly turn: number;
  readonly atMs: number;
  readonly untilMs: number;
  readonly wholeMs?: number;
}

/** Numbers that the script computes grants with. `POOL_SIZING` (share.ts) has their values. */
export interface PoolSizing {
  /** The largest part of a capacity that one holder may have. */
  readonly mostShare: number;
  /** Units up to this part of what is free may be granted for longer than the shortest lifetime. */
  readonly spareShare: number;
  readonly mostHolders: number;
  /** A holder is remembered for so long after its units have expired, in milliseconds. */
  readonly rememberedMs: number;
  /** How many fencing tokens a holder may give out between two messages. */
  readonly fencingTokens: number;
}

/** The answer to one call. */
export interface PoolAnswer {
  /** Absent with `missing`, `conflict` and `full`, and after `renew`. */
  readonly rules?: readonly RuleDecision[];
  /** There is no such hold or lease, or it has ended. */
  readonly missing?: true;
  /** The idempotency key was used before for another request, which is given here. */
  readonly conflict?: { readonly request: string };
  /** Of `hold`: the key has as many holds as it may have. Nothing was set apart. */
  readonly full?: Full["full"];
  /** Of `hold`: what was set apart. Durations are in milliseconds. */
  readonly hold?: { readonly id: string; readonly expiresAfterMs: number; readonly fencingToken?: string };
  /** Of `renew`: how long the hold or lease lasts, in milliseconds. */
  readonly expiresAfterMs?: number;
  /** Present when the call had `holding`. */
  readonly granted?: PoolGrant;
  /** With `granted`, when a cost of 1 would be denied: what it would be answered. */
  readonly next?: readonly RuleDecision[];
  /** Of `peek`: who has units of the pool. `Peeked` (core/protocol/answers.ts) explains the fields. */
  readonly report?: {
    readonly outstanding: number;
    readonly holds: number;
    readonly leases: number;
    readonly reclaimed: number;
    readonly queueLength: number;
  };
}

/** What a holder is granted. */
export interface PoolGrant {
  /** The pool noted a later message of the holder before, with this turn. It took no note of this message. */
  readonly overtakenBy?: number;
  readonly mark: PoolMark;
  /** The pool did not know the holder's units (expired, or lost): of rates, the holder may not spend what it kept. */
  readonly isNew: boolean;
  /**
   * Units beside those that the holder keeps and the cost. A number below 0 says how many of the slots that it kept are
   * not there any more.
   */
  readonly units: readonly number[];
  /** In milliseconds; that of `lifetime` or of `shortest`. 0 when the pool took no note of the message. */
  readonly ttlMs: number;
  /** Other holders want units too: this holder should give back at once what it does not need. */
  readonly isContended: boolean;
  /** The first of the fencing tokens that the holder may give out now, a decimal number as text. */
  readonly fencingToken?: string;
}

/** The address of a Redis, and the token that Upstash's REST API wants. */
export interface PoolAddress {
  readonly url: string;
  readonly token: string;
}

const HOW =
  "must be a secret, as the Upstash console shows it: npx wrangler secret put <NAME>; locally a line in .dev.vars";

/**
 * The secrets that pools need; `undefined`: no policy has a pool.
 *
 * @throws Error when a policy has a pool and a secret is missing or malformed: every call of that policy would fail,
 *   so the worker does not start
 */
export function requirePool(
  policies: Policies,
  vars: { readonly UPSTASH_REDIS_REST_URL?: unknown; readonly UPSTASH_REDIS_REST_TOKEN?: unknown },
): PoolAddress | undefined {
  const pooled = [...policies.values()].find(({ pool }) => pool !== undefined);
  if (pooled === undefined) return undefined;
  const { UPSTASH_REDIS_REST_URL: url, UPSTASH_REDIS_REST_TOKEN: token } = vars;
  const hasUrl = typeof url === "string" && /^https?:\/\/[^\s/]/.test(url);
  const hasToken = typeof token === "string" && token.trim() !== "";
  if (hasUrl && hasToken) return { url, token };
  const urlProblem = `UPSTASH_REDIS_REST_URL is ${url === undefined ? "missing" : describe(url)}: ${HOW} (an address that begins with https:// or http://)`;
  const tokenProblem = `UPSTASH_REDIS_REST_TOKEN is ${token === undefined ? "missing" : "empty"}: ${HOW}`;
  throw new Error(
    [
      "bad configuration, not serving:",
      `policy ${JSON.stringify(pooled.name)}: pool = "redis" needs two secrets`,
      ...(hasUrl ? [] : [urlProblem]),
      ...(hasToken ? [] : [tokenProblem]),
    ].join("\n"),
  );
}
