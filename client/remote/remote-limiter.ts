import { normaliseKey } from "../../core/catalog/keys.ts";
/**
 * A limiter that is elsewhere, with units of hot keys in the caller's own process. The caller's process is one more
 * holder: it decides by the same modules as an isolate of the limiter's worker does.
 */
import { randomId, type Time } from "../../core/clock.ts";
import {
  type Cost,
  forPriority,
  type PolicyView,
  takesNothing,
  UNDESCRIBED,
} from "../../core/policies/policy.ts";
import type { Lease } from "../../core/protocol/answers.ts";
import type { AllDecisions, Decision, KeyReport } from "../../core/protocol/decision.ts";
import type { LeaseReport } from "../../core/protocol/messages.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { PolicyList } from "../../core/protocol/reservation-messages.ts";
import type { Holding } from "../call-gate.ts";
import {
  type Abortable,
  type AcquireRequest,
  type ClientOptions,
  type Grant,
  type HoldRequest,
  type KeyRequest,
  type LimitAllRequest,
  type Limiter,
  type LimitRequest,
  type PeekRequest,
  type RefundRequest,
  withRelease,
} from "../limiter.ts";
import { isOf, plainCall, type PlainCall, requireObject, signalOf, wholeCall } from "../local-call.ts";
import { LocalLimiter } from "../local-limiter.ts";
import { ReservationCache } from "../reservation-cache.ts";
import { returnUnits } from "../transports/send-batch.ts";
import type { LimiterTransport } from "../transports/transport.ts";
import { acquireForSomebody, RemoteCalls, unlessAborted } from "./remote-calls.ts";
import { Outages, RemoteReservations } from "./remote-reservations.ts";

/** What a client needs of the process in which it runs. */
interface ClientParts {
  readonly far: LimiterTransport;
  readonly time: Time;
  readonly inBackground: (work: Promise<unknown>) => void;
}

/** A first message opens a connection too, so it may take longer than a policy's usual deadline. In milliseconds. */
const FIRST_DEADLINE_MS = 2_000;

/** A limiter that is elsewhere. */
export class RemoteLimiter implements Limiter {
  readonly #far: LimiterTransport;
  readonly #options: ClientOptions;
  readonly #cache = new ReservationCache(randomId);
  readonly #local = new LocalLimiter(this.#cache);
  readonly #units: RemoteReservations;
  readonly #calls: RemoteCalls;
  readonly #holding: Holding;
  #isClosed = false;

  constructor({ far, time, inBackground }: ClientParts, options: ClientOptions = {}) {
    const { deadlineMs } = options;
    this.#far = far;
    this.#options = options;
    const onChange = () => this.#cache.endAll();
    const outages = new Outages(time);
    this.#units = new RemoteReservations({ far, time, inBackground, deadlineMs, outages, onChange });
    this.#holding = { objects: this.#units, time, inBackground };
    this.#calls = new RemoteCalls(far, this.#local, this.#units, (policy) => this.#policy(policy), {
      time,
      outages,
    });
  }

  /** Whether units may have to be given back. */
  get isHolding(): boolean {
    return this.#cache.isHolding;
  }

  limit(asked: LimitRequest & Abortable): Promise<Decision> {
    if (signalOf(asked) !== undefined) return this.#untilAborted(asked);
    const call = this.#isClosed ? undefined : plainCall(asked, this.#options.policy);
    const here = call && this.#decide(call);
    if (here === undefined) return this.#calls.limit(this.#whole(asked));
    return here instanceof Promise ? this.#answered(this.#whole(asked), here) : Promise.resolve(here);
  }

  limitAll(asked: LimitAllRequest): Promise<AllDecisions> {
    requireObject(asked);
    const { checks } = asked;
    const whole = Array.isArray(checks) ? checks.map((check) => this.#whole(check)) : checks;
    return this.#calls.limitAll({ ...asked, checks: whole });
  }

  refund(asked: RefundRequest): Promise<Decision> {
    return this.#calls.onKey(this.#whole(asked), (far, whole, ended) => far.refund(whole, ended));
  }

  hold(asked: HoldRequest): Promise<Decision> {
    return this.#calls.decide(this.#whole(asked), (far, whole, ended) => far.hold(whole, ended));
  }

  settle(asked: { readonly id: string; readonly used: Cost }): Promise<Decision> {
    return this.#calls.onClaim("hold", asked, (far, ended) => far.settle(asked, ended));
  }

  cancel(asked: { readonly id: string }): Promise<void> {
    return this.#calls.onClaim("hold", asked, (far, ended) => far.cancel(asked, ended));
  }

  async acquire(given: AcquireRequest & Abortable): Promise<Grant> {
    signalOf(given);
    const { signal, ...asked } = given;
    const acquire = (far: LimiterTransport, whole: AcquireRequest, ended: AbortSignal) => {
      const decision = acquireForSomebody(far, whole, ended);
      this.#holding.inBackground(decision.catch(() => undefined));
      return decision;
    };
    const decision = await this.#calls.decide(this.#whole(asked), acquire, signal);
    return withRelease(decision, (id) => this.release({ id }));
  }

  renew(asked: { readonly id: string; readonly ttlMs?: number }): Promise<Lease> {
    return this.#calls.onClaim("lease", asked, (far, ended) => far.renew(asked, ended));
  }

  release(asked: { readonly id: string } & LeaseReport): Promise<void> {
    return this.#calls.onClaim("lease", asked, (far, ended) => far.release(asked, ended));
  }

  peek(asked: PeekRequest): Promise<KeyReport> {
    return this.#calls.onKey(this.#whole(asked), (far, whole, ended) => far.peek(whole, ended));
  }

  reset(asked: KeyRequest): Promise<void> {
    return this.#calls.onKey(this.#whole(asked), (far, whole, ended) => far.reset(whole, ended));
  }

  policies(): Promise<PolicyList> {
    return this.#calls.ask((far, ended) => far.policies(ended));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.flush();
    this.#far.close?.();
  }

  /** Gives back all that is held. A call that comes later may hold units again, unless the limiter is closed. */
  async flush(): Promise<void> {
    this.#cache.endAll();
    await returnUnits(this.#units, this.#cache.endDue(Infinity));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #untilAborted({ signal, ...asked }: LimitRequest & Abortable): Promise<Decision> {
    signal?.throwIfAborted();
    const mayWait = asked.waitMs !== undefined;
    return mayWait
      ? await this.#calls.limit(this.#whole(asked), signal)
      : await unlessAborted(this.limit(asked), signal);
  }

  /**
   * Decides from units or denials that are held here, or asks, in a message with others; `undefined`: the call has to go
   * by itself, since the limiter refuses messages, or has to say what is wrong with the call.
   */
  #decide(call: PlainCall): Decision | Promise<Decision | Problem> | undefined {
    const policy = this.#units.policy(call.policy);
    if (policy === undefined) return this.#units.isRefused ? undefined : this.#calls.limitTogether(call);
    const { cost, priority } = call;
    const key = isOf(policy, call) ? normaliseKey(policy, call.key) : undefined;
    if (key === undefined || this.#units.isRefused) return undefined;
    if (takesNothing(policy, cost)) return this.#calls.limitTogether(call);
    if (policy.localDecisions.denies)
      return this.#local.limit(this.#holding, forPriority(policy, priority), key, cost);
    const refusal = this.#units.refusalOf(policy);
    return refusal === undefined ? this.#calls.limitTogether(call) : Promise.resolve(refusal);
  }

  /** A call that was refused with all others of its message is made again by itself: it has changed nothing. */
  async #answered(asked: LimitRequest, decided: Promise<Decision | Problem>): Promise<Decision> {
    const answer = await decided;
    if (!(answer instanceof Problem)) return answer;
    if (this.#units.isRefused) return await this.#calls.limit(asked);
    throw answer.toError();
  }

  /** The policy as far as it is known. */
  #policy(name: string | undefined): PolicyView {
    const { onFailure = "closed", deadlineMs = FIRST_DEADLINE_MS } = this.#options;
    return this.#units.policy(name ?? "") ?? { ...UNDESCRIBED, name: name ?? "", onFailure, deadlineMs };
  }

  #whole<Asked extends KeyRequest>(asked: Asked): Asked {
    return wholeCall(asked, this.#options.policy);
  }
}
