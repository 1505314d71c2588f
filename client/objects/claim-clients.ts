/** The calls on holds and leases, which the key's object decides. */
import { type Cost, forPriority, type Policy } from "../../core/policies/policy.ts";
import type { Answer, Lease, Missing, Released } from "../../core/protocol/answers.ts";
import { type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import {
  type AcquireCall,
  type AcquireParams,
  type HoldParams,
  type LeaseReport,
  LINK_PROTOCOL,
  PROTOCOL,
  RESUMING_PROTOCOL,
} from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { type Answered, Problem } from "../../core/protocol/problems.ts";
import {
  asShadow,
  decisionOf,
  hasNoRules,
  holdMissing,
  leaseMissing,
  readAnswer,
  toShedDecision,
  unavailable,
} from "../read-answer.ts";
import type { LimiterStub } from "../transports/objects.ts";
import type { SheddingSample } from "./load-shedding.ts";
import { namesOf, type ObjectCalls } from "./object-calls.ts";

const ENDING = { kind: "end", isRepeatable: true } as const;

export class HoldClient {
  readonly #objects: ObjectCalls;

  constructor(objects: ObjectCalls) {
    this.#objects = objects;
  }

  async hold(policy: Policy, key: string, call: HoldParams): Promise<Answer | Problem | undefined> {
    // Checks on several keys were sampled together. In shadow nothing is shed.
    const isSampled = call.provisional !== undefined || policy.shadow;
    const shed = isSampled ? call.shed : await this.#objects.sampleShedding(policy, key, call);
    if (shed !== undefined && call.idempotencyKey === undefined) return { shed };
    const message = { ...this.#objects.own({ ...call, shed }), protocol: PROTOCOL, ...namesOf(policy, key) };
    const isRepeatable = call.idempotencyKey !== undefined;
    const options = { waitMs: call.provisional?.waitMs, isRepeatable };
    return await this.#objects.ask(policy, key, (object) => object.hold(message), options);
  }

  settle(policy: Policy, key: string, id: string, used: Cost): Answered<Decision> {
    return this.#end(policy, key, "settled", (object) => object.settle(policy.name, key, id, used));
  }

  cancel(policy: Policy, key: string, id: string): Answered<Decision> {
    return this.#end(policy, key, "cancelled", (object) => object.cancel(policy.name, key, id));
  }

  async #end(
    policy: Policy,
    key: string,
    outcome: string,
    end: (object: LimiterStub) => Promise<string>,
  ): Answered<Decision> {
    const answer = await this.#objects.ask(policy, key, end, ENDING);
    const detail = `whether the hold was ${outcome} is not known: ask again, it takes effect only once`;
    return decisionOf(policy, key, answer ?? unavailable(detail), holdMissing);
  }
}

export class LeaseClient {
  readonly #objects: ObjectCalls;

  constructor(objects: ObjectCalls) {
    this.#objects = objects;
  }

  /** Leases units, waiting for up to `call.waitMs`; `signal` ends the wait, and then nothing is granted. */
  async acquire(policy: Policy, key: string, call: AcquireParams, signal?: AbortSignal): Answered<Decision> {
    const shed = await this.#objects.sampleShedding(policy, key, call);
    const isShadow = shed !== undefined && policy.shadow;
    if (!isShadow && shed !== undefined && call.idempotencyKey === undefined)
      return toShedDecision(forPriority(policy, call.priority), key, shed);
    const message = isShadow ? call : { ...call, shed };
    const answer = await this.#objects.wait<Answer>(policy, key, "acquire", message, signal);
    if (answer instanceof Problem) return answer;
    const isAnswered = answer !== undefined && !hasNoRules(answer);
    const decision = isAnswered ? decisionOf(policy, key, answer) : degradedDecision(policy, key);
    return isShadow ? asShadow(decision) : decision;
  }

  /** Leases units until expiry, or the disposal of the handle in `attached`. `call.resume` takes over one. */
  async acquireAttached(
    policy: Policy,
    key: string,
    call: AcquireParams,
  ): Promise<{ readonly decision: Decision | Problem; readonly attached: Attached } | undefined> {
    const shed = await this.#sampleUnlessResumed(policy, key, call);
    if (shed !== undefined && call.idempotencyKey === undefined && !policy.shadow)
      return {
        decision: toShedDecision(forPriority(policy, call.priority), key, shed),
        attached: NOTHING_ATTACHED,
      };
    const own = this.#objects.own({ ...call, waitMs: 0, ...(!policy.shadow && { shed }) });
    const isLinked = call.resume !== undefined || call.graceMs !== undefined;
    const message = { ...own, protocol: isLinked ? LINK_PROTOCOL : PROTOCOL, ...namesOf(policy, key) };
    const answer = await this.#objects.askFor(policy, key, async (object) => {
      const attached = await object.acquire(message);
      const decision = decisionOf(policy, key, readAnswer(attached.answer));
      return { decision: shed !== undefined && policy.shadow ? asShadow(decision) : decision, attached };
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
    const renew = (object: LimiterStub) =>
      ttlMs === undefined ? object.renew(policy.name, key, id) : object.renew(policy.name, key, id, ttlMs);
    const answer = await this.#objects.ask<Lease | Missing>(policy, key, renew, ENDING);
    if (answer === undefined) return unavailable("whether the lease was renewed is not known: ask again");
    return "missing" in answer ? leaseMissing() : answer;
  }

  /** Ends a lease with its report. The first caller in the queue gets its units at once. */
  async release(
    policy: Policy,
    key: string,
    id: string,
    report: LeaseReport = {},
  ): Promise<Problem | undefined> {
    const release = async (object: LimiterStub) => ({
      isReleased: await object.release(policy.name, key, id),
    });
    const message = { protocol: PROTOCOL, policy: policy.name, key, id, ...report };
    const releaseAs = async (object: LimiterStub) => {
      try {
        const answer = readAnswer<Released | Missing>(await object.releaseCall(message));
        return { isReleased: "released" in answer };
      } catch (error) {
        if (isUnknownMethod(error)) return OLDER_VERSION;
        throw error;
      }
    };
    const isReported = learns(policy) && Object.values(report).some((each) => each !== undefined);
    let answer = await this.#objects.askFor(policy, key, isReported ? releaseAs : release, ENDING);
    // An exception of an older version breaks its stub, so this call has a new one.
    if (answer === OLDER_VERSION) answer = await this.#objects.askFor(policy, key, release, ENDING);
    if (answer === undefined) return unavailable("whether the lease was released is not known: ask again");
    if (answer instanceof Problem) return answer;
    return answer.isReleased ? undefined : leaseMissing();
  }

  /** Opens a WebSocket to the object. The lease lasts while the socket is open. */
  async openSocket(policy: Policy, key: string, call: AcquireParams): Answered<Response> {
    const shed = await this.#sampleUnlessResumed(policy, key, call);
    const own = this.#objects.own(policy.shadow ? call : { ...call, shed });
    const protocol = call.resume === undefined ? PROTOCOL : RESUMING_PROTOCOL;
    const message: AcquireCall = { ...own, protocol, ...namesOf(policy, key) };
    const url = `https://object/socket?call=${encodeURIComponent(JSON.stringify(message))}`;
    const answer = await this.#objects.askFor(policy, key, async (object) => {
      const response = await object.fetch(url, { headers: { upgrade: "websocket" } });
      if (response.status !== 101) throw new Error(`the object opened no socket: ${await response.text()}`);
      return response;
    });
    return answer ?? unavailable("no socket was opened: ask again");
  }

  #sampleUnlessResumed(
    policy: Policy,
    key: string,
    call: AcquireParams,
  ): SheddingSample | Promise<SheddingSample> {
    return call.resume === undefined ? this.#objects.sampleShedding(policy, key, call) : undefined;
  }
}

const NOTHING_ATTACHED: Attached = { answer: "" };
const OLDER_VERSION = { isReleased: false };

/** Whether a rule of the policy learns from reports. All others ignore them. */
function learns({ rules }: Policy): boolean {
  return rules.some(({ algorithm }) => algorithm.leasing?.released !== undefined);
}

/** Whether the object lacks the method: then workerd quotes its name. */
function isUnknownMethod(error: unknown): boolean {
  return error instanceof TypeError && error.message.includes('"releaseCall"');
}
