import { UNTOUCHED, withoutTaking } from "../../core/accounts/account.ts";
import { randomFraction, randomId } from "../../core/clock.ts";
import type { RegionalPolicies } from "../../core/policies/parse-policies.ts";
import {
  type CallerBounds,
  type Cost,
  MAX_BOUNDS,
  type Policy,
  type PolicyView,
  forPriority,
  takesNothing,
  versionOf,
} from "../../core/policies/policy.ts";
import type { Answer, AnswerText, Peeked, Slots, UnsupportedProtocol } from "../../core/protocol/answers.ts";
import type { Attempt, LimitParams } from "../../core/protocol/calls.ts";
import {
  type Decision,
  type KeyReport,
  degradedDecision,
  effectDecision,
} from "../../core/protocol/decision.ts";
import {
  ATTEMPT_PROTOCOL,
  type BatchedCall,
  type MadeAnswer,
  PROTOCOL,
} from "../../core/protocol/messages.ts";
import { type ClaimKind, ownHoldId, ownKey, type ProveClaim, withMark } from "../../core/protocol/names.ts";
import { Problem, type Answered } from "../../core/protocol/problems.ts";
import type { Counter } from "../../core/stats/tally.ts";
import { type ClientContext, CallGate, type ObjectStartLimit, through } from "../call-gate.ts";
import { IsolateSlots } from "../isolate-slots.ts";
import { LocalLimiter } from "../local-limiter.ts";
import {
  type Attempted,
  attemptedOf,
  blockedDecision,
  decisionOf,
  refundedOf,
  reportOf,
  unavailable,
  asShadow,
  hasNoRules,
  toDecision,
  toShedDecision,
} from "../read-answer.ts";
import { ReservationCache } from "../reservation-cache.ts";
import { type ClientsCall, ServedKeys } from "../served-keys.ts";
import type { Reply } from "../transports/objects.ts";
import { type UnsentGiveBack, returnUnits } from "../transports/send-batch.ts";
import { candidateCalls, type ComparisonCounter } from "./candidate-calls.ts";
import { ClaimClient } from "./claim-client.ts";
import { KeyLists } from "./key-lists.ts";
import { LoadShedding, type SheddingSample } from "./load-shedding.ts";
import { ObjectCalls } from "./object-calls.ts";

export interface LimiterClientParts extends ClientContext {
  readonly policies: RegionalPolicies;
  readonly starts?: ObjectStartLimit;
  /** Proves the ids of claims. Absent: ids are unproven. */
  readonly prove?: ProveClaim | undefined;
  /** Counts the decisions that callers get. Absent: they are not counted. */
  readonly counter?:
    | (ComparisonCounter & Pick<Counter, "add"> & { decided(decision: Decision): void })
    | undefined;
}

/** A second attempt is safe: the call takes effect once. */
const LOOK = { isRepeatable: true, saysVersion: true } as const;

/**
 * The calls on a key. Failures are a `Problem`, also when the object fails. A process or isolate needs one
 * client: clients share nothing, so two are two holders.
 */
export class LimiterClient {
  readonly policies: RegionalPolicies;
  readonly claims: ClaimClient;
  readonly keys: KeyLists;
  readonly candidates: ReturnType<typeof candidateCalls<LimiterClient>>;
  readonly #parts: LimiterClientParts;
  readonly #local: LocalLimiter;
  readonly #shedding: LoadShedding;
  readonly #slots: IsolateSlots;
  readonly served: ServedKeys;
  readonly #objects: ObjectCalls;
  #doubting: LimiterClient | undefined;

  constructor(
    parts: LimiterClientParts,
    local = new LocalLimiter(new ReservationCache(randomId)),
    shedding = new LoadShedding(randomFraction),
    slots = new IsolateSlots(),
    served = new ServedKeys(local.cache),
  ) {
    this.served = served;
    this.policies = parts.policies;
    this.#parts = parts;
    this.#local = local;
    this.#shedding = shedding;
    this.#objects = new ObjectCalls(parts, local, shedding);
    this.#slots = slots;
    const makeId = (policy: Policy, key: string, holder: string, from = randomId()) =>
      this.#proven("lease", policy, key, withMark(from, holder));
    this.claims = new ClaimClient(parts, this.#objects, slots, makeId);
    this.keys = new KeyLists(parts);
    // The caller's bounds are for the call itself. Candidates' objects are started as any others.
    const { gate: _, ...unbounded } = parts;
    const gate = parts.starts && { gate: new CallGate(MAX_BOUNDS, parts.starts) };
    const makeClient = () => new LimiterClient({ ...unbounded, ...gate }, local, shedding, slots, served);
    this.candidates = candidateCalls(parts, makeClient);
  }

  /**
   * A client for one caller, with its own bounds and idempotency keys, but shared units.
   * @param callerId JSON text unique to the caller: it is stored with what the caller makes
   */
  for(callerId: string, bounds: CallerBounds): LimiterClient {
    const parts = { ...this.#parts, callerId, gate: new CallGate(bounds, this.#parts.starts) };
    return new LimiterClient(parts, this.#local, this.#shedding, this.#slots, this.served);
  }

  get nowMs(): number {
    return this.#parts.time.nowMs();
  }

  newSecret(kind: ClaimKind, policy: Pick<Policy, "name">, key: string): string {
    const id = kind === "hold" ? ownHoldId(this.#parts.callerId, randomId()) : randomId();
    return this.#proven(kind, policy, key, id);
  }

  #proven(kind: ClaimKind, policy: Pick<Policy, "name">, key: string, id: string): string {
    return this.#parts.prove?.(kind, { policy: policy.name, key }, id) ?? id;
  }

  /** The client that ends a claim. An unproven id may be forged, so it has the bounds of a new key. */
  endingBy(kind: ClaimKind, policy: Policy, key: string, secret: string): LimiterClient {
    const { gate, prove, time } = this.#parts;
    if (gate === undefined) return this;
    // Where a bound is not near both kinds of ids are treated alike, and a proof costs 10 µs.
    if (policy.candidate === undefined && gate.hasRoom(policy, key, time.nowMs())) return this;
    if (prove?.(kind, { policy: policy.name, key }, secret) === secret) return this;
    const parts = { ...this.#parts, isDoubted: true };
    this.#doubting ??= new LimiterClient(parts, this.#local, this.#shedding, this.#slots, this.served);
    return this.#doubting;
  }

  recordDecision<Decided extends Decision | Problem>(answer: Decided): Decided {
    if (!(answer instanceof Problem)) this.#parts.counter?.decided(answer);
    return answer;
  }

  /** Counts the decisions that a client has made by itself. */
  recordMade(
    policy: string,
    plan: string | undefined,
    made: Readonly<Record<"admitted" | "denied", number>>,
  ) {
    const { counter } = this.#parts;
    for (const outcome of ["admitted", "denied"] as const) {
      if (made[outcome] === 0) continue;
      const reason = outcome === "admitted" ? "ok" : "quota";
      counter?.add("decisions", [policy, outcome, reason, "process"], made[outcome]);
      if (plan !== undefined) counter?.add("plan_decisions", [policy, plan, outcome], made[outcome]);
    }
  }

  /** Decides a cost, within `call.waitMs`. Returns no promise if it needs neither object nor wait. */
  limit(policy: Policy, key: string, call: LimitParams, signal?: AbortSignal): Decision | Answered<Decision> {
    const { override } = policy;
    // A debit ignores the limit, unless there is none.
    if (override?.effect !== undefined && (call.force !== true || override.effect === "unlimited"))
      return effectDecision(policy, key, override, this.#parts.time.nowMs());
    if (call.force === true) return this.#force(policy, key, call);
    if (policy.shedding === undefined || takesNothing(policy, call.cost))
      return this.#limit(policy, key, call, signal);
    const unlessShed = (shed: SheddingSample) => {
      if (shed === undefined) return this.#limit(policy, key, call, signal);
      if (policy.shadow) {
        const decided = this.#limit(policy, key, call, signal);
        return decided instanceof Promise ? decided.then(asShadow) : asShadow(decided);
      }
      // Only the object knows whether this call has been admitted before.
      return call.idempotencyKey === undefined
        ? toShedDecision(forPriority(policy, call.priority), key, shed)
        : this.limitByObject(policy, key, { ...call, shed });
    };
    const sample = this.#objects.sampleShedding(policy, key, call);
    return sample instanceof Promise ? sample.then(unlessShed) : unlessShed(sample);
  }

  #limit(
    policy: Policy,
    key: string,
    call: LimitParams,
    signal: AbortSignal | undefined,
  ): Decision | Answered<Decision> {
    const { cost, idempotencyKey, priority, waitMs = 0 } = call;
    const seen = forPriority(policy, priority);
    if (policy.isStateless === true && idempotencyKey === undefined) {
      const untouched = seen.rules.map((rule) => ({ rule, account: UNTOUCHED }));
      return toDecision(seen, key, { rules: withoutTaking(untouched, 0, cost) }, "isolate");
    }
    // A cost of 0 must see the object's state, and only the object remembers idempotency keys.
    const isTaking = !takesNothing(policy, cost);
    const isLocal = policy.localDecisions.denies && idempotencyKey === undefined && isTaking;
    if (waitMs > 0 && isTaking) return this.#limitInTurn(seen, key, { ...call, waitMs }, isLocal, signal);
    if (isLocal) return this.#local.limit(this.#parts, seen, key, cost);
    return this.limitByObject(policy, key, call);
  }

  /** Spends held units at once. A denial is not repeated here: only the object knows the queue. */
  async #limitInTurn(
    policy: Policy,
    key: string,
    call: LimitParams & { readonly waitMs: number },
    isLocal: boolean,
    signal: AbortSignal | undefined,
  ): Answered<Decision> {
    const here = isLocal ? this.#local.admit(this.#parts, policy, key, call.cost) : undefined;
    if (here !== undefined) return { ...here, waitedMs: 0 };
    const read = (text: AnswerText) => JSON.parse(text) as Answer | UnsupportedProtocol;
    const answer = await this.#objects.wait(policy, key, "limit", call, signal, read);
    if (answer === undefined) return this.#failed(policy, key, call.cost);
    if (answer instanceof Problem) return answer;
    // During a rollout the object may be an older version, which decides but cannot let calls wait.
    if ("unsupported" in answer) return await this.limitByObject(policy, key, call);
    return hasNoRules(answer) ? degradedDecision(policy, key) : decisionOf(policy, key, answer);
  }

  /** Takes a cost unconditionally. A policy's `onFailure` is for decisions, so it does not apply. */
  async #force(policy: Policy, key: string, call: LimitParams): Answered<Decision> {
    const { waitMs: _, ...atOnce } = call;
    const message = this.#objects.message(policy, key, atOnce);
    const options = { isRepeatable: call.idempotencyKey !== undefined };
    const answer = await this.#objects.ask(policy, key, (object) => object.limitCall(message), options);
    const detail =
      "whether the units were taken is not known: ask again, with the same idempotencyKey if there is one";
    return decisionOf(policy, key, answer ?? unavailable(detail));
  }

  /** Decides at the object of the key, from all units: this client first gives back those that it holds. */
  async limitByObject(policy: Policy, key: string, call: LimitParams): Answered<Decision> {
    const { waitMs: _, idempotencyKey, ...atOnce } = call;
    const own = idempotencyKey && ownKey(this.#parts.callerId, idempotencyKey);
    const answer = await this.#objects.limit(policy, key, { ...atOnce, idempotencyKey: own });
    return answer === undefined ? this.#failed(policy, key, call.cost) : decisionOf(policy, key, answer);
  }

  #failed(policy: Policy, key: string, cost: Cost): Decision {
    return this.#local.failures.decide(policy, key, cost, this.nowMs);
  }

  /**
   * Decides one check of a call that charges the first check that admits. Its object stores a denial too (`Attempt`), so
   * also an override that blocks is said to it.
   */
  async attempt(
    policy: Policy,
    key: string,
    call: LimitParams & { readonly idempotencyKey: string; readonly attempt: Attempt },
  ): Answered<Attempted> {
    const { override } = policy;
    const isBlocked = blockedDecision(policy, key) !== undefined;
    if (override?.effect !== undefined && !isBlocked)
      return { decision: effectDecision(policy, key, override, this.#parts.time.nowMs()) };
    const mayShed = !isBlocked && !policy.shadow;
    const shed = mayShed ? await this.#objects.sampleShedding(policy, key, call) : undefined;
    const answer = await this.#objects.limit(policy, key, {
      ...call,
      shed,
      idempotencyKey: ownKey(this.#parts.callerId, call.idempotencyKey),
      attempt: { ...call.attempt, ...(isBlocked && { isBlocked }) },
      protocol: ATTEMPT_PROTOCOL,
    });
    return answer === undefined
      ? { decision: this.#failed(policy, key, call.cost) }
      : attemptedOf(policy, key, answer);
  }

  /** Returns taken units. @param charge the idempotency key that took them; absent: refills all */
  async refund(
    policy: Policy,
    key: string,
    units: Cost,
    idempotencyKey: string,
    charge?: string,
  ): Answered<Decision> {
    const { callerId } = this.#parts;
    const own = ownKey(callerId, idempotencyKey);
    const of = charge === undefined ? {} : { charge: ownKey(callerId, charge) };
    const refund = {
      op: "refund",
      policy: policy.name,
      key,
      units,
      idempotencyKey: own,
      ...of,
      ...versionOf(policy),
    } as const;
    const answer = await this.#objects.operate(policy, key, refund);
    const detail = "whether the units were given back is not known: ask again with the same idempotencyKey";
    return refundedOf(decisionOf(policy, key, answer ?? unavailable(detail), "charge"));
  }

  /** Reads a key without taking: the decision for a cost of 1, and who holds units or waits. */
  async peek(policy: Policy, key: string): Answered<KeyReport> {
    const answer = await this.#objects.askFor(
      policy,
      key,
      (object) => object.peek(policy.name, key, policy.group?.group, versionOf(policy).inForce),
      LOOK,
    );
    return reportOf(policy, key, answer ?? unavailable("ask again"));
  }

  /** `peek` as soon as the key has no leases, or after `waitMs` milliseconds. */
  async waitForIdle(policy: Policy, key: string, waitMs: number, signal?: AbortSignal): Answered<KeyReport> {
    const answer = await this.#objects.wait<Peeked>(policy, key, "idle", { waitMs }, signal);
    return reportOf(policy, key, answer ?? unavailable("ask again"));
  }

  /** Sets the used units of a key's rules that count a rate. */
  async setUsed(policy: Policy, key: string, used: Cost): Answered<KeyReport> {
    const message = { protocol: PROTOCOL, policy: policy.name, key, used };
    const answer = await this.#objects.ask<Peeked>(policy, key, (object) => object.setUsed(message));
    const detail = "whether the consumption was set is not known: ask again";
    return reportOf(policy, key, answer ?? unavailable(detail));
  }

  /** Resets the key: nothing is used, and there are no holds or leases. */
  async reset(policy: Policy, key: string): Promise<Problem | undefined> {
    this.#shedding.forget(policy, key);
    const answer = await this.#objects.askFor(policy, key, async (object) => {
      await object.reset(policy.name, key);
      return "done" as const;
    });
    if (answer === "done") return undefined;
    return answer ?? unavailable("whether the key was reset is not known: ask again");
  }

  /** Ends the waits of callers at the object, and in this isolate for its own slots. */
  async endWaits(policy: Policy, key: string): Promise<Problem | undefined> {
    const ended = await this.#objects.askFor(policy, key, async (object) => {
      await object.endWaits(policy.name, key);
      return "done" as const;
    });
    // After the object: a call that goes on to it meanwhile is still here too.
    this.claims.endWaits(policy, key);
    if (ended === "done") return undefined;
    return ended ?? unavailable("whether all waits were ended is not known: ask again");
  }

  /** Takes the utilization of a caller's machine, from 0 to 1, for policies that shed by reports. */
  report(policy: Policy, key: string, utilization: number): void {
    this.#shedding.report(this.#parts, policy, key, utilization);
  }

  sampleTogether(calls: Parameters<LoadShedding["sampleTogether"]>[1]): Promise<SheddingSample[]> {
    return this.#shedding.sampleTogether(this.#parts, calls);
  }

  /** Forwards a client's call. The answer may say that the next ones are decided here. */
  askFor(policy: PolicyView, key: string, call: ClientsCall): ReturnType<LimiterClient["forward"]> {
    const forward = (said: ClientsCall) => this.forward(policy, key, said);
    return this.served.ask(this.#parts, policy, key, call, forward);
  }

  /** Forwards a holder's message. The object answers it as it would answer this client. */
  async forward(
    policy: PolicyView,
    key: string,
    call: BatchedCall,
  ): Promise<Reply<MadeAnswer | Slots> | Problem> {
    const { objects, gate, time } = this.#parts;
    const kind = call.giveBack === undefined ? "ask" : "return";
    const ask = () => objects.call<(MadeAnswer & object) | Slots>(policy, key, withVersion(policy, call));
    const reply = await through(gate?.enter(policy, key, time.nowMs(), kind), ask);
    // An admission takes units that a denial here did not count, and returned units may lift one.
    if (call.giveBack !== undefined) this.#local.forgetDenials(policy, key);
    return reply;
  }

  /** Forwards units that a remote holder returns. Lost ones count as used. */
  giveBack(endings: readonly UnsentGiveBack[]): Promise<void> {
    return returnUnits({ call: (policy, key, call) => this.forward(policy, key, call) }, endings);
  }
}

function withVersion(policy: PolicyView, { limit, reserve, operation, ...call }: BatchedCall): BatchedCall {
  const version = versionOf(policy);
  return {
    ...call,
    ...(limit && { limit: { ...limit, ...version } }),
    ...(reserve && { reserve: { ...reserve, ...version } }),
    ...(operation && { operation: { ...operation, ...version } }),
  };
}
