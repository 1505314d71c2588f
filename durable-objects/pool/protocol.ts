/**
 * The messages to a pool in Redis: one call of the script, and its answer. All programs that share a pool
 * send them: add fields, never rename one. docs/pools.md has the layout of the keys.
 *
 * Calls contain only durations. Instants of the server's clock are only in marks, which only the server
 * reads. A list of units has one number per rule, in the order of `rules`.
 */
import type { Policies } from "../../core/policies/policy.ts";
import type { Decided, Peeked, RuleDecision } from "../../core/protocol/answers.ts";
import type { Full } from "../../core/protocol/problems.ts";
import { describe } from "../../core/violations.ts";

export interface Pool {
  /** `keys`: all that the call may touch. @throws without a valid answer in time; it may still be executed */
  call(keys: readonly string[], call: PoolCall, deadlineMs: number): Promise<PoolAnswer>;
}

export interface PoolCall {
  /**
   * - `limit`: decides on `cost` and takes it. With `holding`, without `request` and under a policy that
   *   leases units, the cost is added to the holder's units.
   * - `hold`: decides on `cost` and holds it as `id` for `ttlMs`. Units of rules that lease become a lease.
   * - `settle`: ends the hold or lease `id` and debits `used`; of a lease nothing is debited.
   * - `renew`: moves the end of the hold or lease `id` to `ttlMs` from now.
   * - `refund`: returns `cost`, at most up to an untouched quota; with `isNamed`, only of one charge.
   * - `peek`: decides on `cost`; takes nothing.
   * - `reset`: deletes usage, and all holds and leases of `hold`. Units of holders stay held.
   */
  readonly op: "limit" | "hold" | "settle" | "renew" | "refund" | "peek" | "reset";
  readonly rules: readonly PoolRule[];
  /** By rule. */
  readonly cost: readonly number[];
  /** The id of the hold or lease, which the caller makes. */
  readonly id?: string;
  /** Of `hold` and `renew`, in milliseconds. */
  readonly ttlMs?: number;
  /** Of `settle`: the used units; -1 for as many as were held. Absent: none (a cancel). */
  readonly used?: readonly number[];
  /** The request as text. With it, the last key is an idempotency key: the call is charged once. */
  readonly request?: string;
  /** Of `limit` with `request`: a denial of this round or a later one stands (`Attempt`). */
  readonly round?: number;
  /** Of `refund`: the last key but one is a `limit`'s idempotency key, whose remaining units return once. */
  readonly isNamed?: true;
  /** With `request`: the plan that decides, stored with the answer. Absent: the policy has no plans. */
  readonly plan?: string;
  /** With `isNamed`: the rules of each plan, since the charge may be of another one. */
  readonly plans?: Readonly<Record<string, readonly PoolRule[]>>;
  /** The mark of the caller's last answer; 0: none yet. Present: the answer has one. */
  readonly seen?: PoolWrites & Pick<HolderMessage, "mostHeldMs">;
  /** Present: the caller is a holder, and this is its message. */
  readonly holding?: HolderMessage;
}

export interface PoolRule {
  readonly name: string;
  /** A name in the registry of algorithms. */
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

/** Reports the complete holder (a region), so lost messages do not matter. Applied before the decision. */
export interface HolderMessage {
  /** Unique to this object. */
  readonly holder: string;
  /** Rises with each message of the holder. */
  readonly turn: number;
  /** The holder has restarted: `used` counts from 0, and its earlier units of rates are unknown. */
  readonly isFresh: boolean;
  /** The mark of the last answer received, if any. A pool that does not know it has lost writes. */
  readonly seen?: PoolMark;
  /** Units used since the holder began; 0 for rules that lease. */
  readonly used: readonly number[];
  /** Units that the holder keeps. Its others are free again. */
  readonly kept: readonly number[];
  /** Units that the holder wants, including those that it keeps, without the cost of the call. */
  readonly wanted: readonly number[];
  /** Calls had to wait for units: the holder uses its grant at once. */
  readonly isShort: boolean;
  /** How long the holder wants the units, and how long if the pool cannot spare them for that time. */
  readonly lifetime: PoolLifetime;
  readonly shortest: PoolLifetime;
  /** The longest time for which a holder may have slots. After lost writes none are granted for that long. */
  readonly mostHeldMs: number;
  /** For `peek`. While callers wait, the pool is contended for other holders. */
  readonly leases: number;
  readonly queueLength: number;
}

export interface PoolLifetime {
  /** How long the holder has them. Of rates, it stops spending a little earlier (`spendableMs`). */
  readonly ttlMs: number;
  /** How long the pool holds them: never shorter than `ttlMs`. */
  readonly heldMs: number;
}

/** The server's memory of an answer. The holder sends it back unchanged. */
export interface PoolMark {
  readonly turn: number;
  readonly atMs: number;
  readonly untilMs: number;
  readonly wholeMs?: number;
}

/** The server's memory of its writes: the last one, and when everything will be whole. Sent back unchanged. */
export interface PoolWrites {
  readonly atMs: number;
  readonly wholeMs: number;
}

/** The script's parameters for grants. `POOL_SIZING` (share.ts) has their values. */
export interface PoolSizing {
  /** The largest part of a capacity that one holder may have. */
  readonly mostShare: number;
  /** Units up to this part of the free ones may be granted for longer than the shortest lifetime. */
  readonly spareShare: number;
  readonly mostHolders: number;
  /** How long a holder is remembered after its units have expired, in milliseconds. */
  readonly rememberedMs: number;
  /** How many fencing tokens a holder may use between two messages. */
  readonly fencingTokens: number;
}

export interface PoolAnswer {
  /** Absent with `missing`, `conflict` and `full`, and after `renew`. */
  readonly rules?: readonly RuleDecision[];
  /** The plan that decided, if it was stored with the answer. */
  readonly plan?: string;
  /** The hold or lease does not exist, or has ended. */
  readonly missing?: true;
  /** The idempotency key was used before for this other request. */
  readonly conflict?: { readonly request: string };
  /** Of `hold`: the key has its maximum of holds. Nothing was held. */
  readonly full?: Full["full"];
  /** Of `hold`. Durations are in milliseconds. */
  readonly hold?: { readonly id: string; readonly expiresAfterMs: number; readonly fencingToken?: string };
  readonly expiresAfterMs?: number;
  /** With `round`: the denial is stored. */
  readonly deniedIn?: Decided["deniedIn"];
  readonly granted?: PoolGrant;
  /** With `seen`. */
  readonly mark?: PoolWrites;
  /** With `granted`, the denial of a cost of 1, if it would be denied. */
  readonly next?: readonly RuleDecision[];
  readonly report?: Pick<Peeked, "outstanding" | "holds" | "leases" | "reclaimed" | "queueLength">;
}

export interface PoolGrant {
  /** The turn of a later message that the pool got before. It ignored this message. */
  readonly overtakenBy?: number;
  readonly mark: PoolMark;
  /** The holder's units were unknown (expired, or lost): it may not spend kept units of rates. */
  readonly isNew: boolean;
  /** Units beside the kept ones and the cost. Below 0: as many of the kept slots are gone. */
  readonly units: readonly number[];
  /** By rule: used and held units over the limit, which was lowered. The holder leaves as many unused. Absent: none. */
  readonly surplus?: readonly number[];
  /** In milliseconds, from `lifetime` or `shortest`. 0 if the pool ignored the message. */
  readonly ttlMs: number;
  /** Other holders want units too: this holder should return spare ones at once. */
  readonly isContended: boolean;
  /** The first fencing token that the holder may use now, as decimal text. */
  readonly fencingToken?: string;
}

/** The address of a Redis, and the token for Upstash's REST API. */
export interface PoolAddress {
  readonly url: string;
  readonly token: string;
}

const HOW =
  "must be a secret, as the Upstash console shows it: npx wrangler secret put <NAME>; locally a line in .dev.vars";

/**
 * The secrets for pools; `undefined`: no policy has a pool.
 *
 * @throws Error when one is missing or malformed, so that the worker does not start
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
  const needs = `policy ${JSON.stringify(pooled.name)}: pool = "redis" needs two secrets`;
  const problems = [...(hasUrl ? [] : [urlProblem]), ...(hasToken ? [] : [tokenProblem])];
  throw new Error(["bad configuration, not serving:", needs, ...problems].join("\n"));
}
