import { WorkerEntrypoint } from "cloudflare:workers";
import type { LimiterClient } from "../../client/limiter-client.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import {
  degradedDecision,
  type AllDecisions,
  type Decision,
  type KeyReport,
} from "../../core/protocol/decision.ts";
import type { Lease } from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { regionNamed } from "../auth/caller-region.ts";
import type { Principal } from "../auth/tokens.ts";
import { clientOf } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import type { PolicyList } from "../calls/answer-schemas.ts";
import { callCancel, callHold, callSettle } from "../calls/holds.ts";
import { acquireOf, callRelease, callRenew } from "../calls/leases.ts";
import { callLimitAll } from "../calls/limit-all.ts";
import { callLimit, callPeek, callRefund, callReset, listPolicies } from "../calls/limits.ts";
import { BoundAcquireRequest, Props } from "../calls/request-schemas.ts";
import { call, findClaim, type Answered } from "../calls/target.ts";
import { given, parse, refused } from "../calls/validate.ts";
import { plain } from "./plain-data.ts";

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

/**
 * A decision, with what keeps its lease. Disposing of it releases the lease, and the runtime does so when the caller
 * ends.
 */
export type Grant = Decision & Omit<Attached, "answer">;

/**
 * The limiter as a service binding. It has the same calls as HTTP and gives the same answers, without a token:
 * whoever is bound may call. Bad input throws a LimiterError that says what HTTP would.
 *
 * With `props = { policy = "api" }` on the binding, `policy` may be left out. Then `limit({ key })` is enough, and
 * the binding can take the place of Cloudflare's own rate limit binding.
 */
export class Limiter extends WorkerEntrypoint<Env, unknown> {
  /** Takes a cost (default 1) if it fits; a cost of 0 looks. A denial is an answer, not an error. */
  async limit(asked: Call<Idempotent & { readonly cost?: Cost }>): Promise<Decision> {
    return answerOf(await callLimit(this.#client, ...this.#read(asked)));
  }

  /** Takes the costs of up to 16 checks: of all or of none. */
  async limitAll(
    asked: Idempotent & Regional & { readonly checks: readonly Call<{ readonly cost?: Cost }>[] },
  ): Promise<AllDecisions> {
    const [principal] = this.#read(asked);
    const { region: _, ...input } = asked;
    const { checks } = input;
    const complete = Array.isArray(checks)
      ? { ...input, checks: checks.map((check: unknown) => this.#complete(check)[1]) }
      : input;
    return orThrow(await callLimitAll(this.#client, principal, complete));
  }

  /** Gives back units that were taken and not used, once per `idempotencyKey`. */
  async refund(asked: Call<{ readonly units: Cost; readonly idempotencyKey: string }>): Promise<Decision> {
    return answerOf(await callRefund(this.#client, ...this.#read(asked)));
  }

  /** Sets units apart until it is known how many were used: `settle`, or `cancel` when none were. */
  async hold(asked: Call<Idempotent & { readonly units: Cost; readonly ttlMs?: number }>): Promise<Decision> {
    return answerOf(await callHold(this.#client, ...this.#read(asked)));
  }

  /** Ends a hold with the units really used. */
  async settle(asked: { readonly id: string; readonly used: Cost }): Promise<Decision> {
    return answerOf(await callSettle(this.#client, BOUND, plain(asked)));
  }

  /** Ends a hold of which nothing was used. */
  async cancel(asked: { readonly id: string }): Promise<void> {
    return orThrow((await callCancel(this.#client, BOUND, plain(asked))) ?? undefined);
  }

  /**
   * Leases units, waiting up to `waitMs` milliseconds in the queue. The lease ends when the caller ends, in whatever
   * way, and `using` ends it sooner. A `detached` lease ends with `release`, or when it expires.
   */
  async acquire(
    asked: Call<
      Idempotent & {
        readonly units?: Cost;
        readonly ttlMs?: number;
        readonly waitMs?: number;
        readonly detached?: boolean;
      }
    >,
  ): Promise<Grant> {
    const [principal, input] = this.#read(asked);
    return answerOf(
      await call(this.#client, principal, BoundAcquireRequest, input, async (target, request) => {
        const acquire = acquireOf(target, request, given(input, "units"));
        if (acquire instanceof Problem) return acquire;
        const { policy, key, asked: wanted } = acquire;
        const isAttached = !request.detached;
        if (wanted.waitMs === 0 && isAttached) {
          const granted = await this.#client.leases.acquireAttached(policy, key, wanted);
          if (granted === undefined) return degradedDecision(policy, key);
          return grantOf(granted.decision, granted.attached);
        }
        // The caller may have gone while it waited, and nothing tells the object. So the lease is brief until
        // `confirm` makes it last.
        const brief = { ...wanted, confirmWithinMs: CONFIRM_WITHIN_MS };
        const decision = await this.#client.leases.acquire(policy, key, brief);
        if (decision instanceof Problem || decision.lease === undefined) return decision;
        const secret = findClaim(this.#client, principal, "lease", decision.lease.id)?.secret ?? "";
        const attached = await this.#client.leases.confirm(policy, key, secret, wanted.ttlMs, isAttached);
        if (attached === undefined) return degradedDecision(policy, key);
        const lease = { ...decision.lease, expiresAfterMs: wanted.ttlMs };
        return grantOf({ ...decision, lease }, attached);
      }),
    );
  }

  /** Moves a lease's end to `ttlMs` milliseconds from now; by default as long as it was asked for at first. */
  async renew(asked: { readonly id: string; readonly ttlMs?: number }): Promise<Lease> {
    return orThrow(await callRenew(this.#client, BOUND, plain(asked)));
  }

  /** Ends a lease. The next caller in the queue gets its units at once. */
  async release(asked: { readonly id: string }): Promise<void> {
    return orThrow(await callRelease(this.#client, BOUND, plain(asked)));
  }

  /** What `limit({ key })` would be answered, and how many units are held and waited for. Takes nothing. */
  async peek(asked: Call<{ readonly waitFor?: "idle"; readonly waitMs?: number }>): Promise<KeyReport> {
    return answerOf(await callPeek(this.#client, ...this.#read(asked)));
  }

  /** Makes the key as new. */
  async reset(asked: Call<object>): Promise<void> {
    return answerOf(await callReset(this.#client, ...this.#read(asked)));
  }

  /** The policies of this deployment. */
  policies(): PolicyList {
    return listPolicies(this.#client, BOUND);
  }

  get #client(): LimiterClient {
    return clientOf(this.env);
  }

  /**
   * Who calls, from which region, and the call with what the binding's `props` add.
   *
   * @throws LimiterError when the argument, the props or the region are not allowed
   */
  #read(asked: unknown): [principal: Principal, input: unknown] {
    return this.#complete(plain(asked));
  }

  /** The same for an argument, or a part of one, that is known to be plain data. */
  #complete(asked: unknown): [principal: Principal, input: unknown] {
    const props = parse(Props, this.ctx.props ?? {});
    if (props instanceof Problem) throw props.toError();
    if (typeof asked !== "object" || asked === null) return [BOUND, asked];
    const { policy = props.policy, region: name = props.region, ...rest } = asked as Record<string, unknown>;
    const region = regionNamed(name);
    if (region === undefined) {
      const names = this.#client.policies.regions.map((each) => JSON.stringify(each.name)).join(", ");
      throw refused(["region"], name, `left out, or one of ${names}`).toError();
    }
    return [
      { ...BOUND, region },
      { policy, ...rest },
    ];
  }
}

/** In milliseconds: long for a message between worker and object, short for a slot that nobody uses. */
const CONFIRM_WITHIN_MS = 5_000;

/** Whoever is bound to the worker; the binding is the permission. */
const BOUND: Principal = { name: "service binding", scopes: ["limit", "admin"] };

function grantOf(decision: Decision | Problem, { slot, renew, release }: Attached): Grant | Problem {
  if (decision instanceof Problem || slot === undefined) return decision;
  return { ...decision, slot, ...(renew && { renew }), ...(release && { release }) };
}

function answerOf<Answer>(answered: Answered<Answer> | Problem): Answer {
  return orThrow(answered).answer;
}

function orThrow<Answer>(answer: Answer | Problem): Answer {
  if (answer instanceof Problem) throw answer.toError();
  return answer;
}
