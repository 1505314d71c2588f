/** Calls to a key's object: how they are made, and those on holds and leases. */
import { type Cost, forPriority, type Policy, versionOf } from "../../core/policies/policy.ts";
import type { Answer, AnswerText, Lease, Missing, Released } from "../../core/protocol/answers.ts";
import type {
  AcquireCall,
  AcquireParams,
  HoldParams,
  IdleCall,
  LeaseReport,
  OperationCall,
  LimitParams,
} from "../../core/protocol/calls.ts";
import { type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import {
  type BatchedCall,
  LINK_PROTOCOL,
  PROTOCOL,
  RESUMING_PROTOCOL,
  WAITING_PROTOCOL,
} from "../../core/protocol/messages.ts";
import { ownKey } from "../../core/protocol/names.ts";
import type { MaybePromise, Attached } from "../../core/protocol/object-methods.ts";
import { type Answered, Problem } from "../../core/protocol/problems.ts";
import { type ClientContext, type CallKind, through } from "../call-gate.ts";
import type { LocalLimiter } from "../local-limiter.ts";
import {
  asShadow,
  boundReached,
  decisionOf,
  hasNoRules,
  notFound,
  toShedDecision,
  unavailable,
} from "../read-answer.ts";
import type { LimiterStub, Reply } from "../transports/objects.ts";
import { isEnding, quietly, readAnswer } from "../transports/send-batch.ts";
import type { LoadShedding, SheddingParams, SheddingSample } from "./load-shedding.ts";

interface Options {
  /** Milliseconds that the object may wait, in addition to the policy's deadline. */
  readonly waitMs?: number | undefined;
  readonly kind?: CallKind;
  /** The call takes effect once, however often it is made, so a failed attempt may be repeated. */
  readonly isRepeatable?: boolean;
}

type WaitingCall =
  | AcquireParams
  | Omit<IdleCall, "policy" | "key" | "protocol">
  | (LimitParams & { readonly waitMs: number });

/** What shedding makes of a call: a denial, a field of its message, or in shadow a mark on its decision. */
interface Shedding {
  readonly denial?: Decision;
  readonly shed?: SheddingSample;
  readonly isShadow?: boolean;
}

/**
 * Calls to a key's object, after held units are returned to it. Returns a problem at a bound, and `undefined`
 * when the object does not answer.
 */
export class ObjectCalls {
  readonly #caller: ClientContext;
  readonly #local: LocalLimiter;
  readonly #shedding: LoadShedding;

  constructor(caller: ClientContext, local: LocalLimiter, shedding: LoadShedding) {
    this.#caller = caller;
    this.#local = local;
    this.#shedding = shedding;
  }

  sampleShedding(policy: Policy, key: string, call: SheddingParams): MaybePromise<SheddingSample> {
    return this.#shedding.sampleShedding(this.#caller, policy, key, call);
  }

  shed(policy: Policy, key: string, call: AcquireParams): Shedding | Promise<Shedding> {
    return policy.shedding === undefined ? {} : this.#shed(policy, key, call);
  }

  async #shed(policy: Policy, key: string, call: AcquireParams): Promise<Shedding> {
    const shed = call.resume === undefined ? await this.sampleShedding(policy, key, call) : undefined;
    if (shed === undefined || policy.shadow) return { isShadow: shed !== undefined };
    if (call.idempotencyKey !== undefined) return { shed };
    return { denial: toShedDecision(forPriority(policy, call.priority), key, shed) };
  }

  ask<Read extends object = Answer>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<AnswerText>,
    options?: Options,
  ): Promise<Read | Problem | undefined> {
    return this.askFor(policy, key, async (object) => readAnswer<Read>(await call(object)), options);
  }

  async askFor<Result>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Result>,
    { waitMs = 0, kind = "ask", isRepeatable }: Options = {},
  ): Promise<Result | Problem | undefined> {
    const { objects, isDoubted } = this.#caller;
    const callKind = isDoubted === true && kind === "end" ? "ask" : kind;
    const answer = await this.#through(policy, key, callKind, () => {
      const returned = this.#local.end(policy, key);
      const isEnd = kind === "end";
      return objects.ask(policy, key, telling(policy, key, call), { waitMs, isRepeatable, isEnd, returned });
    });
    // A concurrent call may have been denied before this one took effect.
    this.#local.forgetDenials(policy, key);
    return answer;
  }

  /** Decides a cost, possibly in a batch with other calls to the object. */
  limit(policy: Policy, key: string, call: LimitParams): Promise<Answer | Problem | undefined> {
    const limit = { ...call, policy: policy.name, key, ...versionOf(policy) };
    return this.#post<Answer>(policy, key, "ask", { limit });
  }

  /** Makes a call on a hold, a lease or a charge, possibly in a batch. */
  async operate<Read extends Answer | Lease | Released = Answer>(
    policy: Policy,
    key: string,
    operation: OperationCall,
  ): Promise<Read | Problem | undefined> {
    const kind = isEnding(operation) && this.#caller.isDoubted !== true ? "end" : "ask";
    // A batch says the rules once.
    const answer = await this.#post<Read>(policy, key, kind, {
      operation: { ...operation, terms: undefined },
    });
    // A concurrent call may have been denied before this one took effect.
    this.#local.forgetDenials(policy, key);
    return answer;
  }

  #post<Read extends Answer | Lease | Released>(
    policy: Policy,
    key: string,
    kind: CallKind,
    call: BatchedCall,
  ): Promise<Read | Problem | undefined> {
    return this.#through(policy, key, kind, () => {
      const returned = this.#local.end(policy, key);
      const giveBack = returned.length > 0 && { giveBack: { policy: policy.name, returned } };
      return this.#caller.objects.call<Read>(policy, key, { ...giveBack, ...call });
    });
  }

  /**
   * Waits at the object, and sends it each new version of the policy meanwhile. An object of an older version
   * answers a `limit` that it does not support waiting.
   */
  wait<Read extends object>(
    policy: Policy,
    key: string,
    path: "acquire" | "idle" | "limit",
    call: WaitingCall,
    signal: AbortSignal | undefined,
    read: (text: AnswerText) => Read = readAnswer<Read>,
  ): Promise<Read | Problem | undefined> {
    const { objects, follow } = this.#caller;
    const message = this.message(policy, key, call, path === "limit" ? WAITING_PROTOCOL : PROTOCOL);
    return this.#through(policy, key, call.waitMs > 0 ? "wait" : "ask", async () => {
      const returned = this.#local.end(policy, key);
      const stop = follow?.(policy, key, (now) => {
        const { name, inForce } = now;
        if (inForce !== undefined) void quietly(objects.objectOf(now, key).tell(name, key, inForce));
      });
      try {
        return await objects.wait(policy, key, path, message, read, { signal, returned });
      } finally {
        stop?.();
      }
    });
  }

  /** A call with its key, its rules and its caller. An idempotency key becomes the caller's own. */
  message<Call extends object>(policy: Policy, key: string, call: Call, protocol = PROTOCOL) {
    const { callerId } = this.#caller;
    const { idempotencyKey } = call as { readonly idempotencyKey?: string };
    return {
      ...call,
      ...(callerId !== undefined && { caller: callerId }),
      ...(idempotencyKey !== undefined && { idempotencyKey: ownKey(callerId, idempotencyKey) }),
      protocol,
      policy: policy.name,
      key,
      ...(policy.terms !== undefined && { terms: policy.terms }),
      ...versionOf(policy),
    };
  }

  async #through<Result>(
    policy: Policy,
    key: string,
    kind: CallKind,
    call: () => Promise<Reply<Result>>,
  ): Promise<Result | Problem | undefined> {
    const { gate, time } = this.#caller;
    const reply = await through(gate?.enter(policy, key, time.nowMs(), kind), call);
    return reply !== undefined && "full" in reply ? boundReached(reply) : reply?.answer;
  }
}

/** Sends the version in force before the call, which may have no field for it. */
function telling<Result>(
  { name, inForce }: Policy,
  key: string,
  call: (object: LimiterStub) => Promise<Result>,
): (object: LimiterStub) => Promise<Result> {
  if (inForce === undefined) return call;
  return async (object) => {
    const isTold = quietly(object.tell(name, key, inForce));
    const answer = await call(object);
    await isTold;
    return answer;
  };
}

const ENDING = { kind: "end", isRepeatable: true } as const;

/** The calls on holds and leases. */
export class ClaimClient {
  readonly #objects: ObjectCalls;

  constructor(objects: ObjectCalls) {
    this.#objects = objects;
  }

  async hold(policy: Policy, key: string, call: HoldParams): Promise<Answer | Problem | undefined> {
    // Checks on several keys were sampled together. In shadow nothing is shed.
    const isSampled = call.provisional !== undefined || policy.shadow;
    const shed = isSampled ? call.shed : await this.#objects.sampleShedding(policy, key, call);
    if (shed !== undefined && call.idempotencyKey === undefined) return { shed };
    const message = this.#objects.message(policy, key, { ...call, shed });
    if (call.provisional === undefined)
      return await this.#objects.operate(policy, key, { op: "hold", ...message });
    // It may wait for others of its kind.
    const options = { waitMs: call.provisional.waitMs, isRepeatable: call.idempotencyKey !== undefined };
    return await this.#objects.ask(policy, key, (object) => object.hold(message), options);
  }

  settle(policy: Policy, key: string, id: string, used: Cost): Answered<Decision> {
    return this.#endHold(policy, key, "settled", { op: "settle", id, used });
  }

  cancel(policy: Policy, key: string, id: string): Answered<Decision> {
    return this.#endHold(policy, key, "cancelled", { op: "cancel", id });
  }

  async #endHold(
    policy: Policy,
    key: string,
    outcome: string,
    end:
      | { readonly op: "settle"; readonly id: string; readonly used: Cost }
      | { readonly op: "cancel"; readonly id: string },
  ): Answered<Decision> {
    const answer = await this.#objects.operate(policy, key, this.#objects.message(policy, key, end));
    const detail = `whether the hold was ${outcome} is not known: ask again, it takes effect only once`;
    return decisionOf(policy, key, answer ?? unavailable(detail), "hold");
  }

  /** Leases units, waiting for up to `call.waitMs`; `signal` ends the wait, and then nothing is granted. */
  async acquire(policy: Policy, key: string, call: AcquireParams, signal?: AbortSignal): Answered<Decision> {
    const { denial, shed, isShadow } = await this.#objects.shed(policy, key, call);
    if (denial !== undefined) return denial;
    const answer = await this.#acquire(policy, key, { ...call, shed }, signal);
    if (answer instanceof Problem) return answer;
    const isAnswered = answer !== undefined && !hasNoRules(answer);
    const decision = isAnswered ? decisionOf(policy, key, answer) : degradedDecision(policy, key);
    return isShadow === true ? asShadow(decision) : decision;
  }

  /** A call that waits, also for a pool, ends with its caller. */
  async #acquire(policy: Policy, key: string, call: AcquireParams, signal?: AbortSignal) {
    if (call.waitMs > 0 || policy.pool !== undefined)
      return await this.#objects.wait<Answer>(policy, key, "acquire", call, signal);
    const message = this.#objects.message(policy, key, call);
    return await this.#objects.operate(policy, key, { op: "lease", ...message });
  }

  /** Leases units until expiry, or the disposal of the handle in `attached`. `call.resume` takes over one. */
  async acquireAttached(
    policy: Policy,
    key: string,
    call: AcquireParams,
  ): Promise<{ readonly decision: Decision | Problem; readonly attached: Attached } | undefined> {
    const { denial, shed, isShadow } = await this.#objects.shed(policy, key, call);
    if (denial !== undefined) return { decision: denial, attached: NOTHING_ATTACHED };
    const isLinked = call.resume !== undefined || call.graceMs !== undefined;
    const protocol = isLinked ? LINK_PROTOCOL : PROTOCOL;
    const message = this.#objects.message(policy, key, { ...call, waitMs: 0, shed }, protocol);
    const answer = await this.#objects.askFor(policy, key, async (object) => {
      const attached = await object.acquire(message);
      const decision = decisionOf(policy, key, readAnswer(attached.answer));
      return { decision: isShadow === true ? asShadow(decision) : decision, attached };
    });
    return answer instanceof Problem ? { decision: answer, attached: NOTHING_ATTACHED } : answer;
  }

  /** Extends a lease granted for `confirmWithinMs`. @param isAttached it ends with the returned handle too */
  async confirm(
    policy: Policy,
    key: string,
    id: string,
    ttlMs: number,
    isAttached: boolean,
  ): Promise<Attached | "ended" | undefined> {
    const confirm = async (object: LimiterStub) => {
      const attached = await object.confirm(policy.name, key, id, ttlMs, isAttached);
      return "missing" in readAnswer<Lease | Missing>(attached.answer) ? "ended" : attached;
    };
    // Disposing of a lost answer's handle ends the lease, so a second attempt would not find it.
    const options = isAttached ? ({ kind: "end" } as const) : ENDING;
    const answer = await this.#objects.askFor(policy, key, confirm, options);
    return answer instanceof Problem ? undefined : answer;
  }

  /** `confirm` of a lease that outlives its link for a grace, with its first ttl. */
  async takeOver(policy: Policy, key: string, call: AcquireParams): Promise<Attached | "ended" | undefined> {
    const granted = await this.acquireAttached(policy, key, call);
    if (granted === undefined) return undefined;
    const { decision, attached } = granted;
    if (!(decision instanceof Problem)) return attached;
    return decision.status === 404 ? "ended" : undefined;
  }

  /** Moves a lease's end to `ttlMs` from now; absent: the ttl of its acquire. */
  async renew(policy: Policy, key: string, id: string, ttlMs?: number): Answered<Lease> {
    const message = this.#objects.message(policy, key, { op: "renew", id, ttlMs } as const);
    const answer = await this.#objects.operate<Lease | Missing>(policy, key, message);
    if (answer === undefined) return unavailable("whether the lease was renewed is not known: ask again");
    return "missing" in answer ? notFound("lease") : answer;
  }

  /** Ends a lease with its report. The first caller in the queue gets its units at once. */
  async release(policy: Policy, key: string, id: string, report: LeaseReport = {}): Answered<undefined> {
    const message = this.#objects.message(policy, key, {
      op: "release",
      id,
      ...(learns(policy) && report),
    } as const);
    const answer = await this.#objects.operate<Released | Missing>(policy, key, message);
    if (answer === undefined) return unavailable("whether the lease was released is not known: ask again");
    if (answer instanceof Problem) return answer;
    return "released" in answer ? undefined : notFound("lease");
  }

  /** Opens a WebSocket to the object. The lease lasts while the socket is open. */
  async openSocket(policy: Policy, key: string, call: AcquireParams): Answered<Response> {
    // The object answers a shed call by a socket too.
    const isShed = call.resume === undefined && !policy.shadow;
    const shed = isShed ? await this.#objects.sampleShedding(policy, key, call) : undefined;
    const protocol = call.resume === undefined ? PROTOCOL : RESUMING_PROTOCOL;
    const message: AcquireCall = this.#objects.message(policy, key, { ...call, shed }, protocol);
    const url = `https://object/socket?call=${encodeURIComponent(JSON.stringify(message))}`;
    const answer = await this.#objects.askFor(policy, key, async (object) => {
      const response = await object.fetch(url, { headers: { upgrade: "websocket" } });
      if (response.status !== 101) throw new Error(`the object opened no socket: ${await response.text()}`);
      return response;
    });
    return answer ?? unavailable("no socket was opened: ask again");
  }
}

const NOTHING_ATTACHED: Attached = { answer: "" };

/** Whether a rule of the policy learns from reports. All others ignore them. */
function learns({ rules }: Policy): boolean {
  return rules.some(({ algorithm }) => algorithm.leasing?.released !== undefined);
}
