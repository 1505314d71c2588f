import { normaliseKey } from "../../core/catalog/keys.ts";
import type { Time } from "../../core/clock.ts";
import { type PolicyView, publicName } from "../../core/policies/policy.ts";
import { type AllDecisions, type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import { type ClaimKind, readClaimId } from "../../core/protocol/names.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import type { AcquireRequest, KeyRequest, LimitAllRequest, LimitRequest, Signal } from "../limiter.ts";
import { type PlainCall, requireObject } from "../local-call.ts";
import type { LocalLimiter } from "../local-limiter.ts";
import { limiterErrorIn, type LimiterTransport, waitOf } from "../transports/transport.ts";
import type { Outages, RemoteReservations } from "./remote-reservations.ts";

/** @param ended aborted when nobody waits for the answer any more */
type Call<Asked, Answer> = (far: LimiterTransport, asked: Asked, ended: AbortSignal) => Promise<Answer>;

/** Calls that the limiter decides. Units that are held here of their keys go home first, so that it has all of them. */
export class RemoteCalls {
  readonly #far: LimiterTransport;
  readonly #local: LocalLimiter;
  readonly #units: RemoteReservations;
  readonly #policyOf: (name: string | undefined) => PolicyView;
  readonly #time: Time;
  readonly #outages: Outages;

  /** @param policyOf what is known of a policy */
  constructor(
    far: LimiterTransport,
    local: LocalLimiter,
    units: RemoteReservations,
    policyOf: (name: string | undefined) => PolicyView,
    { time, outages }: { readonly time: Time; readonly outages: Outages },
  ) {
    this.#far = far;
    this.#local = local;
    this.#units = units;
    this.#policyOf = policyOf;
    this.#time = time;
    this.#outages = outages;
  }

  limit(asked: LimitRequest, signal?: Signal): Promise<Decision> {
    return this.decide(asked, (far, whole, ended) => far.limit(whole, ended), signal);
  }

  /** The same for a plain call, in a message with others. A call that is refused is not made again. */
  async limitTogether(call: PlainCall): Promise<Decision | Problem> {
    await this.#takeHome(call);
    try {
      const policy = this.#policyOf(call.policy);
      return (await this.#units.decide(call, policy.deadlineMs)) ?? degradedDecision(policy, call.key);
    } finally {
      this.#forgetDenials(call);
    }
  }

  /** Several checks. When the limiter does not answer, each is answered as its policy says. */
  async limitAll(asked: LimitAllRequest): Promise<AllDecisions> {
    const { checks } = asked;
    const all = Array.isArray(checks) ? checks : [];
    const askAll = async (ended: AbortSignal) => {
      await Promise.all(all.map((check) => this.#takeHome(check)));
      ended.throwIfAborted();
      return await this.#far.limitAll(asked, ended);
    };
    try {
      const asNamed = all.length === 0 ? [undefined] : all.map((check) => check?.policy);
      const mostMs = Math.max(...asNamed.map((policy) => this.#policyOf(policy).deadlineMs));
      return await this.#inTime(askAll, mostMs);
    } catch (error) {
      this.#throwRefusal(error);
      const decisions = all.map(({ policy, key }) => degradedDecision(this.#policyOf(policy), key));
      return { success: decisions.every(({ success }) => success), decisions };
    } finally {
      for (const check of all) this.#forgetDenials(check);
    }
  }

  /**
   * A call that is answered with a decision: when the limiter does not answer, as the policy says.
   *
   * @throws the reason of `signal`, when that is aborted
   */
  async decide<Asked extends KeyRequest>(
    asked: Asked,
    call: Call<Asked, Decision>,
    signal?: Signal,
  ): Promise<Decision> {
    try {
      return await this.#onKey(asked, call, signal);
    } catch (error) {
      signal?.throwIfAborted();
      this.#throwRefusal(error);
      return degradedDecision(this.#policyOf(asked.policy), asked.key);
    }
  }

  /** Any other call on a key. @throws LimiterError also when the limiter does not answer */
  async onKey<Asked extends KeyRequest, Answer>(asked: Asked, call: Call<Asked, Answer>): Promise<Answer> {
    return await this.ask(() => this.#onKey(asked, call), Infinity);
  }

  /** A call on a hold or a lease. @throws LimiterError also when the limiter does not answer */
  async onClaim<Answer>(
    kind: ClaimKind,
    asked: { readonly id: string },
    call: (far: LimiterTransport, ended: AbortSignal) => Promise<Answer>,
  ): Promise<Answer> {
    requireObject(asked);
    const { id } = asked;
    const place = typeof id === "string" ? readClaimId(kind, id) : undefined;
    const at = { policy: publicName(place?.policy ?? ""), key: place?.key ?? "" };
    return await this.onKey(at, (far, _, ended) => call(far, ended));
  }

  /** A call on no key. @throws LimiterError also when the limiter does not answer */
  async ask<Answer>(
    call: (far: LimiterTransport, ended: AbortSignal) => Promise<Answer>,
    mostMs = this.#policyOf(undefined).deadlineMs,
  ): Promise<Answer> {
    try {
      return await this.#inTime((ended) => call(this.#far, ended), mostMs);
    } catch (error) {
      this.#throwRefusal(error);
      const why = error instanceof Error ? error.message : String(error);
      const detail = `whether the call was carried out is not known: the limiter did not answer (${why})`;
      throw new Problem(PROBLEMS.unavailable, detail).toError();
    }
  }

  async #onKey<Asked extends KeyRequest, Answer>(
    asked: Asked,
    call: Call<Asked, Answer>,
    signal?: Signal,
  ): Promise<Answer> {
    signal?.throwIfAborted();
    await this.#takeHome(asked);
    try {
      const mostMs = this.#policyOf(asked.policy).deadlineMs + waitOf(asked);
      return await this.#inTime((ended) => call(this.#far, asked, ended), mostMs, signal);
    } finally {
      // A call that asked meanwhile may have been denied before this one was carried out.
      this.#forgetDenials(asked);
    }
  }

  async #takeHome(asked: KeyRequest): Promise<void> {
    const [policy, key] = this.#placeOf(asked);
    if (policy === undefined || key === undefined) return;
    const returned = this.#local.end(policy, key);
    if (returned.length > 0)
      await this.#units.call(policy, key, { giveBack: { policy: policy.name, returned } });
  }

  #forgetDenials(asked: KeyRequest): void {
    const [policy, key] = this.#placeOf(asked);
    if (policy !== undefined && key !== undefined) this.#local.forgetDenials(policy, key);
  }

  #placeOf({ policy: name, key }: KeyRequest) {
    const policy = this.#units.policy(name ?? "");
    const isThere = policy !== undefined && typeof key === "string";
    return [policy, isThere ? normaliseKey(policy, key) : undefined] as const;
  }

  /** Throws what the limiter has thrown; any other error means that it did not answer. */
  #throwRefusal(error: unknown): void {
    const refusal = limiterErrorIn(error);
    if (refusal !== undefined) throw refusal;
    this.#outages.note(String(error));
  }

  /** Stops waiting after `ms`, or when `signal` is aborted, and tells the call. */
  async #inTime<Answer>(
    call: (ended: AbortSignal) => Promise<Answer>,
    ms: number,
    signal?: Signal,
  ): Promise<Answer> {
    const deadline = new AbortController();
    const cancel =
      ms === Infinity
        ? () => {}
        : this.#time.after(ms, () => deadline.abort(new Error(`deadline of ${ms} ms passed`)));
    const ended =
      signal === undefined ? deadline.signal : AbortSignal.any([deadline.signal, signal as AbortSignal]);
    try {
      const answer = await unlessAborted(call(ended), ended);
      this.#outages.answered();
      return answer;
    } finally {
      cancel();
    }
  }
}

/* Calls whose callers stop waiting. */

/** The answer, unless `signal` is aborted before: then its reason is thrown. */
export function unlessAborted<Answer>(answer: Promise<Answer>, signal: Signal | undefined): Promise<Answer> {
  if (signal === undefined) return answer;
  return new Promise((resolve, reject) => {
    const leave = () => reject(signal.reason);
    if (signal.aborted) leave();
    signal.addEventListener("abort", leave, { once: true });
    answer.then(resolve, reject).finally(() => signal.removeEventListener("abort", leave));
  });
}

/**
 * Asks for a lease. When it is granted and `ended` says that nobody waits for it any more, it is released: else it would
 * keep others waiting until it expires. With an idempotency key it stays, since the call may be made again.
 */
export async function acquireForSomebody(
  far: Pick<LimiterTransport, "acquire" | "release">,
  asked: AcquireRequest,
  ended: Signal,
): Promise<Decision> {
  const decision = await far.acquire(asked, ended);
  const { lease } = decision;
  if (lease !== undefined && ended.aborted && asked.idempotencyKey === undefined)
    await far.release({ id: lease.id, outcome: "ignore" });
  return decision;
}
