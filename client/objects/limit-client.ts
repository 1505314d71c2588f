import { UNTOUCHED, withoutTaking } from "../../core/accounts/account.ts";
import { forPriority, type Policy, takesNothing } from "../../core/policies/policy.ts";
import { type Decision, degradedDecision, effectDecision } from "../../core/protocol/decision.ts";
import { type LimitParams, PROTOCOL } from "../../core/protocol/messages.ts";
import { ownKey } from "../../core/protocol/names.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import type { Caller } from "../call-gate.ts";
import type { LocalLimiter } from "../local-limiter.ts";
import { asShadow, decisionOf, isToNobody, shedTold, toDecision, unavailable } from "../read-answer.ts";
import type { SheddingSample } from "./load-shedding.ts";
import { namesOf, type ObjectCalls } from "./object-calls.ts";

/** Decides on costs: from units that the client holds, or by the key's object. */
export class LimitClient {
  readonly #parts: Caller;
  readonly #local: LocalLimiter;
  readonly #objects: ObjectCalls;

  constructor(parts: Caller, local: LocalLimiter, objects: ObjectCalls) {
    this.#parts = parts;
    this.#local = local;
    this.#objects = objects;
  }

  /** See `LimiterClient.limit`. */
  limit(
    policy: Policy,
    key: string,
    call: LimitParams,
    signal?: AbortSignal,
  ): Decision | Promise<Decision | Problem> {
    const { override } = policy;
    // A debit is made whatever the limit is, unless there is none.
    if (override?.effect !== undefined && (call.force !== true || override.effect === "unlimited"))
      return effectDecision(policy, key, override, this.#parts.time.nowMs());
    if (call.force === true) return this.#force(policy, key, call);
    if (policy.shedding === undefined || takesNothing(policy, call.cost))
      return this.#limit(policy, key, call, signal);
    const unlessShed = (shed: SheddingSample) => {
      if (shed === undefined) return this.#limit(policy, key, call, signal);
      if (policy.shadow) {
        const decided = this.#limit(policy, key, call, signal);
        return decided instanceof Promise ? decided.then((late) => asShadow(late)) : asShadow(decided);
      }
      // Only the object knows whether this very call has been admitted before.
      return call.idempotencyKey === undefined
        ? shedTold(forPriority(policy, call.priority), key, shed)
        : this.#limitByObject(policy, key, { ...call, shed });
    };
    const rolled = this.#objects.sampleShedding(policy, key, call);
    return rolled instanceof Promise ? rolled.then(unlessShed) : unlessShed(rolled);
  }

  #limit(
    policy: Policy,
    key: string,
    call: LimitParams,
    signal: AbortSignal | undefined,
  ): Decision | Promise<Decision | Problem> {
    const { cost, idempotencyKey, priority, waitMs = 0 } = call;
    const seen = forPriority(policy, priority);
    if (policy.isStateless === true && idempotencyKey === undefined) {
      const untouched = seen.rules.map((rule) => ({ rule, account: UNTOUCHED }));
      return toDecision(seen, key, { rules: withoutTaking(untouched, 0, cost) }, "isolate");
    }
    // A cost of 0 must see what the object knows, and only the object remembers idempotency keys.
    const isTaking = !takesNothing(policy, cost);
    const isLocal = policy.localDecisions.denies && idempotencyKey === undefined && isTaking;
    if (waitMs > 0 && isTaking) return this.#limitInTurn(seen, key, { ...call, waitMs }, isLocal, signal);
    if (isLocal) return this.#local.limit(this.#parts, seen, key, cost);
    return this.#limitByObject(policy, key, call);
  }

  /** Units that are held here are spent at once. A denial is not repeated here: only the object knows the queue. */
  async #limitInTurn(
    policy: Policy,
    key: string,
    call: LimitParams & { readonly waitMs: number },
    isLocal: boolean,
    signal: AbortSignal | undefined,
  ): Promise<Decision | Problem> {
    const here = isLocal ? this.#local.admit(this.#parts, policy, key, call.cost) : undefined;
    if (here !== undefined) return { ...here, waitedMs: 0 };
    const asked = await this.#objects.waitForUnits(policy, key, call, signal);
    if (asked === undefined) return degradedDecision(policy, key);
    const { answer } = asked;
    // While a deployment is rolled out, the object may be an older version. It can decide, but nobody waits there.
    if ("unsupported" in answer) return await this.#limitByObject(policy, key, call);
    return isToNobody(answer) ? degradedDecision(policy, key) : decisionOf(policy, key, answer);
  }

  /** Takes a cost whatever is there. A policy's `onFailure` is for decisions, and this is none. */
  async #force(policy: Policy, key: string, call: LimitParams): Promise<Decision | Problem> {
    const { waitMs: _, ...atOnce } = call;
    const message = { ...this.#objects.own(atOnce), protocol: PROTOCOL, ...namesOf(policy, key) };
    const asked = await this.#objects.ask(policy, key, (object) => object.limitCall(message), {
      isRepeatable: call.idempotencyKey !== undefined,
    });
    const detail =
      "whether the units were taken is not known: ask again, with the same idempotencyKey if there is one";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer);
  }

  async #limitByObject(policy: Policy, key: string, call: LimitParams): Promise<Decision | Problem> {
    const { waitMs: _, idempotencyKey, ...atOnce } = call;
    const own = idempotencyKey && ownKey(this.#parts.callerId, idempotencyKey);
    const asked = await this.#objects.limit(policy, key, { ...atOnce, idempotencyKey: own });
    return asked === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, asked.answer);
  }
}
