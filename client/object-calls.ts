import type { Policy } from "../core/policies/policy.ts";
import {
  PROTOCOL,
  type AcquireCall,
  type Answer,
  type AnswerText,
  type IdleCall,
} from "../core/protocol/messages.ts";
import type { Caller, LocalLimiter } from "./local-limiter.ts";
import { readAnswer } from "./read-answer.ts";
import type { LimiterStub } from "./transports/objects.ts";

/** The object's answer. The calls below return `undefined` instead when the object does not answer. */
interface Answered<Result> {
  readonly answer: Result;
}

/** A message that may wait, without the fields that every message has. */
type WaitingCall = Omit<AcquireCall | IdleCall, "policy" | "key" | "protocol">;

/** Calls that a key's object decides. The units that this client holds go back first, so the object has all units. */
export class ObjectCalls {
  readonly #caller: Caller;
  readonly #local: LocalLimiter;

  constructor(caller: Caller, local: LocalLimiter) {
    this.#caller = caller;
    this.#local = local;
  }

  /** Makes a call whose answer is JSON text. `waitMs` is added to the policy's deadline. */
  ask<Read extends object = Answer>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<AnswerText>,
    waitMs?: number,
  ): Promise<Answered<Read> | undefined> {
    return this.askFor(policy, key, async (object) => readAnswer<Read>(await call(object)), waitMs);
  }

  /** Makes a call with any other answer. `waitMs` is added to the policy's deadline. */
  askFor<Result>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Result>,
    waitMs = 0,
  ): Promise<Answered<Result> | undefined> {
    return this.#caller.objects.askAfter(this.#local.end(policy, key), policy, key, call, waitMs);
  }

  /**
   * Makes a call that may wait, and that `signal` ends. Units that can be waited for are never reserved, so nothing
   * has to go back first.
   */
  wait<Read extends object>(
    policy: Policy,
    key: string,
    path: "acquire" | "idle",
    call: WaitingCall,
    signal: AbortSignal | undefined,
  ): Promise<Answered<Read> | undefined> {
    const message = { protocol: PROTOCOL, policy: policy.name, key, ...call };
    return this.#caller.objects.wait(policy, key, path, message, readAnswer<Read>, signal);
  }
}
