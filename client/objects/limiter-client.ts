import { randomFraction, randomId } from "../../core/clock.ts";
import {
  type CallerBounds,
  type Cost,
  MAX_BOUNDS,
  type Policy,
  type PolicyView,
} from "../../core/policies/policy.ts";
import type { RegionalPolicies } from "../../core/policies/regional-policies.ts";
import type { Answer, Peeked } from "../../core/protocol/answers.ts";
import type { Decision, KeyReport } from "../../core/protocol/decision.ts";
import {
  type BatchedCall,
  type HoldParams,
  type LimitParams,
  type MadeAnswer,
  PROTOCOL,
  withVersion,
} from "../../core/protocol/messages.ts";
import {
  type ClaimKind,
  type ClaimPlace,
  ownHoldId,
  ownKey,
  type ProveClaim,
} from "../../core/protocol/names.ts";
import { type Full, Problem } from "../../core/protocol/problems.ts";
import type { ComparisonCounts } from "../../core/stats/counts.ts";
import { type Caller, CallGate, type ObjectStarts, through } from "../call-gate.ts";
import { LocalLimiter } from "../local-limiter.ts";
import {
  boundReached,
  chargeMissing,
  decisionOf,
  holdMissing,
  reportOf,
  unavailable,
} from "../read-answer.ts";
import { ReservationCache } from "../reservation-cache.ts";
import { type LimiterStub, type ReturnedUnits, returnUnits } from "../transports/send-batch.ts";
import { KeyLists } from "./key-lists.ts";
import { LeaseClient } from "./lease-client.ts";
import { LimitClient } from "./limit-client.ts";
import { LoadShedding, type SheddingSample } from "./load-shedding.ts";
import { namesOf, ObjectCalls } from "./object-calls.ts";

/** What a client needs from the process in which it runs. */
export interface LimiterClientParts extends Caller {
  /** The policies that callers may name. */
  readonly policies: RegionalPolicies;
  /** Present where all objects are in one process. */
  readonly starts?: ObjectStarts;
  /** Proves the ids of claims. Absent: they prove nothing. */
  readonly prove?: ProveClaim | undefined;
  /** Counts what callers are told. Absent: nobody does. */
  readonly counter?: (ComparisonCounter & { decided(told: Decision): void }) | undefined;
}

/** There may be a second attempt: the call takes effect once. */
const TWICE = { isRepeatable: true } as const;

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
  readonly candidates: CandidateCalls<LimiterClient>;
  readonly #parts: LimiterClientParts;
  readonly #limits: LimitClient;
  readonly #local: LocalLimiter;
  readonly #shedding: LoadShedding;
  readonly #objects: ObjectCalls;
  #doubting: LimiterClient | undefined;

  constructor(
    parts: LimiterClientParts,
    local = new LocalLimiter(new ReservationCache(randomId)),
    shedding = new LoadShedding(randomFraction),
  ) {
    this.policies = parts.policies;
    this.#parts = parts;
    this.#local = local;
    this.#shedding = shedding;
    this.#objects = new ObjectCalls(parts, local, shedding);
    this.#limits = new LimitClient(parts, local, this.#objects);
    this.leases = new LeaseClient(this.#objects);
    this.holds = new HoldClient(this.#objects);
    this.keys = new KeyLists(parts);
    // The caller's bounds were for the call itself. Objects of candidates are started as any others.
    const { gate: _, ...unbounded } = parts;
    const gate = parts.starts && { gate: new CallGate(MAX_BOUNDS, parts.starts) };
    this.candidates = new CandidateCalls(
      parts,
      () => new LimiterClient({ ...unbounded, ...gate }, local, shedding),
    );
  }

  /**
   * A client for the calls of one caller. It shares the units and the denials of this client. What is answered under
   * an idempotency key is the caller's own, and the caller has bounds of its own.
   *
   * @param callerId JSON text that is the caller's alone: it is stored with what the caller makes
   */
  for(callerId: string, bounds: CallerBounds): LimiterClient {
    const parts = { ...this.#parts, callerId, gate: new CallGate(bounds, this.#parts.starts) };
    return new LimiterClient(parts, this.#local, this.#shedding);
  }

  /** The secret of a new claim of this caller. */
  newSecret(kind: ClaimKind, policy: Pick<Policy, "name">, key: string): string {
    const { callerId, prove } = this.#parts;
    const id = kind === "hold" ? ownHoldId(callerId, randomId()) : randomId();
    return prove?.(kind, { policy: policy.name, key }, id) ?? id;
  }

  /**
   * The client by which a claim is ended or renewed. An id that proves nothing may be forged, or made by an earlier version:
   * calls with it have the bounds of a new key.
   */
  endingBy(kind: ClaimKind, place: ClaimPlace, secret: string): LimiterClient {
    const isProven = this.#parts.prove?.(kind, place, secret) === secret;
    if (isProven || this.#parts.gate === undefined) return this;
    this.#doubting ??= new LimiterClient({ ...this.#parts, isDoubted: true }, this.#local, this.#shedding);
    return this.#doubting;
  }

  /** Counts a decision that its caller is told now. */
  told<Told extends Decision | Problem>(told: Told): Told {
    if (!(told instanceof Problem)) this.#parts.counter?.decided(told);
    return told;
  }

  /**
   * Decides on a cost and takes it, within `call.waitMs` if that is given; `signal` ends such a wait. Returns no promise
   * when the object need not be asked and nobody waits.
   */
  limit(
    policy: Policy,
    key: string,
    call: LimitParams,
    signal?: AbortSignal,
  ): Decision | Promise<Decision | Problem> {
    return this.#limits.limit(policy, key, call, signal);
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
    const refund = (object: LimiterStub) =>
      charge === undefined
        ? object.refund(policy.name, key, units, own)
        : object.refundCharge({ ...message, charge: ownKey(callerId, charge) });
    const asked = await this.#objects.ask(policy, key, refund, TWICE);
    const detail = "whether the units were given back is not known: ask again with the same idempotencyKey";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer, chargeMissing);
  }

  /** Looks at a key and takes nothing: the decision for a cost of 1, and who holds units or waits for them. */
  async peek(policy: Policy, key: string): Promise<KeyReport | Problem> {
    const asked = await this.#objects.askFor(policy, key, (object) => object.peek(policy.name, key), TWICE);
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

  /** Takes how busy a caller's machine is, from 0 to 1. A policy that sheds by reports acts on it. */
  report(policy: Policy, key: string, utilization: number): void {
    this.#shedding.report(this.#parts, policy, key, utilization);
  }

  /** Whether each of several calls is shed that pass together: see `LoadShedding.rollTogether`. */
  sampleTogether(calls: Parameters<LoadShedding["sampleTogether"]>[1]): Promise<SheddingSample[]> {
    return this.#shedding.sampleTogether(this.#parts, calls);
  }

  /**
   * Passes on a message of a holder that is elsewhere: in the process of whoever calls here. The object answers it as it
   * would answer this client; `undefined`: it does not answer.
   */
  async forward(
    policy: PolicyView,
    key: string,
    call: BatchedCall,
  ): Promise<{ readonly answer: MadeAnswer | Full } | undefined> {
    const { objects, gate, time } = this.#parts;
    const kind = call.giveBack === undefined ? "ask" : "return";
    const ask = () => objects.call<MadeAnswer & object>(policy, key, withVersion(policy, call));
    const asked = await through(gate, policy, key, time.nowMs(), ask, kind);
    // An admission takes units of which a denial here did not know, and units that go home may lift one.
    if (call.giveBack !== undefined) this.#local.forgetDenials(policy, key);
    return asked !== undefined && "full" in asked ? { answer: asked } : asked;
  }

  /** Passes on units that a holder elsewhere gives back. Those that do not arrive count as used. */
  giveBack(endings: readonly ReturnedUnits[]): Promise<void> {
    return returnUnits({ call: (policy, key, call) => this.forward(policy, key, call) }, endings);
  }

  /** Makes the key as new: nothing has been used, and callers have no holds or leases. */
  async reset(policy: Policy, key: string): Promise<Problem | undefined> {
    this.#shedding.forget(policy, key);
    const asked = await this.#objects.askFor(policy, key, async (object) => {
      await object.reset(policy.name, key);
      return { isDone: true };
    });
    if (asked === undefined) return unavailable("whether the key was reset is not known: ask again");
    return "full" in asked.answer ? boundReached(asked.answer) : undefined;
  }
}

/** So many calls of one caller are with candidates at a time. */
const MAX_AT_ONCE = 100;

/** Counts what candidates decide. */
interface ComparisonCounter {
  compared(compared: ComparisonCounts): void;
}

/** Puts calls to candidates, for one caller, who hears nothing of it and does not wait for it. */
export class CandidateCalls<Client> {
  readonly #inBackground: Caller["inBackground"];
  readonly #counter: ComparisonCounter | undefined;
  readonly #makeClient: () => Client;
  #client: Client | undefined;
  #underWay = 0;

  /** @param makeClient makes a client of the same caller without bounds: those were for the call itself */
  constructor(
    {
      inBackground,
      counter,
    }: Pick<Caller, "inBackground"> & { readonly counter?: ComparisonCounter | undefined },
    makeClient: () => Client,
  ) {
    this.#inBackground = inBackground;
    this.#counter = counter;
    this.#makeClient = makeClient;
  }

  /** Makes a call, unless too many are under way: `false`. Where nobody counts, none need be made. */
  make(ask: (client: Client) => Promise<unknown> | void): boolean {
    if (this.#counter === undefined) return true;
    if (this.#underWay >= MAX_AT_ONCE) return false;
    this.#client ??= this.#makeClient();
    try {
      const asked = ask(this.#client);
      if (asked instanceof Promise) this.#inBackground(this.#untilAnswered(asked));
    } catch (error) {
      warn(error);
    }
    return true;
  }

  async #untilAnswered(asked: Promise<unknown>): Promise<void> {
    this.#underWay += 1;
    await asked.catch(warn);
    this.#underWay -= 1;
  }

  /** Counts what a policy and its candidate decided of the same call. */
  compared(compared: ComparisonCounts): void {
    this.#counter?.compared(compared);
  }
}

/** What goes wrong with a candidate is nobody's problem who called. */
function warn(error: unknown): void {
  console.warn(`a call to a candidate has failed: ${String(error)}`);
}

/** The calls on holds. The key's object decides all of them. */
class HoldClient {
  readonly #objects: ObjectCalls;

  constructor(objects: ObjectCalls) {
    this.#objects = objects;
  }

  /** Asks the object for a hold; `undefined`: the object does not answer. */
  async hold(policy: Policy, key: string, call: HoldParams): Promise<Answer | undefined> {
    // Checks on several keys have been drawn for together. In shadow nothing is shed.
    const isDrawn = call.provisional !== undefined || policy.shadow;
    const shed = isDrawn ? call.shed : await this.#objects.sampleShedding(policy, key, call);
    if (shed !== undefined && call.idempotencyKey === undefined) return { shed };
    const message = { ...this.#objects.own({ ...call, shed }), protocol: PROTOCOL, ...namesOf(policy, key) };
    const isRepeatable = call.idempotencyKey !== undefined;
    const options = { waitMs: call.provisional?.waitMs, isRepeatable };
    const asked = await this.#objects.ask(policy, key, (object) => object.hold(message), options);
    return asked?.answer;
  }

  /** Ends a hold with the units that were used. */
  async settle(policy: Policy, key: string, id: string, used: Cost): Promise<Decision | Problem> {
    const asked = await this.#objects.ask(
      policy,
      key,
      (object) => object.settle(policy.name, key, id, used),
      ENDING,
    );
    const detail = "whether the hold was settled is not known: ask again, it takes effect only once";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer, holdMissing);
  }

  /** Ends a hold of which no units were used. */
  async cancel(policy: Policy, key: string, id: string): Promise<Decision | Problem> {
    const asked = await this.#objects.ask(
      policy,
      key,
      (object) => object.cancel(policy.name, key, id),
      ENDING,
    );
    const detail = "whether the hold was cancelled is not known: ask again, it takes effect only once";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer, holdMissing);
  }
}

/** How calls are made that end what a caller has. */
const ENDING = { kind: "end", isRepeatable: true } as const;
