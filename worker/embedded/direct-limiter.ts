import {
  type Abortable,
  type AcquireRequest,
  type Grant,
  type HoldRequest,
  type KeyRequest,
  type LimitAllRequest,
  type LimitRequest,
  type Limiter,
  type PeekRequest,
  type RefundRequest,
  withRelease,
} from "../../client/limiter.ts";
import { plainCall, signalOf } from "../../client/local-call.ts";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { type Cost, DEFAULT_BOUNDS, type Region } from "../../core/policies/policy.ts";
import type { Lease } from "../../core/protocol/answers.ts";
import type { AllDecisions, Decision, KeyReport } from "../../core/protocol/decision.ts";
import type { LeaseReport } from "../../core/protocol/messages.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { PolicyList } from "../../core/protocol/reservation-messages.ts";
import { type Principal, SCOPES } from "../auth/tokens.ts";
import { callAcquire, callCancel, callHold, callRelease, callRenew, callSettle } from "../calls/claims.ts";
import { listPolicies } from "../calls/keys.ts";
import { callLimitSeveral } from "../calls/limit-all.ts";
import { callPeek, callRefund, callReset, limitOf } from "../calls/limits.ts";
import { LimitRequest as LimitSchema } from "../calls/schemas/request-schemas.ts";
import { findTarget, type TargetAnswer } from "../calls/target.ts";
import { parse, plain } from "../calls/validate.ts";

/** What a limiter without a deployment of its own is made of. */
export interface DirectParts {
  readonly client: LimiterClient;
  readonly inBackground: (work: Promise<unknown>) => void;
  /** Gives back all units that are held. */
  readonly close: () => Promise<void>;
  /** The policy of calls that name none. */
  readonly policy?: string | undefined;
  /** Whose the calls are: answers under idempotency keys belong to it. Stored: another name is another caller. */
  readonly name?: string | undefined;
  readonly region?: Region | undefined;
}

/** The limiter's calls, made in the process that needs them: nothing is between them and the objects. */
export class DirectLimiter implements Limiter {
  readonly #parts: DirectParts;
  readonly #client: LimiterClient;
  readonly #principal: Principal;

  constructor(parts: DirectParts) {
    const { client, name = "", region } = parts;
    // Stored with what is made: never change how it is written.
    const id = JSON.stringify({ embedded: name });
    this.#parts = parts;
    this.#client = client.for(id, DEFAULT_BOUNDS);
    this.#principal = {
      title: "this limiter",
      id,
      bounds: DEFAULT_BOUNDS,
      scopes: SCOPES,
      ...(region !== undefined && { region }),
    };
  }

  async limit(given: LimitRequest & Abortable): Promise<Decision> {
    const signal = signalOf(given) as AbortSignal | undefined;
    signal?.throwIfAborted();
    const whole = this.#whole(signal === undefined ? given : withoutSignal(given));
    const request = plainCall(whole ?? {}) ?? parse(LimitSchema, plain(whole));
    if (request instanceof Problem) throw request.toError();
    const target = findTarget(this.#client, this.#principal, request);
    if (target instanceof Problem) throw target.toError();
    const answer = await limitOf(this.#client, this.#principal, target, request, whole, signal);
    signal?.throwIfAborted();
    return orThrow(answer);
  }

  async limitAll(given: LimitAllRequest): Promise<AllDecisions> {
    const asked = plain(given);
    const checks: unknown = asked?.checks;
    const whole = Array.isArray(checks)
      ? { ...asked, checks: checks.map((check: KeyRequest) => this.#whole(check)) }
      : asked;
    return orThrow(await callLimitSeveral(this.#client, this.#principal, whole));
  }

  async refund(asked: RefundRequest): Promise<Decision> {
    return answerOf(await callRefund(this.#client, this.#principal, this.#whole(plain(asked))));
  }

  async hold(asked: HoldRequest): Promise<Decision> {
    return answerOf(await callHold(this.#client, this.#principal, this.#whole(plain(asked))));
  }

  async settle(asked: { readonly id: string; readonly used: Cost }): Promise<Decision> {
    return answerOf(await callSettle(this.#client, this.#principal, plain(asked)));
  }

  async cancel(asked: { readonly id: string }): Promise<void> {
    orThrow((await callCancel(this.#client, this.#principal, plain(asked))) ?? undefined);
  }

  async acquire(given: AcquireRequest & Abortable): Promise<Grant> {
    const signal = (signalOf(given) ?? new AbortController().signal) as AbortSignal;
    signal.throwIfAborted();
    const asked = plain(withoutSignal(given));
    const { inBackground } = this.#parts;
    const call = callAcquire(this.#client, this.#principal, this.#whole(asked), signal, inBackground);
    const answer = await call;
    signal.throwIfAborted();
    return withRelease(answerOf(answer), (id) => this.release({ id }));
  }

  async renew(asked: { readonly id: string; readonly ttlMs?: number }): Promise<Lease> {
    return orThrow(await callRenew(this.#client, this.#principal, plain(asked)));
  }

  async release(asked: { readonly id: string } & LeaseReport): Promise<void> {
    orThrow((await callRelease(this.#client, this.#principal, plain(asked))) ?? undefined);
  }

  async peek(asked: PeekRequest): Promise<KeyReport> {
    return answerOf(await callPeek(this.#client, this.#principal, this.#whole(plain(asked))));
  }

  async reset(asked: KeyRequest): Promise<void> {
    answerOf(await callReset(this.#client, this.#principal, this.#whole(plain(asked))));
  }

  policies(): Promise<PolicyList> {
    return Promise.resolve(listPolicies(this.#client, this.#principal));
  }

  close(): Promise<void> {
    return this.#parts.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #whole<Asked extends KeyRequest>(asked: Asked): Asked {
    const { policy } = this.#parts;
    const isOther = typeof asked !== "object" || asked === null || asked.policy !== undefined;
    return policy === undefined || isOther ? asked : { ...asked, policy };
  }
}

function withoutSignal<Asked extends object>(given: Asked & Abortable) {
  const { signal: _, ...asked } = given;
  return asked;
}

function answerOf<Answer>(answered: TargetAnswer<Answer> | Problem): Answer {
  return orThrow(answered).answer;
}

function orThrow<Answer>(answer: Answer | Problem): Answer {
  if (answer instanceof Problem) throw answer.toError();
  return answer;
}
