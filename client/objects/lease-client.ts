import { forPriority, type Policy } from "../../core/policies/policy.ts";
import type { Answer, Lease, Missing, Released } from "../../core/protocol/answers.ts";
import { type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import {
  type AcquireCall,
  type AcquireParams,
  type LeaseReport,
  LINK_PROTOCOL,
  PROTOCOL,
  RESUMING_PROTOCOL,
} from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { Problem } from "../../core/protocol/problems.ts";
import {
  asShadow,
  boundReached,
  decisionOf,
  isToNobody,
  leaseMissing,
  readAnswer,
  shedTold,
  unavailable,
} from "../read-answer.ts";
import type { LimiterStub } from "../transports/objects.ts";
import { namesOf, type ObjectCalls } from "./object-calls.ts";

/** The calls on leases. The key's object decides all of them. */
export class LeaseClient {
  readonly #objects: ObjectCalls;

  constructor(objects: ObjectCalls) {
    this.#objects = objects;
  }

  /**
   * Leases units. It waits in the queue for `call.waitMs` at most; `signal` ends that, and then nothing is granted.
   */
  async acquire(
    policy: Policy,
    key: string,
    call: AcquireParams,
    signal?: AbortSignal,
  ): Promise<Decision | Problem> {
    const shed = await this.#objects.sampleShedding(policy, key, call);
    if (shed !== undefined && policy.shadow) return asShadow(await this.#acquire(policy, key, call, signal));
    if (shed !== undefined && call.idempotencyKey === undefined)
      return shedTold(forPriority(policy, call.priority), key, shed);
    return await this.#acquire(policy, key, { ...call, shed }, signal);
  }

  async #acquire(
    policy: Policy,
    key: string,
    call: AcquireParams,
    signal: AbortSignal | undefined,
  ): Promise<Decision | Problem> {
    const asked = await this.#objects.wait<Answer>(policy, key, "acquire", call, signal);
    const isNone = asked === undefined || isToNobody(asked.answer);
    return isNone ? degradedDecision(policy, key) : decisionOf(policy, key, asked.answer);
  }

  /**
   * Leases units, without waiting, until the handle in `attached` is disposed of or the lease expires. With `call.resume`
   * it takes over that lease.
   *
   * @returns `undefined`: the object does not answer
   */
  async acquireAttached(
    policy: Policy,
    key: string,
    call: AcquireParams,
  ): Promise<{ readonly decision: Decision | Problem; readonly attached: Attached } | undefined> {
    const isResumed = call.resume !== undefined;
    const shed = isResumed ? undefined : await this.#objects.sampleShedding(policy, key, call);
    if (shed !== undefined && call.idempotencyKey === undefined && !policy.shadow)
      return {
        decision: shedTold(forPriority(policy, call.priority), key, shed),
        attached: NOTHING_ATTACHED,
      };
    const own = this.#objects.own({ ...call, waitMs: 0, ...(!policy.shadow && { shed }) });
    const protocol = isResumed || call.graceMs !== undefined ? LINK_PROTOCOL : PROTOCOL;
    const message = { ...own, protocol, ...namesOf(policy, key) };
    const ask = async (object: LimiterStub) => {
      const attached = await object.acquire(message);
      const decision = decisionOf(policy, key, readAnswer(attached.answer));
      return { decision: shed !== undefined && policy.shadow ? asShadow(decision) : decision, attached };
    };
    const asked = await this.#objects.askFor(policy, key, ask);
    if (asked === undefined) return undefined;
    if (!("full" in asked.answer)) return asked.answer;
    return { decision: boundReached(asked.answer), attached: NOTHING_ATTACHED };
  }

  /**
   * Makes a lease that was granted for `confirmWithinMs` last for `ttlMs` from now.
   *
   * @param isAttached the lease also ends when the returned handle is disposed of
   * @returns `undefined`: the object does not answer
   */
  async confirm(
    policy: Policy,
    key: string,
    id: string,
    ttlMs: number,
    isAttached: boolean,
  ): Promise<Attached | "ended" | undefined> {
    const confirm = async (object: LimiterStub) => {
      const attached = await object.confirm(policy.name, key, id, ttlMs, isAttached);
      return "missing" in readAnswer<Lease | Missing>(attached.answer) ? NOTHING_ATTACHED : attached;
    };
    const asked = await this.#objects.askFor(policy, key, confirm, isAttached ? ATTACHING : ENDING);
    if (asked === undefined || "full" in asked.answer) return undefined;
    return asked.answer === NOTHING_ATTACHED ? "ended" : asked.answer;
  }

  /** The same as `confirm` of a lease that outlives its link for a grace. It lasts as long as was asked for at first. */
  async takeOver(policy: Policy, key: string, call: AcquireParams): Promise<Attached | "ended" | undefined> {
    const granted = await this.acquireAttached(policy, key, call);
    if (granted === undefined) return undefined;
    const { decision, attached } = granted;
    if (!(decision instanceof Problem)) return attached;
    return decision.status === 404 ? "ended" : undefined;
  }

  /** Moves a lease's end to `ttlMs` from now; without it, by as long as the acquire asked for. */
  async renew(policy: Policy, key: string, id: string, ttlMs?: number): Promise<Lease | Problem> {
    const renew = (object: LimiterStub) =>
      ttlMs === undefined ? object.renew(policy.name, key, id) : object.renew(policy.name, key, id, ttlMs);
    const asked = await this.#objects.ask<Lease | Missing>(policy, key, renew, ENDING);
    if (asked === undefined) return unavailable("whether the lease was renewed is not known: ask again");
    if ("full" in asked.answer) return boundReached(asked.answer);
    return "missing" in asked.answer ? leaseMissing() : asked.answer;
  }

  /** Ends a lease as reported. The first caller in the queue gets its units at once. */
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
        if (isUnknownMethod(error)) return OF_BEFORE;
        throw error;
      }
    };
    const isReported = learns(policy) && Object.values(report).some((each) => each !== undefined);
    let asked = await this.#objects.askFor(policy, key, isReported ? releaseAs : release, ENDING);
    // What an older version has thrown breaks its stub, so this is a call of its own.
    if (asked?.answer === OF_BEFORE) asked = await this.#objects.askFor(policy, key, release, ENDING);
    if (asked === undefined) return unavailable("whether the lease was released is not known: ask again");
    if ("full" in asked.answer) return boundReached(asked.answer);
    return asked.answer.isReleased ? undefined : leaseMissing();
  }

  /** Opens a WebSocket to the object. The lease lasts as long as the socket is open. */
  async openSocket(policy: Policy, key: string, call: AcquireParams): Promise<Response | Problem> {
    const isResumed = call.resume !== undefined;
    const shed = isResumed ? undefined : await this.#objects.sampleShedding(policy, key, call);
    const own = this.#objects.own(policy.shadow ? call : { ...call, shed });
    const protocol = isResumed ? RESUMING_PROTOCOL : PROTOCOL;
    const message: AcquireCall = { ...own, protocol, ...namesOf(policy, key) };
    const url = `https://object/socket?call=${encodeURIComponent(JSON.stringify(message))}`;
    const init = { headers: { upgrade: "websocket" } };
    const asked = await this.#objects.askFor(policy, key, async (object) => {
      const response = await object.fetch(url, init);
      if (response.status !== 101) throw new Error(`the object opened no socket: ${await response.text()}`);
      return response;
    });
    if (asked === undefined) return unavailable("no socket was opened: ask again");
    return "full" in asked.answer ? boundReached(asked.answer) : asked.answer;
  }
}

/** How calls are made that keep or end a lease which the caller has. */
const ENDING = { kind: "end", isRepeatable: true } as const;
/** The handle of an answer that is lost is disposed of, and that ends the lease: no second attempt finds it. */
const ATTACHING = { kind: "end" } as const;
const NOTHING_ATTACHED: Attached = { answer: "" };
/** The object is of a version that knows no reports. */
const OF_BEFORE = { isReleased: false };

/** Whether a rule of the policy learns from reports. All others ignore them. */
function learns({ rules }: Policy): boolean {
  return rules.some(({ algorithm }) => algorithm.leasing?.released !== undefined);
}

/** Whether the object does not have the method. workerd names the method in quotes then. */
function isUnknownMethod(error: unknown): boolean {
  return error instanceof TypeError && error.message.includes('"releaseCall"');
}
