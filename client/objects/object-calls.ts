import { type Policy, versionOf } from "../../core/policies/policy.ts";
import type { Answer, AnswerText, UnsupportedProtocol } from "../../core/protocol/answers.ts";
import {
  type AcquireCall,
  type AcquireParams,
  type IdleCall,
  type LimitCall,
  type LimitParams,
  PROTOCOL,
  WAITING_PROTOCOL,
} from "../../core/protocol/messages.ts";
import { ownKey } from "../../core/protocol/names.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import { type Caller, type CallKind, through } from "../call-gate.ts";
import type { LocalLimiter } from "../local-limiter.ts";
import { boundReached, readAnswer } from "../read-answer.ts";
import type { LimiterStub } from "../transports/objects.ts";
import { quietly } from "../transports/send-batch.ts";
import type { LoadShedding, SheddingParams, SheddingSample } from "./load-shedding.ts";

interface Options {
  /** Milliseconds that the object may wait, in addition to the policy's deadline. */
  readonly waitMs?: number | undefined;
  readonly kind?: CallKind;
  /** The call takes effect once, however often it is made, so a failed attempt may be repeated. */
  readonly isRepeatable?: boolean;
}

type WaitingCall = AcquireParams | Omit<IdleCall, "policy" | "key" | "protocol">;

/**
 * Calls to a key's object, after held units are returned to it. Returns a problem at a bound, and `undefined`
 * when the object does not answer.
 */
export class ObjectCalls {
  readonly #caller: Caller;
  readonly #local: LocalLimiter;
  readonly #shedding: LoadShedding;

  constructor(caller: Caller, local: LocalLimiter, shedding: LoadShedding) {
    this.#caller = caller;
    this.#local = local;
    this.#shedding = shedding;
  }

  sampleShedding(
    policy: Policy,
    key: string,
    call: SheddingParams,
  ): SheddingSample | Promise<SheddingSample> {
    return this.#shedding.sampleShedding(this.#caller, policy, key, call);
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
      const options = { waitMs, isRepeatable, isEnd: kind === "end" };
      return objects.askAfter(returned, policy, key, telling(policy, key, call), options);
    });
    // A concurrent call may have been denied before this one took effect.
    this.#local.forgetDenials(policy, key);
    return answer;
  }

  /** Decides a cost, possibly in a batch with other calls to the object. */
  limit(policy: Policy, key: string, call: LimitParams): Promise<Answer | Problem | undefined> {
    const limit = { ...call, policy: policy.name, key, ...versionOf(policy) };
    return this.#through(policy, key, "ask", () => {
      const returned = this.#local.end(policy, key);
      const giveBack = { policy: policy.name, returned };
      const message = returned.length === 0 ? { limit } : { giveBack, limit };
      return this.#caller.objects.call<Answer>(policy, key, message);
    });
  }

  wait<Read extends object>(
    policy: Policy,
    key: string,
    path: "acquire" | "idle",
    call: WaitingCall,
    signal: AbortSignal | undefined,
  ): Promise<Read | Problem | undefined> {
    const message = { ...this.own(call), protocol: PROTOCOL, ...namesOf(policy, key) };
    return this.#wait(policy, key, path, message, readAnswer<Read>, signal);
  }

  /** `wait` for a `limit`. An object of an older version answers that it does not support waiting. */
  waitForUnits(
    policy: Policy,
    key: string,
    call: LimitParams & { readonly waitMs: number },
    signal: AbortSignal | undefined,
  ): Promise<Answer | UnsupportedProtocol | Problem | undefined> {
    const message = { ...this.own(call), protocol: WAITING_PROTOCOL, ...namesOf(policy, key) };
    const read = (text: AnswerText) => JSON.parse(text) as Answer | UnsupportedProtocol;
    return this.#wait(policy, key, "limit", message, read, signal);
  }

  /** Waits at the object, and sends it each new version of the policy meanwhile. */
  #wait<Result>(
    policy: Policy,
    key: string,
    path: "acquire" | "idle" | "limit",
    message: (AcquireCall | IdleCall | LimitCall) & { readonly waitMs: number },
    read: (text: AnswerText) => Result,
    signal: AbortSignal | undefined,
  ): Promise<Result | Problem | undefined> {
    const { objects, follow } = this.#caller;
    return this.#through(policy, key, message.waitMs > 0 ? "wait" : "ask", async () => {
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

  /** Adds the caller, and makes the idempotency key the caller's own. */
  own<Call extends object>(call: Call): Call & { readonly caller?: string } {
    const { callerId } = this.#caller;
    if (callerId === undefined) return call;
    const { idempotencyKey } = call as { readonly idempotencyKey?: string };
    const key = idempotencyKey === undefined ? {} : { idempotencyKey: ownKey(callerId, idempotencyKey) };
    return { ...call, ...key, caller: callerId };
  }

  async #through<Result>(
    policy: Policy,
    key: string,
    kind: CallKind,
    call: () => Promise<{ readonly answer: Result } | undefined>,
  ): Promise<Result | Problem | undefined> {
    const { gate, time } = this.#caller;
    const reply = await through(gate, policy, key, time.nowMs(), call, kind);
    return reply !== undefined && "full" in reply ? boundReached(reply) : reply?.answer;
  }
}

/** The fields of every message for a decision: its key and rules. */
export function namesOf(policy: Policy, key: string) {
  const { name, terms } = policy;
  return { policy: name, key, ...(terms !== undefined && { terms }), ...versionOf(policy) };
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
