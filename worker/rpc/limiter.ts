import { WorkerEntrypoint } from "cloudflare:workers";
import type { Lease } from "../../core/protocol/answers.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import type { AllDecisions, Decision, KeyReport } from "../../core/protocol/decision.ts";
import type { LeaseReport } from "../../core/protocol/messages.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import type { ReservationsReply, ReservationsMessage } from "../../core/protocol/reservation-messages.ts";
import type { Scope } from "../auth/tokens.ts";
import { catalogCallerOf, freshen } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { callCancel, callHold, callSettle } from "../calls/holds.ts";
import { callKeyCount, callKeys, type KeyCount, type KeyList } from "../calls/keys.ts";
import { callRelease, callRenew } from "../calls/leases.ts";
import { callLimitSeveral } from "../calls/limit-all.ts";
import { callLimit, callPeek, callRefund, callReset, callSetUsed } from "../calls/limits.ts";
import { listPolicies, type PolicyList } from "../calls/policy-list.ts";
import { callReserve } from "../calls/reservations.ts";
import type { TargetAnswer } from "../calls/target.ts";
import { plain } from "../calls/validate.ts";
import { callAcquireBound, type Grant } from "./bound-acquire.ts";
import { type BoundCall, completed, orThrow, readAlone, readCall } from "./bound-call.ts";
import { CatalogTarget } from "./catalog-target.ts";

export type { Grant } from "./bound-acquire.ts";

/**
 * The limiter as a service binding. It has the same calls as HTTP and gives the same answers, without a token:
 * whoever is bound may call. Bad input throws a LimiterError that says what HTTP would. The binding's `props` may say
 * what its calls may do, in the words of a token: `scopes`, `policies`, `keyPrefix`.
 *
 * With `props = { policy = "api" }` on the binding, `policy` may be left out. Then `limit({ key })` is enough, and
 * the binding can take the place of Cloudflare's own rate limit binding.
 */
export class Limiter extends WorkerEntrypoint<Env, unknown> {
  /**
   * Takes a cost (default 1) if it fits, waiting up to `waitMs` milliseconds for its turn; a cost of 0 looks. A denial is
   * an answer, not an error. With `force` the cost is taken whatever is there.
   */
  async limit(asked: Call<Idempotent & Charging>): Promise<Decision> {
    return answerOf(await callLimit(...(await this.#read(asked, ["limit", "force", "admin"]))));
  }

  /** Takes the costs of up to 16 checks: of all or of none. Without `atomic`, up to 100, each decided by itself. */
  async limitAll(
    asked: Idempotent &
      Prioritised &
      Regional & { readonly checks: readonly Call<{ readonly cost?: Cost }>[]; readonly atomic?: boolean },
  ): Promise<AllDecisions> {
    const [client, principal] = await this.#read(asked);
    // Spread first: a caller without types may have given nothing.
    const { region: _, ...input } = { ...plain(asked) };
    const { checks } = input;
    const complete = Array.isArray(checks)
      ? { ...input, checks: checks.map((check: unknown) => completed(this.env, this.ctx.props, check)[2]) }
      : input;
    return orThrow(await callLimitSeveral(client, principal, complete));
  }

  /** Gives back units of one `charge`, once per `idempotencyKey`; without a charge, whatever is missing. */
  async refund(
    asked: Call<{ readonly units: Cost; readonly idempotencyKey: string; readonly charge?: string }>,
  ): Promise<Decision> {
    return answerOf(await callRefund(...(await this.#read(asked, ["limit", "refund"]))));
  }

  /** Sets units apart until it is known how many were used: `settle`, or `cancel` when none were. */
  async hold(
    asked: Call<Idempotent & Prioritised & { readonly units: Cost; readonly ttlMs?: number }>,
  ): Promise<Decision> {
    return answerOf(await callHold(...(await this.#read(asked))));
  }

  /** Ends a hold with the units really used. */
  async settle(asked: { readonly id: string; readonly used: Cost }): Promise<Decision> {
    return answerOf(await callSettle(...(await this.#readAlone(asked))));
  }

  /** Ends a hold of which nothing was used. */
  async cancel(asked: { readonly id: string }): Promise<void> {
    return orThrow((await callCancel(...(await this.#readAlone(asked)))) ?? undefined);
  }

  /**
   * Leases units, waiting up to `waitMs` milliseconds in the queue. The lease ends when the caller ends, in whatever
   * way, and `using` ends it sooner. A `detached` lease ends with `release`, or when it expires. With `graceMs` a lease
   * that is not released stays for so long after its caller has ended, and another acquire may `resume` it by its id.
   */
  async acquire(
    asked: Call<
      Idempotent &
        Prioritised &
        Reporting & {
          readonly units?: Cost;
          readonly ttlMs?: number;
          readonly waitMs?: number;
          readonly detached?: boolean;
          /** How long the lease outlives a link that breaks or is disposed of, in milliseconds. Absent: not at all. */
          readonly graceMs?: number;
          /** The id of a lease of this policy and key, which this call takes over. It asks for no other. */
          readonly resume?: string;
          /** As over HTTP, but of no effect: a lease over the binding is confirmed for its caller. */
          readonly confirm?: boolean;
        }
    >,
  ): Promise<Grant> {
    return answerOf(await callAcquireBound(...(await this.#read(asked, undefined, true))));
  }

  /** Moves a lease's end to `ttlMs` milliseconds from now; by default as long as it was asked for at first. */
  async renew(asked: { readonly id: string; readonly ttlMs?: number }): Promise<Lease> {
    return orThrow(await callRenew(...(await this.#readAlone(asked))));
  }

  /** Ends a lease, and may report how the call went. The next caller in the queue gets its units at once. */
  async release(asked: { readonly id: string } & LeaseReport): Promise<void> {
    return orThrow(await callRelease(...(await this.#readAlone(asked))));
  }

  /** What `limit({ key })` would be answered, and how many units are held and waited for. Takes nothing. */
  async peek(asked: Call<{ readonly waitFor?: "idle"; readonly waitMs?: number }>): Promise<KeyReport> {
    return answerOf(await callPeek(...(await this.#read(asked, ["limit", "admin"]))));
  }

  /** Sets what the key has used: more than the limit is a debt. Holds and leases stay. */
  async setUsed(asked: Call<{ readonly used: Cost }>): Promise<KeyReport> {
    return answerOf(await callSetUsed(...(await this.#read(asked, ["admin"]))));
  }

  /** Makes the key as new. */
  async reset(asked: Call<object>): Promise<void> {
    return answerOf(await callReset(...(await this.#read(asked, ["admin"]))));
  }

  /** The keys of a policy with a number of objects, page by page. */
  async keys(asked: Listing & { readonly limit?: number }): Promise<KeyList> {
    return orThrow(await callKeys(...(await this.#read(asked, ["admin"]))));
  }

  /** How many keys a policy with a number of objects has. */
  async countKeys(asked: Listing): Promise<KeyCount> {
    return orThrow(await callKeyCount(...(await this.#read(asked, ["admin"]))));
  }

  /** Holds units of many keys in the caller's own process: the message of `POST /v1/reservations`. */
  async reserve(asked: ReservationsMessage): Promise<ReservationsReply> {
    return orThrow(await callReserve(...(await this.#readAlone(asked, ["reserve"]))));
  }

  /** What changes at run time: policies, overrides, tokens. Dispose of it when done (`using`). */
  async catalog(): Promise<CatalogTarget> {
    const [, principal] = await this.#readAlone({}, ["limit", "admin"]);
    return new CatalogTarget(orThrow(catalogCallerOf(this.env, principal)));
  }

  /** The policies of this deployment. */
  async policies(): Promise<PolicyList> {
    const [client, principal] = await this.#readAlone({}, ["limit", "admin"]);
    return listPolicies(client, principal);
  }

  #read(asked: unknown, scopes?: readonly Scope[], isHeld?: boolean): BoundCall | Promise<BoundCall> {
    const read = () => readCall(this.env, this.ctx.props, asked, scopes);
    return freshen(this.env, isHeld)?.then(read) ?? read();
  }

  #readAlone(asked: unknown, scopes?: readonly Scope[]): BoundCall | Promise<BoundCall> {
    const read = () => readAlone(this.env, this.ctx.props, asked, scopes);
    return freshen(this.env)?.then(read) ?? read();
  }
}

function answerOf<Answer>(answered: TargetAnswer<Answer> | Problem): Answer {
  return orThrow(answered).answer;
}

/* What calls over the service binding may say, as callers give it. */

/** A call. `policy` may be left out when the binding's `props` have it. */
type Call<Fields> = Fields & Regional & { readonly policy?: string; readonly key: string };
interface Regional {
  /**
   * For a policy with a pool, the region to ask. By default it is where this isolate is, as far as an HTTP request
   * has told.
   */
  readonly region?: string;
}
interface Idempotent {
  readonly idempotencyKey?: string;
}
interface Prioritised {
  readonly priority?: string;
}
/** Of a policy, the keys with a prefix, from a cursor on. */
type Listing = Partial<Record<"policy" | "prefix" | "cursor", string>>;
interface Reporting {
  /** How busy the caller's machine is, from 0 to 1. */
  readonly utilization?: number;
}
type Charging = Prioritised &
  Reporting & {
    readonly cost?: Cost;
    readonly refundable?: boolean;
    readonly waitMs?: number;
    readonly force?: boolean;
  };
