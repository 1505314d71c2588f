import { UNTOUCHED } from "../core/accounts/account.ts";
import { withoutTaking } from "../core/accounts/joint-decision.ts";
import { randomId } from "../core/clock.ts";
import type { CallerBounds } from "../core/policies/caller-bounds.ts";
import type { Policy } from "../core/policies/policy.ts";
import type { RegionalPolicies } from "../core/policies/regional-policies.ts";
import { seenBy } from "../core/policies/seen-by.ts";
import type { Peeked } from "../core/protocol/answers.ts";
import { ownKey } from "../core/protocol/caller-keys.ts";
import { takesNothing, type Cost } from "../core/protocol/cost.ts";
import { degradedDecision, type Decision, type KeyReport } from "../core/protocol/decision.ts";
import { PROTOCOL, type WantedLimit } from "../core/protocol/messages.ts";
import type { Problem } from "../core/protocol/problems.ts";
import { CallGate } from "./call-gate.ts";
import type { Caller } from "./caller.ts";
import { HoldClient } from "./hold-client.ts";
import { KeyLists } from "./key-lists.ts";
import { LeaseClient } from "./lease-client.ts";
import { LocalLimiter } from "./local-limiter.ts";
import { ObjectCalls } from "./object-calls.ts";
import { boundReached, chargeMissing, decisionOf, isToNobody, reportOf, unavailable } from "./read-answer.ts";
import { ReservationCache } from "./reservation-cache.ts";
import { toldDecision } from "./told-decision.ts";

/** What a client needs from the process in which it runs. */
export interface LimiterClientParts extends Caller {
  /** The policies that callers may name. */
  readonly policies: RegionalPolicies;
}

/**
 * The calls on a key. The client decides from units that it holds, or asks the key's object. Calls return a `Problem`
 * when they cannot be done; they do not throw when the object fails.
 *
 * A process or isolate needs only one client. Clients share nothing: two in one process are two holders.
 */
export class LimiterClient {
  readonly policies: RegionalPolicies;
  readonly leases: LeaseClient;
  readonly holds: HoldClient;
  readonly keys: KeyLists;
  readonly #parts: LimiterClientParts;
  readonly #local: LocalLimiter;
  readonly #objects: ObjectCalls;

  constructor(parts: LimiterClientParts, local = new LocalLimiter(new ReservationCache(randomId))) {
    this.policies = parts.policies;
    this.#parts = parts;
    this.#local = local;
    this.#objects = new ObjectCalls(parts, local);
    this.leases = new LeaseClient(this.#objects);
    this.holds = new HoldClient(this.#objects);
    this.keys = new KeyLists(parts);
  }

  /**
   * A client for the calls of one caller. It shares the units and the denials of this client. What is answered under
   * an idempotency key is the caller's own, and the caller has bounds of its own.
   *
   * @param callerId JSON text that is the caller's alone: it is stored with what the caller makes
   */
  for(callerId: string, bounds: CallerBounds): LimiterClient {
    return new LimiterClient({ ...this.#parts, callerId, gate: new CallGate(bounds) }, this.#local);
  }

  /**
   * Decides on a cost and takes it, within `call.waitMs` if that is given; `signal` ends such a wait. Returns no promise
   * when the object need not be asked and nobody waits.
   */
  limit(
    policy: Policy,
    key: string,
    call: WantedLimit,
    signal?: AbortSignal,
  ): Decision | Promise<Decision | Problem> {
    const { cost, idempotencyKey, priority, waitMs = 0 } = call;
    const seen = seenBy(policy, priority);
    if (call.force === true) return this.#force(policy, key, call);
    if (policy.isStateless === true && idempotencyKey === undefined) {
      const untouched = seen.rules.map((rule) => ({ rule, account: UNTOUCHED }));
      return toldDecision(seen, key, { rules: withoutTaking(untouched, 0, cost) }, "isolate");
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
    call: WantedLimit & { readonly waitMs: number },
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
  async #force(policy: Policy, key: string, call: WantedLimit): Promise<Decision | Problem> {
    const { waitMs: _, ...atOnce } = call;
    const message = { ...this.#objects.own(atOnce), protocol: PROTOCOL, policy: policy.name, key };
    const asked = await this.#objects.ask(policy, key, (object) => object.limitCall(message));
    const detail =
      "whether the units were taken is not known: ask again, with the same idempotencyKey if there is one";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer);
  }

  async #limitByObject(policy: Policy, key: string, call: WantedLimit): Promise<Decision | Problem> {
    const { waitMs: _, idempotencyKey, ...atOnce } = call;
    const own = idempotencyKey && ownKey(this.#parts.callerId, idempotencyKey);
    const asked = await this.#objects.limit(policy, key, { ...atOnce, idempotencyKey: own });
    return asked === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, asked.answer);
  }

  /**
   * Gives back units that were taken, once for each idempotency key.
   *
   * @param charge the idempotency key of the `limit` that took them; absent: whatever is missing comes back
   */
  async refund(
    policy: Policy,
    key: string,
    units: Cost,
    idempotencyKey: string,
    charge?: string,
  ): Promise<Decision | Problem> {
    const { callerId } = this.#parts;
    const own = ownKey(callerId, idempotencyKey);
    const message = { protocol: PROTOCOL, policy: policy.name, key, units, idempotencyKey: own };
    const asked = await this.#objects.ask(policy, key, (object) =>
      charge === undefined
        ? object.refund(policy.name, key, units, own)
        : object.refundCharge({ ...message, charge: ownKey(callerId, charge) }),
    );
    const detail = "whether the units were given back is not known: ask again with the same idempotencyKey";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer, chargeMissing);
  }

  /** Looks at a key and takes nothing: the decision for a cost of 1, and who holds units or waits for them. */
  async peek(policy: Policy, key: string): Promise<KeyReport | Problem> {
    const asked = await this.#objects.askFor(policy, key, (object) => object.peek(policy.name, key));
    return asked === undefined ? unavailable("ask again") : reportOf(policy, key, asked.answer);
  }

  /** The same as `peek`, as soon as the key has no leases, or after `waitMs` milliseconds. */
  async waitForIdle(
    policy: Policy,
    key: string,
    waitMs: number,
    signal?: AbortSignal,
  ): Promise<KeyReport | Problem> {
    const asked = await this.#objects.wait<Peeked>(policy, key, "idle", { waitMs }, signal);
    return asked === undefined ? unavailable("ask again") : reportOf(policy, key, asked.answer);
  }

  /** Sets what the rules of a key have used that count a rate. */
  async setUsed(policy: Policy, key: string, used: Cost): Promise<KeyReport | Problem> {
    const message = { protocol: PROTOCOL, policy: policy.name, key, used };
    const asked = await this.#objects.ask<Peeked>(policy, key, (object) => object.setUsed(message));
    const detail = "whether the consumption was set is not known: ask again";
    return asked === undefined ? unavailable(detail) : reportOf(policy, key, asked.answer);
  }

  /** Makes the key as new: nothing has been used, and callers have no holds or leases. */
  async reset(policy: Policy, key: string): Promise<Problem | undefined> {
    const asked = await this.#objects.askFor(policy, key, async (object) => {
      await object.reset(policy.name, key);
      return { isDone: true };
    });
    if (asked === undefined) return unavailable("whether the key was reset is not known: ask again");
    return "full" in asked.answer ? boundReached(asked.answer) : undefined;
  }
}
