import {
  type Abortable,
  type AcquireRequest,
  type Grant,
  type KeyRequest,
  type LimitAllRequest,
  type LimitAnyRequest,
  type LimitRequest,
  type Limiter,
  withRelease,
} from "../../client/limiter.ts";
import { signalOf, type UniformCall, UniformClient } from "../../client/local-call.ts";
import { plainCall } from "../../client/local-limiter.ts";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { type Address, ADDRESSES } from "../../client/transports/transport.ts";
import { DEFAULT_BOUNDS, type Policy, type Region } from "../../core/policies/policy.ts";
import type { AllDecisions, AnyDecision, Decision } from "../../core/protocol/decision.ts";
import { secretOf } from "../../core/protocol/names.ts";
import { orThrow } from "../../core/protocol/problems.ts";
import type { PolicyList } from "../../core/protocol/reservation-messages.ts";
import { SCOPES } from "../auth/tokens.ts";
import { acquireUnits, claimHandlers, plainAcquire } from "../calls/claims.ts";
import { listPolicies } from "../calls/keys.ts";
import { callLimitSeveral } from "../calls/limit-all.ts";
import { callLimitAny } from "../calls/limit-any.ts";
import { type CallContext, findTarget, keyHandlers, limitOf } from "../calls/limits.ts";
import { plain } from "../calls/plain-data.ts";
import {
  AcquireRequest as AcquireSchema,
  LimitRequest as LimitSchema,
} from "../calls/schemas/request-schemas.ts";
import { parse, type TargetAnswer } from "../calls/validate.ts";

/** What a limiter without a deployment of its own is made of. */
interface DirectParts {
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

/** The handlers of the calls that all clients make in the same way. */
const HANDLERS: Readonly<Record<UniformCall, (context: CallContext, input: unknown) => unknown>> = {
  ...keyHandlers,
  ...claimHandlers,
};

/** The limiter's calls, made in the process that needs them: nothing is between them and the objects. */
export class DirectLimiter extends UniformClient implements Limiter {
  readonly #parts: DirectParts;
  readonly #context: CallContext;

  constructor(parts: DirectParts) {
    super();
    const { client, name = "", region } = parts;
    // Stored with what is made: never change how it is written.
    const id = JSON.stringify({ embedded: name });
    this.#parts = parts;
    this.#context = {
      client: client.for(id, DEFAULT_BOUNDS),
      principal: {
        title: "this limiter",
        id,
        bounds: DEFAULT_BOUNDS,
        scopes: SCOPES,
        ...(region !== undefined && { region }),
      },
    };
  }

  async limit(call: LimitRequest & Abortable): Promise<Decision> {
    const signal = signalOf(call) as AbortSignal | undefined;
    signal?.throwIfAborted();
    const input = this.#withPolicy(signal === undefined ? call : withoutSignal(call));
    const request = plainCall(input) ?? orThrow(parse(LimitSchema, plain(input)));
    const { client, principal } = this.#context;
    const target = orThrow(findTarget(client, principal, request));
    const answer = await limitOf(client, principal, target, request, input, signal);
    signal?.throwIfAborted();
    return orThrow(answer);
  }

  async limitAll(call: LimitAllRequest): Promise<AllDecisions> {
    return orThrow(await callLimitSeveral(this.#context, this.#withPolicies(call)));
  }

  async limitAny(call: LimitAnyRequest): Promise<AnyDecision> {
    return orThrow(await callLimitAny(this.#context, this.#withPolicies(call))).answer;
  }

  async acquire(call: AcquireRequest & Abortable): Promise<Grant> {
    const signal = signalOf(call) as AbortSignal | undefined;
    signal?.throwIfAborted();
    const input = this.#withPolicy(signal === undefined ? call : withoutSignal(call));
    const request = plainAcquire(input) ?? orThrow(parse(AcquireSchema, plain(input)));
    const { client, principal } = this.#context;
    const target = orThrow(findTarget(client, principal, request));
    const context = { client, principal, waitUntil: this.#parts.inBackground };
    const acquiring = acquireUnits(
      target,
      request,
      signal ? { ...context, request: { signal } } : context,
      input,
    );
    const answer = acquiring instanceof Promise ? await acquiring : acquiring;
    signal?.throwIfAborted();
    return this.#granted(target.policy, orThrow(answer));
  }

  /** A lease that this isolate has granted ends here as well, without the way of a call. */
  #granted(policy: Policy, answer: Decision): Grant {
    const { key, lease, source } = answer;
    const { claims } = this.#context.client;
    const isOwn = lease !== undefined && source === "isolate" && policy.candidate === undefined;
    const endHere = isOwn ? () => claims.endHere(policy, key, secretOf(lease.id)) : undefined;
    return withRelease(answer, (id) => this.release({ id }), endHere);
  }

  policies(): Promise<PolicyList> {
    return Promise.resolve(listPolicies(this.#context));
  }

  close(): Promise<void> {
    return this.#parts.close();
  }

  protected override async callByName(name: UniformCall, call: object): Promise<unknown> {
    const { on, shape }: Address = ADDRESSES[name];
    const input = on === "key" ? this.#withPolicy(plain(call) as KeyRequest) : plain(call);
    const answering = HANDLERS[name](this.#context, input);
    // It may be the last act of a request, whose `ctx` frameworks hide.
    if (on !== "key" && answering instanceof Promise)
      this.#parts.inBackground(answering.catch(() => undefined));
    const answered: unknown = orThrow(await answering);
    return on === "key" || shape === "decision" ? (answered as TargetAnswer<unknown>).answer : answered;
  }

  #withPolicies(call: LimitAllRequest | LimitAnyRequest): unknown {
    const input = plain(call);
    const checks: unknown = input?.checks;
    if (!Array.isArray(checks)) return input;
    return { ...input, checks: checks.map((check: KeyRequest) => this.#withPolicy(check)) };
  }

  /** The call with the default policy, if it names none. */
  #withPolicy<Request extends KeyRequest>(call: Request): Request {
    const { policy } = this.#parts;
    const isNamed = typeof call !== "object" || call === null || call.policy !== undefined;
    return policy === undefined || isNamed ? call : { ...call, policy };
  }
}

function withoutSignal<Request extends object>(call: Request & Abortable) {
  const { signal: _, ...request } = call;
  return request;
}
