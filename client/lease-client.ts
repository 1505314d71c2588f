import type { Policy } from "../core/policies/policy.ts";
import { degradedDecision, type Decision } from "../core/protocol/decision.ts";
import {
  PROTOCOL,
  type AcquireCall,
  type WantedLease,
  type Answer,
  type Lease,
  type Missing,
} from "../core/protocol/messages.ts";
import type { Attached } from "../core/protocol/object-methods.ts";
import type { Problem } from "../core/protocol/problems.ts";
import type { ObjectCalls } from "./object-calls.ts";
import { decisionOf, isToNobody, leaseMissing, readAnswer, unavailable } from "./read-answer.ts";

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
    call: WantedLease,
    signal?: AbortSignal,
  ): Promise<Decision | Problem> {
    const asked = await this.#objects.wait<Answer>(policy, key, "acquire", call, signal);
    const isNone = asked === undefined || isToNobody(asked.answer);
    return isNone ? degradedDecision(policy, key) : decisionOf(policy, key, asked.answer);
  }

  /**
   * Leases units, without waiting, until the handle in `attached` is disposed of or the lease expires.
   *
   * @returns `undefined`: the object does not answer
   */
  async acquireAttached(
    policy: Policy,
    key: string,
    call: WantedLease,
  ): Promise<{ readonly decision: Decision | Problem; readonly attached: Attached } | undefined> {
    const message = { protocol: PROTOCOL, policy: policy.name, key, ...call, waitMs: 0 };
    const asked = await this.#objects.askFor(policy, key, async (object) => {
      const attached = await object.acquire(message);
      return { decision: decisionOf(policy, key, readAnswer(attached.answer)), attached };
    });
    return asked?.answer;
  }

  /**
   * Makes a lease that was granted for `confirmWithinMs` last for `ttlMs` from now.
   *
   * @param isAttached the lease also ends when the returned handle is disposed of
   * @returns `undefined`: the lease has ended, or the object does not answer
   */
  async confirm(
    policy: Policy,
    key: string,
    id: string,
    ttlMs: number,
    isAttached: boolean,
  ): Promise<Attached | undefined> {
    const asked = await this.#objects.askFor(policy, key, async (object) => {
      const attached = await object.confirm(policy.name, key, id, ttlMs, isAttached);
      return "missing" in readAnswer<Lease | Missing>(attached.answer) ? undefined : attached;
    });
    return asked?.answer;
  }

  /** Moves a lease's end to `ttlMs` from now; without it, by as long as the acquire asked for. */
  async renew(policy: Policy, key: string, id: string, ttlMs?: number): Promise<Lease | Problem> {
    const asked = await this.#objects.ask<Lease | Missing>(policy, key, (object) =>
      ttlMs === undefined ? object.renew(policy.name, key, id) : object.renew(policy.name, key, id, ttlMs),
    );
    if (asked === undefined) return unavailable("whether the lease was renewed is not known: ask again");
    return "missing" in asked.answer ? leaseMissing() : asked.answer;
  }

  /** Ends a lease. The first caller in the queue gets its units at once. */
  async release(policy: Policy, key: string, id: string): Promise<Problem | undefined> {
    const asked = await this.#objects.askFor(policy, key, (object) => object.release(policy.name, key, id));
    if (asked === undefined) return unavailable("whether the lease was released is not known: ask again");
    return asked.answer ? undefined : leaseMissing();
  }

  /** Opens a WebSocket to the object. The lease lasts as long as the socket is open. */
  async openSocket(policy: Policy, key: string, call: WantedLease): Promise<Response | Problem> {
    const message: AcquireCall = { protocol: PROTOCOL, policy: policy.name, key, ...call };
    const url = `https://object/socket?call=${encodeURIComponent(JSON.stringify(message))}`;
    const init = { headers: { upgrade: "websocket" } };
    const asked = await this.#objects.askFor(policy, key, async (object) => {
      const response = await object.fetch(url, init);
      if (response.status !== 101) throw new Error(`the object opened no socket: ${await response.text()}`);
      return response;
    });
    return asked?.answer ?? unavailable("no socket was opened: ask again");
  }
}
