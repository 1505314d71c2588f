import { WorkerEntrypoint } from "cloudflare:workers";
import type { Lease } from "../../core/protocol/answers.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import {
  degradedDecision,
  type AllDecisions,
  type Decision,
  type KeyReport,
} from "../../core/protocol/decision.ts";
import type { LeaseReport } from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { ReservationsAnswered, ReservationsAsked } from "../../core/protocol/reservation-messages.ts";
import type { Scope } from "../auth/tokens.ts";
import type { Env } from "../bindings/env.ts";
import { callCancel, callHold, callSettle } from "../calls/holds.ts";
import type { KeyCount, KeyList } from "../calls/key-requests.ts";
import { callKeyCount, callKeys } from "../calls/keys.ts";
import { acquireOf, callRelease, callRenew } from "../calls/leases.ts";
import { callLimitSeveral } from "../calls/limit-several.ts";
import { callLimit, callPeek, callRefund, callReset, callSetUsed } from "../calls/limits.ts";
import type { PolicyList } from "../calls/policy-list-schema.ts";
import { listPolicies } from "../calls/policy-list.ts";
import { BoundAcquireRequest } from "../calls/request-schemas.ts";
import { callReserve } from "../calls/reservations.ts";
import { call, type Answered } from "../calls/target.ts";
import { given } from "../calls/validate.ts";
import { completed, orThrow, readAlone, readCall, type BoundCall } from "./bound-call.ts";
import type { Call, Charging, Idempotent, Listing, Prioritised, Regional, Reporting } from "./call-fields.ts";
import { acquireConfirmed } from "./confirmed-lease.ts";

/**
 * A decision, with what keeps its lease. Disposing of it releases the lease, and the runtime does so when the caller
 * ends.
 */
export type Grant = Decision & Omit<Attached, "answer">;

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
    return answerOf(await callLimit(...this.#read(asked, ["limit", "force", "admin"])));
  }

  /** Takes the costs of up to 16 checks: of all or of none. Without `atomic`, up to 100, each decided by itself. */
  async limitAll(
    asked: Idempotent &
      Prioritised &
      Regional & { readonly checks: readonly Call<{ readonly cost?: Cost }>[]; readonly atomic?: boolean },
  ): Promise<AllDecisions> {
    const [client, principal] = this.#read(asked);
    // Spread first: a caller without types may have given nothing.
    const { region: _, ...input } = { ...asked };
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
    return answerOf(await callRefund(...this.#read(asked, ["limit", "refund"])));
  }

  /** Sets units apart until it is known how many were used: `settle`, or `cancel` when none were. */
  async hold(
    asked: Call<Idempotent & Prioritised & { readonly units: Cost; readonly ttlMs?: number }>,
  ): Promise<Decision> {
    return answerOf(await callHold(...this.#read(asked)));
  }

  /** Ends a hold with the units really used. */
  async settle(asked: { readonly id: string; readonly used: Cost }): Promise<Decision> {
    return answerOf(await callSettle(...this.#readAlone(asked)));
  }

  /** Ends a hold of which nothing was used. */
  async cancel(asked: { readonly id: string }): Promise<void> {
    return orThrow((await callCancel(...this.#readAlone(asked))) ?? undefined);
  }

  /**
   * Leases units, waiting up to `waitMs` milliseconds in the queue. The lease ends when the caller ends, in whatever
   * way, and `using` ends it sooner. A `detached` lease ends with `release`, or when it expires.
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
          /** As over HTTP, but of no effect: a lease over the binding is confirmed for its caller. */
          readonly confirm?: boolean;
        }
    >,
  ): Promise<Grant> {
    const [client, principal, input] = this.#read(asked);
    return answerOf(
      await call(client, principal, BoundAcquireRequest, input, async (target, request) => {
        const acquire = acquireOf(target, request, given(input, "units"));
        if (acquire instanceof Problem) return acquire;
        const { policy, key, asked: wanted } = acquire;
        if (request.utilization !== undefined) client.report(policy, key, request.utilization);
        const isAttached = !request.detached;
        if (wanted.waitMs === 0 && isAttached) {
          const granted = await client.leases.acquireAttached(policy, key, wanted);
          if (granted === undefined) return client.told(degradedDecision(policy, key));
          return grantOf(client.told(granted.decision), granted.attached);
        }
        const { decision, attached } = await acquireConfirmed(client, principal, acquire, isAttached);
        client.told(decision);
        return attached === undefined ? decision : grantOf(decision, attached);
      }),
    );
  }

  /** Moves a lease's end to `ttlMs` milliseconds from now; by default as long as it was asked for at first. */
  async renew(asked: { readonly id: string; readonly ttlMs?: number }): Promise<Lease> {
    return orThrow(await callRenew(...this.#readAlone(asked)));
  }

  /** Ends a lease, and may report how the call went. The next caller in the queue gets its units at once. */
  async release(asked: { readonly id: string } & LeaseReport): Promise<void> {
    return orThrow(await callRelease(...this.#readAlone(asked)));
  }

  /** What `limit({ key })` would be answered, and how many units are held and waited for. Takes nothing. */
  async peek(asked: Call<{ readonly waitFor?: "idle"; readonly waitMs?: number }>): Promise<KeyReport> {
    return answerOf(await callPeek(...this.#read(asked, ["limit", "admin"])));
  }

  /** Sets what the key has used: more than the limit is a debt. Holds and leases stay. */
  async setUsed(asked: Call<{ readonly used: Cost }>): Promise<KeyReport> {
    return answerOf(await callSetUsed(...this.#read(asked, ["admin"])));
  }

  /** Makes the key as new. */
  async reset(asked: Call<object>): Promise<void> {
    return answerOf(await callReset(...this.#read(asked, ["admin"])));
  }

  /** The keys of a policy with a number of objects, page by page. */
  async keys(asked: Listing & { readonly limit?: number }): Promise<KeyList> {
    return orThrow(await callKeys(...this.#read(asked, ["admin"])));
  }

  /** How many keys a policy with a number of objects has. */
  async countKeys(asked: Listing): Promise<KeyCount> {
    return orThrow(await callKeyCount(...this.#read(asked, ["admin"])));
  }

  /** Holds units of many keys in the caller's own process: the message of `POST /v1/reservations`. */
  async reserve(asked: ReservationsAsked): Promise<ReservationsAnswered> {
    return orThrow(await callReserve(...this.#readAlone(asked, ["reserve"])));
  }

  /** The policies of this deployment. */
  policies(): PolicyList {
    const [client, principal] = this.#readAlone({}, ["limit", "admin"]);
    return listPolicies(client, principal);
  }

  #read(asked: unknown, scopes?: readonly Scope[]): BoundCall {
    return readCall(this.env, this.ctx.props, asked, scopes);
  }

  #readAlone(asked: unknown, scopes?: readonly Scope[]): BoundCall {
    return readAlone(this.env, this.ctx.props, asked, scopes);
  }
}

function grantOf(decision: Decision | Problem, { slot, renew, release }: Attached): Grant | Problem {
  if (decision instanceof Problem || slot === undefined) return decision;
  return { ...decision, slot, ...(renew && { renew }), ...(release && { release }) };
}

function answerOf<Answer>(answered: Answered<Answer> | Problem): Answer {
  return orThrow(answered).answer;
}
