/** Calls to a key's object: how they are made. */
import { forPriority, type Policy, versionOf } from "../../core/policies/policy.ts";
import type { Answer, AnswerText } from "../../core/protocol/answers.ts";
import type { AcquireParams, IdleCall, OperationCall, LimitParams } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import {
  type BatchedCall,
  type CallAnswer,
  PROTOCOL,
  WAITING_PROTOCOL,
} from "../../core/protocol/messages.ts";
import { ownKey } from "../../core/protocol/names.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { type ClientContext, type CallKind, through } from "../call-gate.ts";
import type { LocalLimiter } from "../local-limiter.ts";
import { toShedDecision } from "../read-answer.ts";
import type { LimiterStub, Reply } from "../transports/objects.ts";
import { isEnding, quietly, readAnswer } from "../transports/send-batch.ts";
import type { LoadShedding, SheddingParams, SheddingSample } from "./load-shedding.ts";

interface Options {
  /** Milliseconds that the object may wait, in addition to the policy's deadline. */
  readonly waitMs?: number | undefined;
  readonly kind?: CallKind;
  /** The call takes effect once, however often it is made, so a failed attempt may be repeated. */
  readonly isRepeatable?: boolean;
  /** The call says the version in force itself. */
  readonly saysVersion?: boolean;
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
    { waitMs = 0, kind = "ask", isRepeatable, saysVersion }: Options = {},
  ): Promise<Result | Problem | undefined> {
    const { objects, isDoubted } = this.#caller;
    const callKind = isDoubted === true && kind === "end" ? "ask" : kind;
    const answer = await this.#through(policy, key, callKind, () => {
      const returned = this.#local.end(policy, key);
      const isEnd = kind === "end";
      const told = saysVersion === true ? call : telling(policy, key, call);
      return objects.ask(policy, key, told, { waitMs, isRepeatable, isEnd, returned });
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
  async operate<Read extends Exclude<CallAnswer, null> = Answer>(
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

  #post<Read extends Exclude<CallAnswer, null>>(
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
        const { inForce } = versionOf(now);
        if (inForce !== undefined) void quietly(objects.objectOf(now, key).tell(now.name, key, inForce));
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
    return reply instanceof Problem ? reply : reply?.answer;
  }
}

/** Sends the version in force before the call, which may have no field for it. */
function telling<Result>(
  policy: Policy,
  key: string,
  call: (object: LimiterStub) => Promise<Result>,
): (object: LimiterStub) => Promise<Result> {
  const { inForce } = versionOf(policy);
  if (inForce === undefined) return call;
  return async (object) => {
    const isTold = quietly(object.tell(policy.name, key, inForce));
    const answer = await call(object);
    await isTold;
    return answer;
  };
}
