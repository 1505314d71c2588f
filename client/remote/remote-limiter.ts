/**
 * A remote limiter, with units of hot keys in the caller's own process: the process decides by the same modules as an
 * isolate of the limiter's worker.
 */
import { normaliseKey } from "../../core/catalog/keys.ts";
import { randomId, type Time, overdue } from "../../core/clock.ts";
import { forPriority, type PolicyView, takesNothing, UNDESCRIBED } from "../../core/policies/policy.ts";
import {
  type AllDecisions,
  type AnyDecision,
  type Decision,
  degradedDecision,
} from "../../core/protocol/decision.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import type { PolicyList } from "../../core/protocol/reservation-messages.ts";
import type { Holding } from "../call-gate.ts";
import {
  type Abortable,
  type AcquireRequest,
  type ClientOptions,
  type Grant,
  type KeyRequest,
  type LimitAllRequest,
  type LimitAnyRequest,
  type Limiter,
  type LimiterCalls,
  type LimitRequest,
  type Signal,
  withRelease,
} from "../limiter.ts";
import {
  causeOf,
  keyOfClaim,
  requireObject,
  signalOf,
  throwUnavailable,
  type UniformCall,
  UniformClient,
  unlessAborted,
} from "../local-call.ts";
import { LocalLimiter, plainCall, type PlainCall } from "../local-limiter.ts";
import { ReservationCache } from "../reservation-cache.ts";
import { OVERLOADED_TEXT } from "../transports/batch-queue.ts";
import { waitOf } from "../transports/http.ts";
import { FailureLog, returnUnits } from "../transports/send-batch.ts";
import {
  type Address,
  ADDRESSES,
  type CallAnswers,
  type CallRequests,
  type LimiterTransport,
} from "../transports/transport.ts";
import { isOf, ofItsGroup, seenBy } from "./described-policies.ts";
import { OwnLeases } from "./own-leases.ts";
import { limiterErrorOf, RemoteReservations } from "./remote-reservations.ts";
import { allFailed, anyFailed, tryHere } from "./several-keys.ts";

/** How the limiter is reached, and what the process provides. */
interface ClientParts {
  readonly transport: LimiterTransport;
  readonly time: Time;
  readonly inBackground: (work: Promise<unknown>) => void;
  /** What it holds. Absent: nobody else looks at it. */
  readonly cache?: ReservationCache;
  readonly farMs?: number;
}

type Send<Answer> = (ended: AbortSignal) => Promise<Answer>;

/** The deadline before the policy is known, in milliseconds. The first message also opens a connection. */
const FIRST_DEADLINE_MS = 2_000;

/** Units held here of a key go back before a call on it that the limiter decides. */
export class RemoteLimiter extends UniformClient implements Limiter {
  readonly #transport: LimiterTransport;
  readonly #time: Time;
  readonly #options: ClientOptions;
  readonly #cache: ReservationCache;
  readonly #local: LocalLimiter;
  readonly #reservations: RemoteReservations;
  readonly #holding: Holding;
  readonly #leases: OwnLeases;
  readonly #failures: FailureLog;
  #isClosed = false;

  constructor(
    { transport, time, inBackground, cache = new ReservationCache(randomId), farMs }: ClientParts,
    options: ClientOptions = {},
  ) {
    super();
    this.#cache = cache;
    this.#local = new LocalLimiter(cache);
    this.#transport = transport;
    this.#time = time;
    this.#options = options;
    this.#failures = new FailureLog(time);
    this.#reservations = new RemoteReservations({
      transport,
      time,
      inBackground,
      deadlineMs: options.deadlineMs,
      farMs,
      failures: this.#failures,
      onChange: () => this.#cache.endAll(),
    });
    this.#holding = { objects: this.#reservations, time, inBackground };
    this.#leases = new OwnLeases(this.#reservations, time, inBackground);
  }

  /** Whether units may have to be given back. */
  get isHolding(): boolean {
    return this.#cache.isHolding || this.#leases.isHolding;
  }

  limit(request: LimitRequest & Abortable): Promise<Decision> {
    if (signalOf(request) !== undefined) return this.#limitUntilAborted(request);
    const call = this.#isClosed ? undefined : plainCall(request, this.#options.policy);
    const local = call && this.#decideLocally(call);
    if (local === undefined) return this.#decide("limit", this.#withPolicy(request));
    if (!(local instanceof Promise)) return Promise.resolve(this.#reservations.noted(local));
    return this.#answered(this.#withPolicy(request), local);
  }

  limitAll(request: LimitAllRequest): Promise<AllDecisions> {
    const named = this.#withPolicies(request);
    const isEach = named.atomic === false;
    const failed = (check: LimitRequest) => (isEach ? this.#failed(check) : this.#degraded(check));
    return this.#onKeys("limitAll", named, (checks) => allFailed(checks, failed));
  }

  async limitAny(request: LimitAnyRequest): Promise<AnyDecision> {
    const named = this.#withPolicies(request);
    const local =
      this.#isClosed || this.#reservations.isRefused
        ? undefined
        : await tryHere(
            named,
            (name) => this.#reservations.policy(name),
            (policy, key, cost) => this.#local.limit(this.#holding, policy, key, cost),
          );
    for (const decision of local?.decisions ?? []) this.#reservations.noted(decision);
    const failed = (check: LimitRequest) => this.#failed(check);
    return local ?? (await this.#onKeys("limitAny", named, (checks) => anyFailed(checks, failed)));
  }

  async acquire(request: AcquireRequest & Abortable): Promise<Grant> {
    signalOf(request)?.throwIfAborted();
    const { signal, ...params } = request;
    const call = this.#withPolicy(params);
    // In a worker a lease outlives its request, and one that was granted here would not.
    const ask = () => this.#decide("acquire", call, signal);
    const decision = await (this.#time.isLasting && !this.#isClosed ? this.#leases.decide(call, ask) : ask());
    return withRelease(decision, (id) => this.release({ id }));
  }

  policies(): Promise<PolicyList> {
    const call = (ended: AbortSignal) => this.#transport.call("policies", {}, ended);
    return this.#orElse(this.#inTime(call, this.#policy().deadlineMs), throwUnavailable);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([this.#leases.giveBack(true), this.flush()]);
    this.#transport.close?.();
  }

  /** Gives back all that is held. A call that comes later may hold units again, unless the limiter is closed. */
  async flush(): Promise<void> {
    this.#cache.endAll();
    // Whoever closes it waits no longer than for a decision.
    const call: RemoteReservations["call"] = (...[at, key, made]) => this.#reservations.call(at, key, made);
    await Promise.all([this.#leases.giveBack(false), returnUnits({ call }, this.#cache.endDue(Infinity))]);
  }

  async #limitUntilAborted({ signal, ...request }: LimitRequest & Abortable): Promise<Decision> {
    signal?.throwIfAborted();
    if (request.waitMs === undefined) return await unlessAborted(this.limit(request), signal);
    return await this.#decide("limit", this.#withPolicy(request), signal);
  }

  /**
   * Decides from units or denials that are held here, or asks the limiter in a message with other calls; `undefined`: the
   * call must be sent alone, because the limiter refuses messages, or has to say what is wrong with the call.
   */
  #decideLocally(call: PlainCall): Decision | Promise<Decision | Problem> | undefined {
    const described = this.#reservations.policy(call.policy);
    if (described === undefined && !this.#reservations.isRefused)
      return this.#reservations.isHot(call) ? this.#onceDescribed(call) : this.#limitTogether(call);
    if (described === undefined) return undefined;
    const { cost, priority } = call;
    const policy = seenBy(described, call);
    if (policy === undefined) return undefined;
    const key = isOf(policy, call) ? normaliseKey(policy, call.key) : undefined;
    if (key === undefined || this.#reservations.isRefused) return undefined;
    if (takesNothing(policy, cost)) return this.#limitTogether(call);
    if (policy.localDecisions.denies)
      return this.#local.limit(this.#holding, forPriority(policy, priority), key, cost);
    const refusal = this.#reservations.refusalOf(policy);
    return refusal === undefined ? this.#limitTogether(call) : Promise.resolve(refusal);
  }

  /** A call that was refused with its message is sent again alone: it has changed nothing. */
  async #answered(request: LimitRequest, decided: Promise<Decision | Problem>): Promise<Decision> {
    const answer = await decided;
    if (!(answer instanceof Problem)) return this.#reservations.noted(answer);
    if (this.#reservations.isRefused) return await this.#decide("limit", request);
    throw answer.toError();
  }

  /** The answers to the first calls bring the policy. Then the units of one message may serve all others. */
  async #onceDescribed(call: PlainCall): Promise<Decision | Problem> {
    const isInTime = await this.#reservations.described(call, this.#policy(call.policy).deadlineMs);
    if (!isInTime) return this.#failed(call);
    return (await this.#decideLocally(call)) ?? (await this.#decide("limit", call));
  }

  async #limitTogether(call: PlainCall): Promise<Decision | Problem> {
    await this.#returnUnitsOf(call);
    try {
      const policy = this.#policy(call.policy);
      return (await this.#reservations.decide(call, policy.deadlineMs)) ?? this.#failed(call);
    } finally {
      this.#forgetDenials(call);
    }
  }

  #failed({ policy, key, cost = 1 }: LimitRequest): Decision {
    return this.#local.failures.decide(this.#policy(policy), key, cost, this.#time.nowMs());
  }

  #degraded({ policy, key }: KeyRequest): Decision {
    return degradedDecision(this.#policy(policy), key);
  }

  /** Makes a call on several keys. If the limiter does not answer, the checks are answered as their policies say. */
  async #onKeys<Name extends "limitAll" | "limitAny">(
    call: Name,
    request: CallRequests[Name],
    failed: (checks: readonly LimitRequest[]) => CallAnswers[Name],
  ): Promise<CallAnswers[Name]> {
    const checks: readonly LimitRequest[] = Array.isArray(request.checks) ? request.checks : [];
    const send = async (ended: AbortSignal) => {
      await Promise.all(checks.map((check) => this.#returnUnitsOf(check)));
      ended.throwIfAborted();
      return await this.#transport.call(call, request, ended);
    };
    const names = checks.length === 0 ? [undefined] : checks.map((check) => check?.policy);
    const maxMs = Math.max(...names.map((name) => this.#policy(name).deadlineMs));
    const sent = this.#unlessPaused(() => this.#inTime(send, maxMs), checks);
    try {
      return await this.#orElse(sent, () => failed(checks));
    } finally {
      for (const check of checks) this.#forgetDenials(check);
    }
  }

  /**
   * A call that is answered with a decision. If the limiter does not answer, the policy's `onFailure` decides.
   *
   * @throws the reason of `signal`, if that is aborted
   */
  #decide(name: keyof LimiterCalls, request: KeyRequest, signal?: Signal): Promise<Decision> {
    const send = (ended: AbortSignal) => this.#callAwaited(name, request, ended);
    const sent = this.#unlessPaused(() => this.#send(request, send, signal), [request]);
    const isPlain = name === "limit" && (request as LimitRequest).force !== true;
    return this.#orElse(sent, () => (isPlain ? this.#failed(request) : this.#degraded(request)), signal);
  }

  /**
   * If a lease is granted when its caller does not wait any more, it is released: else it would keep others waiting until
   * it expires. With an idempotency key it stays, since the call may be made again.
   */
  #callAwaited(name: keyof LimiterCalls, request: KeyRequest, ended: AbortSignal): Promise<Decision> {
    const decision = this.#transport.call(name, request, ended) as Promise<Decision>;
    if (name !== "acquire") return decision;
    const { idempotencyKey } = request as AcquireRequest;
    const kept = decision.then(async (granted) => {
      const { lease } = granted;
      if (lease !== undefined && ended.aborted && idempotencyKey === undefined)
        await this.#transport.call("release", { id: lease.id, outcome: "ignore" });
      return granted;
    });
    this.#holding.inBackground(kept.catch(() => undefined));
    return kept;
  }

  /** @throws LimiterError also if the limiter does not answer */
  protected override async callByName(name: UniformCall, given: object): Promise<unknown> {
    requireObject(given);
    const own = this.#leases.onOwn(name, given);
    if (own !== undefined) return own.answer;
    const { on, mayDegrade }: Address = ADDRESSES[name];
    const key = on === "key" ? this.#withPolicy(given as KeyRequest) : keyOfClaim(on, given);
    const request = on === "key" ? key : given;
    if (mayDegrade) return await this.#decide(name, key);
    const send = (ended: AbortSignal) => this.#transport.call(name, request as never, ended);
    const answer = this.#orElse(this.#send(key, send), throwUnavailable);
    // It may be the last act of a request, whose `ctx` frameworks hide.
    if (on !== "key") this.#holding.inBackground(answer.catch(() => undefined));
    return await answer;
  }

  /** The limiter's answer; without one, that of `otherwise`. @throws LimiterError if it refused the call */
  async #orElse<Answer>(
    answer: Promise<Answer>,
    otherwise: (error: unknown) => Answer,
    signal?: Signal,
  ): Promise<Answer> {
    try {
      return await answer;
    } catch (error) {
      signal?.throwIfAborted();
      const refusal = limiterErrorOf(error);
      // Decisions that need the catalog are made by onFailure.
      const isFinal = otherwise === throwUnavailable || refusal?.code !== PROBLEMS.catalogUnreached[1];
      if (refusal !== undefined && isFinal) throw refusal;
      this.#failures.note(causeOf(error));
      return otherwise(error);
    }
  }

  /** Gives back the units held of the key, then makes the call. */
  async #send<Answer>(key: KeyRequest, send: Send<Answer>, signal?: Signal): Promise<Answer> {
    await this.#returnUnitsOf(key);
    try {
      return await this.#inTime(send, this.#policy(key.policy).deadlineMs + waitOf(key), signal);
    } finally {
      // A call that asked meanwhile may have been denied before this one was carried out.
      this.#forgetDenials(key);
    }
  }

  async #returnUnitsOf(request: KeyRequest): Promise<void> {
    const target = this.#targetOf(request);
    if (target === undefined) return;
    const { policy, key } = target;
    const returned = this.#local.end(policy, key);
    if (returned.length > 0)
      await this.#reservations.call(policy, key, { giveBack: { policy: policy.name, returned } });
  }

  #forgetDenials(request: KeyRequest): void {
    const target = this.#targetOf(request);
    if (target !== undefined) this.#local.forgetDenials(target.policy, target.key);
  }

  #targetOf({ policy: name = "", key: written, group }: KeyRequest & Pick<LimitRequest, "group">) {
    const policy = ofItsGroup(this.#reservations.policy(name), group);
    const key = policy && typeof written === "string" ? normaliseKey(policy, written) : undefined;
    return policy === undefined || key === undefined ? undefined : { policy, key };
  }

  /** If the limiter is overloaded, or has answered nothing in time, the call fails at once: its policy decides. */
  #unlessPaused<Answer>(call: () => Promise<Answer>, checks: readonly KeyRequest[]): Promise<Answer> {
    const mayCall = this.#reservations.congestion.admits(this.#time.nowMs(), FIRST_DEADLINE_MS);
    if (!mayCall) return Promise.reject(new Error(OVERLOADED_TEXT));
    for (const check of checks) if (typeof check === "object") this.#reservations.ask(check);
    return call();
  }

  /** Stops waiting after `ms`, or when `signal` is aborted, and then aborts `ended` of the call. */
  async #inTime<Answer>(send: Send<Answer>, ms: number, signal?: Signal): Promise<Answer> {
    const deadline = new AbortController();
    const cancel = this.#time.after(ms, () => {
      deadline.abort(overdue(ms));
      this.#reservations.congestion.miss(this.#time.nowMs());
    });
    const ended =
      signal === undefined ? deadline.signal : AbortSignal.any([deadline.signal, signal as AbortSignal]);
    try {
      const answer = await unlessAborted(send(ended), ended);
      this.#reservations.congestion.restore();
      this.#failures.flush();
      return answer;
    } finally {
      cancel();
    }
  }

  #policy(name = ""): PolicyView {
    const { onFailure = "closed", deadlineMs = FIRST_DEADLINE_MS } = this.#options;
    return this.#reservations.policy(name) ?? { ...UNDESCRIBED, name, onFailure, deadlineMs };
  }

  /** The same for each check. What is no list is the limiter's to refuse. */
  #withPolicies<Request extends Pick<LimitAllRequest, "checks">>(request: Request): Request {
    requireObject(request);
    const { checks } = request;
    if (!Array.isArray(checks)) return request;
    return { ...request, checks: checks.map((check) => this.#withPolicy(check)) };
  }

  /** Adds the default policy to a call that names none. @throws LimiterError when it is not an object */
  #withPolicy<Request extends KeyRequest>(request: Request): Request {
    requireObject(request);
    const { policy } = this.#options;
    return policy === undefined || request.policy !== undefined ? request : { ...request, policy };
  }
}
