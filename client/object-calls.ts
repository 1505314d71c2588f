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

/** What came back; the calls below answer `undefined` instead when the object does not. */
interface Answered<Result> {
  readonly answer: Result;
}

/** A message that may wait, without what is the same for all messages. */
export type WaitingCall = Omit<AcquireCall | IdleCall, "policy" | "key" | "protocol">;

/**
 * Calls that a key's object decides. It is to have everything there is, so what this client holds goes back first.
 */
export class ObjectCalls {
  readonly #caller: Caller;
  readonly #local: LocalLimiter;

  constructor(caller: Caller, local: LocalLimiter) {
    this.#caller = caller;
    this.#local = local;
  }

  /** Asks for an answer that comes as text. */
  ask<Read extends object = Answer>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<AnswerText>,
    waitMs?: number,
  ): Promise<Answered<Read> | undefined> {
    return this.askFor(policy, key, async (object) => readAnswer<Read>(await call(object)), waitMs);
  }

  /** Asks for anything else. */
  askFor<Result>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Result>,
    waitMs = 0,
  ): Promise<Answered<Result> | undefined> {
    return this.#caller.objects.askAfter(this.#local.end(policy, key), policy, key, call, waitMs);
  }

  /**
   * Asks with a call that may wait, and ends with `signal`. What can be waited for is never reserved, so nothing goes
   * back first.
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
