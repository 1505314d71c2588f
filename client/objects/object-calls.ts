import { type Policy, versionOf } from "../../core/policies/policy.ts";
import type { Answer, AnswerText, UnsupportedProtocol } from "../../core/protocol/answers.ts";
import {
  type AcquireParams,
  type IdleCall,
  type LimitParams,
  PROTOCOL,
  WAITING_PROTOCOL,
} from "../../core/protocol/messages.ts";
import { ownKey } from "../../core/protocol/names.ts";
import type { Full } from "../../core/protocol/problems.ts";
import { type Caller, type CallKind, through } from "../call-gate.ts";
import type { LocalLimiter } from "../local-limiter.ts";
import { readAnswer } from "../read-answer.ts";
import type { LimiterStub } from "../transports/objects.ts";
import { quietly } from "../transports/send-batch.ts";
import type { LoadShedding, SheddingParams, SheddingSample } from "./load-shedding.ts";

/**
 * The object's answer, or the bound at which the caller or the object refused the call. The calls below return
 * `undefined` instead when the object does not answer.
 */
interface ObjectAnswer<Result> {
  readonly answer: Result | Full;
}

/** How a call is made. */
interface Options {
  /** Milliseconds that the object may wait: they are added to the policy's deadline. */
  readonly waitMs?: number | undefined;
  readonly kind?: CallKind;
  /** The call takes effect once, however often it is made: when an attempt fails, there may be a second one. */
  readonly isRepeatable?: boolean;
}

/** A message that may wait, without the fields that every message has. */
type WaitingCall = AcquireParams | Omit<IdleCall, "policy" | "key" | "protocol">;
type WaitingLimit = LimitParams & { readonly waitMs: number };

/** Calls that a key's object decides. The units that this client holds go back first, so the object has all units. */
export class ObjectCalls {
  readonly #caller: Caller;
  readonly #local: LocalLimiter;
  readonly #shedding: LoadShedding;

  constructor(caller: Caller, local: LocalLimiter, shedding: LoadShedding) {
    this.#caller = caller;
    this.#local = local;
    this.#shedding = shedding;
  }

  /** Whether a call is shed: see `LoadShedding.roll`. */
  sampleShedding(
    policy: Policy,
    key: string,
    call: SheddingParams,
  ): SheddingSample | Promise<SheddingSample> {
    return this.#shedding.sampleShedding(this.#caller, policy, key, call);
  }

  /** Makes a call whose answer is JSON text. */
  ask<Read extends object = Answer>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<AnswerText>,
    options?: Options,
  ): Promise<ObjectAnswer<Read> | undefined> {
    return this.askFor(policy, key, async (object) => readAnswer<Read>(await call(object)), options);
  }

  /** Decides on a cost. The call may travel with others for the same object. */
  async limit(policy: Policy, key: string, call: LimitParams): Promise<ObjectAnswer<Answer> | undefined> {
    const { objects, gate, time } = this.#caller;
    const limit = { ...call, policy: policy.name, key, ...versionOf(policy) };
    const asked = await through(gate, policy, key, time.nowMs(), () => {
      const returned = this.#local.end(policy, key);
      const giveBack = { policy: policy.name, returned };
      return objects.call<Answer>(policy, key, returned.length === 0 ? { limit } : { giveBack, limit });
    });
    return asked !== undefined && "full" in asked ? { answer: asked } : asked;
  }

  /** Makes a call with any other answer. */
  async askFor<Result>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Result>,
    { waitMs = 0, kind = "ask", isRepeatable }: Options = {},
  ): Promise<ObjectAnswer<Result> | undefined> {
    const { objects, gate, time, isDoubted } = this.#caller;
    const asked = await through(
      gate,
      policy,
      key,
      time.nowMs(),
      () => {
        const returned = this.#local.end(policy, key);
        return objects.askAfter(returned, policy, key, telling(policy, key, call), { waitMs, isRepeatable });
      },
      isDoubted === true && kind === "end" ? "ask" : kind,
    );
    // A call that asked meanwhile may have been denied before this one was carried out.
    this.#local.forgetDenials(policy, key);
    return asked !== undefined && "full" in asked ? { answer: asked } : asked;
  }

  /**
   * Makes a call that may wait, and that `signal` ends. Units that can be waited for are never reserved, so nothing
   * has to go back first.
   */
  async wait<Read extends object>(
    policy: Policy,
    key: string,
    path: "acquire" | "idle",
    call: WaitingCall,
    signal: AbortSignal | undefined,
  ): Promise<ObjectAnswer<Read> | undefined> {
    const { objects, gate, time } = this.#caller;
    const message = { ...this.own(call), protocol: PROTOCOL, ...namesOf(policy, key) };
    const read = readAnswer<Read>;
    const asked = await through(
      gate,
      policy,
      key,
      time.nowMs(),
      () => this.#followed(policy, key, () => objects.wait(policy, key, path, message, read, { signal })),
      call.waitMs > 0 ? "wait" : "ask",
    );
    return asked !== undefined && "full" in asked ? { answer: asked } : asked;
  }

  /** The same for a `limit`. Its units may be reserved here, and go back first; an older object cannot let it wait. */
  async waitForUnits(
    policy: Policy,
    key: string,
    call: WaitingLimit,
    signal: AbortSignal | undefined,
  ): Promise<ObjectAnswer<Answer | UnsupportedProtocol> | undefined> {
    const { objects, gate, time } = this.#caller;
    const message = { ...this.own(call), protocol: WAITING_PROTOCOL, ...namesOf(policy, key) };
    const read = (text: AnswerText) => JSON.parse(text) as Answer | UnsupportedProtocol;
    const wait = () => {
      const returned = this.#local.end(policy, key);
      return this.#followed(policy, key, () =>
        objects.wait(policy, key, "limit", message, read, { signal, returned }),
      );
    };
    const asked = await through(gate, policy, key, time.nowMs(), wait, "wait");
    return asked !== undefined && "full" in asked ? { answer: asked } : asked;
  }

  /** Waits at the object, which hears meanwhile when another version of the policy is in force. */
  async #followed<Result>(policy: Policy, key: string, wait: () => Promise<Result>): Promise<Result> {
    const { objects, follow } = this.#caller;
    const stop = follow?.(policy, key, (now) => {
      const { name, inForce } = now;
      if (inForce !== undefined) void quietly(objects.objectOf(now, key).tell(name, key, inForce));
    });
    try {
      return await wait();
    } finally {
      stop?.();
    }
  }

  /** The call with its caller's name. Its idempotency key becomes the caller's own. */
  own<Call extends object>(call: Call): Call & { readonly caller?: string } {
    const { callerId } = this.#caller;
    if (callerId === undefined) return call;
    const { idempotencyKey } = call as { readonly idempotencyKey?: string };
    const key = idempotencyKey === undefined ? {} : { idempotencyKey: ownKey(callerId, idempotencyKey) };
    return { ...call, ...key, caller: callerId };
  }
}

/** What every message that asks for a decision says: of which key, and on which terms. */
export function namesOf(policy: Policy, key: string) {
  const { name, terms } = policy;
  return { policy: name, key, ...(terms !== undefined && { terms }), ...versionOf(policy) };
}

/** The call, before which the object is told what is in force: the call may have no room for it. */
function telling<Result>(
  policy: Policy,
  key: string,
  call: (object: LimiterStub) => Promise<Result>,
): (object: LimiterStub) => Promise<Result> {
  const { name, inForce } = policy;
  if (inForce === undefined) return call;
  return async (object) => {
    const told = quietly(object.tell(name, key, inForce));
    const answer = await call(object);
    await told;
    return answer;
  };
}
