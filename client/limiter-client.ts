import { randomId } from "../core/clock.ts";
import type { Policy } from "../core/policies/policy.ts";
import type { RegionalPolicies } from "../core/policies/regional-policies.ts";
import { costOf, type Cost } from "../core/protocol/cost.ts";
import { degradedDecision, type Decision, type KeyReport } from "../core/protocol/decision.ts";
import { PROTOCOL, type Answer, type WantedHold, type Peeked } from "../core/protocol/messages.ts";
import type { Problem } from "../core/protocol/problems.ts";
import { LeaseClient } from "./lease-client.ts";
import { LocalLimiter, type Caller } from "./local-limiter.ts";
import { ObjectCalls } from "./object-calls.ts";
import { decisionOf, holdMissing, reportOf, unavailable } from "./read-answer.ts";
import { ReservationCache } from "./reservation-cache.ts";

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
  readonly #caller: Caller;
  readonly #local = new LocalLimiter(new ReservationCache(randomId));
  readonly #objects: ObjectCalls;

  constructor({ policies, ...caller }: LimiterClientParts) {
    this.policies = policies;
    this.#caller = caller;
    this.#objects = new ObjectCalls(caller, this.#local);
    this.leases = new LeaseClient(this.#objects);
  }

  /** Decides on a cost and takes it. Returns no promise when the object need not be asked. */
  limit(
    policy: Policy,
    key: string,
    cost: Cost,
    idempotencyKey?: string,
  ): Decision | Promise<Decision | Problem> {
    // A cost of 0 must see what the object knows, and only the object remembers idempotency keys.
    const isLocal = policy.localDecisions.denies && idempotencyKey === undefined && !isNothing(policy, cost);
    if (isLocal) return this.#local.limit(this.#caller, policy, key, cost);
    return this.#limitByObject(policy, key, cost, idempotencyKey);
  }

  async #limitByObject(
    policy: Policy,
    key: string,
    cost: Cost,
    idempotencyKey: string | undefined,
  ): Promise<Decision | Problem> {
    const asked = await this.#objects.ask(policy, key, (object) =>
      // RPC would send an argument that is `undefined`, so it is left out.
      idempotencyKey === undefined
        ? object.limit(policy.name, key, cost)
        : object.limit(policy.name, key, cost, idempotencyKey),
    );
    return asked === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, asked.answer);
  }

  /** Gives back units that were taken, once for each idempotency key. */
  async refund(
    policy: Policy,
    key: string,
    units: Cost,
    idempotencyKey: string,
  ): Promise<Decision | Problem> {
    const asked = await this.#objects.ask(policy, key, (object) =>
      object.refund(policy.name, key, units, idempotencyKey),
    );
    const detail = "whether the units were given back is not known: ask again with the same idempotencyKey";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer);
  }

  /** Asks the object for a hold; `undefined`: the object does not answer. */
  async hold(policy: Policy, key: string, call: WantedHold): Promise<Answer | undefined> {
    const message = { protocol: PROTOCOL, policy: policy.name, key, ...call };
    const asked = await this.#objects.ask(
      policy,
      key,
      (object) => object.hold(message),
      call.provisional?.waitMs,
    );
    return asked?.answer;
  }

  /** Ends a hold with the units that were used. */
  async settle(policy: Policy, key: string, id: string, used: Cost): Promise<Decision | Problem> {
    const asked = await this.#objects.ask(policy, key, (object) => object.settle(policy.name, key, id, used));
    const detail = "whether the hold was settled is not known: ask again, it takes effect only once";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer, holdMissing);
  }

  /** Ends a hold of which no units were used. */
  async cancel(policy: Policy, key: string, id: string): Promise<Decision | Problem> {
    const asked = await this.#objects.ask(policy, key, (object) => object.cancel(policy.name, key, id));
    const detail = "whether the hold was cancelled is not known: ask again, it takes effect only once";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer, holdMissing);
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

  /** Makes the key as new: nothing has been used, and callers have no holds or leases. */
  async reset(policy: Policy, key: string): Promise<Problem | undefined> {
    const asked = await this.#objects.askFor(policy, key, (object) => object.reset(policy.name, key));
    return asked === undefined ? unavailable("whether the key was reset is not known: ask again") : undefined;
  }
}

function isNothing({ rules }: Policy, cost: Cost): boolean {
  return typeof cost === "number" ? cost === 0 : rules.every((rule) => costOf(rule, cost) === 0);
}
