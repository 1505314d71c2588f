import { degradedDecision } from "../core/protocol/decision.ts";
import { randomId, SYSTEM_TIME } from "../core/clock.ts";
import { costOf } from "../core/accounts/joint-decision.ts";
import type { Policy } from "../core/policies/parse-policies.ts";
import {
  readAnswer,
  type AcquireCall,
  type Attached,
  type Conflict,
  type Cost,
  type Decided,
  type HoldCall,
  type Leased,
  type Peeked,
} from "../core/protocol/messages.ts";
import { LocalLimiter, type Caller } from "./local-limiter.ts";
import { Objects, type LimiterNamespace, type LimiterStub } from "./transports/objects.ts";
import { ReservationCache } from "./reservation-cache.ts";
import type { Problem } from "../core/protocol/problems.ts";
import type { Decision, KeyReport } from "../worker/calls/answer-schemas.ts";
import {
  decisionIn,
  decisionOf,
  holdMissing,
  isMissing,
  leaseMissing,
  reportOf,
  unavailable,
} from "./read-answer.ts";

/** What an acquire asks for. */
export type Acquiring = Omit<AcquireCall, "policy" | "key">;
export type Holding = Omit<HoldCall, "policy" | "key">;

/** What all requests of this isolate share. */
const isolate = new LocalLimiter(new ReservationCache(randomId));

/** The calls on a key, in the caller's words: decided here, or by the key's object. One for each request. */
export class LimiterClient {
  readonly #caller: Caller;

  /** @param inBackground the runtime's `waitUntil` */
  constructor(namespace: LimiterNamespace, inBackground: Caller["inBackground"]) {
    this.#caller = { objects: new Objects(namespace), time: SYSTEM_TIME, inBackground };
  }

  /** Decides at once if the object need not be asked. */
  limit(
    policy: Policy,
    key: string,
    cost: Cost,
    idempotencyKey?: string,
  ): Decision | Promise<Decision | Problem> {
    // To look, or to be remembered, is the object's business.
    const isElsewhere =
      policy.localDecisions.denies && idempotencyKey === undefined && !isNothing(policy, cost);
    if (isElsewhere) return isolate.limit(this.#caller, policy, key, cost);
    return this.#limitByObject(policy, key, cost, idempotencyKey);
  }

  async #limitByObject(
    policy: Policy,
    key: string,
    cost: Cost,
    idempotencyKey: string | undefined,
  ): Promise<Decision | Problem> {
    const asked = await this.#ask(policy, key, (object) =>
      // An argument that is `undefined` is sent too, so it is left out.
      idempotencyKey === undefined
        ? object.limit(policy.name, key, cost)
        : object.limit(policy.name, key, cost, idempotencyKey),
    );
    return asked === undefined ? degradedDecision(policy, key) : decisionIn(policy, key, asked.answer);
  }

  async refund(
    policy: Policy,
    key: string,
    units: Cost,
    idempotencyKey: string,
  ): Promise<Decision | Problem> {
    const asked = await this.#ask(policy, key, (object) =>
      object.refund(policy.name, key, units, idempotencyKey),
    );
    const detail = "whether the units were given back is not known: ask again with the same idempotencyKey";
    return asked === undefined ? unavailable(detail) : decisionIn(policy, key, asked.answer);
  }

  /** What the object says of a hold; `undefined`: it does not answer. */
  async hold(policy: Policy, key: string, call: Holding): Promise<Decided | Conflict | undefined> {
    const message = { policy: policy.name, key, ...call };
    const asked = await this.#ask(policy, key, (object) => object.hold(message), call.provisional?.waitMs);
    return asked && (readAnswer(asked.answer) as Decided | Conflict);
  }

  async settle(policy: Policy, key: string, id: string, used: Cost): Promise<Decision | Problem> {
    const asked = await this.#ask(policy, key, (object) => object.settle(policy.name, key, id, used));
    const detail = "whether the hold was settled is not known: ask again, it changes nothing twice";
    return asked === undefined ? unavailable(detail) : decisionIn(policy, key, asked.answer, holdMissing);
  }

  async cancel(policy: Policy, key: string, id: string): Promise<Decision | Problem> {
    const asked = await this.#ask(policy, key, (object) => object.cancel(policy.name, key, id));
    const detail = "whether the hold was cancelled is not known: ask again, it changes nothing twice";
    return asked === undefined ? unavailable(detail) : decisionIn(policy, key, asked.answer, holdMissing);
  }

  /** Leases units, waiting in the queue if asked to; `signal` ends it, and nothing is granted any more. */
  async acquire(
    policy: Policy,
    key: string,
    call: Acquiring,
    signal?: AbortSignal,
  ): Promise<Decision | Problem> {
    const message: AcquireCall = { policy: policy.name, key, ...call };
    const asked = await this.#caller.objects.wait(policy, key, "acquire", message, signal);
    const answer = asked === undefined ? undefined : readAnswer(asked.answer);
    // Without rules it is what is answered to somebody who has gone.
    const isToNobody = answer === undefined || ("rules" in answer && answer.rules.length === 0);
    return isToNobody ? degradedDecision(policy, key) : decisionOf(policy, key, answer);
  }

  /** Leases units for as long as what comes back is not disposed of; without waiting. */
  async acquireAttached(policy: Policy, key: string, call: Acquiring): Promise<Attached | undefined> {
    const message: AcquireCall = { policy: policy.name, key, ...call, waitMs: 0 };
    return (await this.#ask(policy, key, (object) => object.acquire(message)))?.answer;
  }

  /** Makes a lease last that was waited for; `undefined`: it has gone, or the object does not answer. */
  async confirm(
    policy: Policy,
    key: string,
    id: string,
    ttlMs: number,
    isAttached: boolean,
  ): Promise<Attached | undefined> {
    const asked = await this.#ask(policy, key, (object) =>
      object.confirm(policy.name, key, id, ttlMs, isAttached),
    );
    return asked === undefined || isMissing(asked.answer.answer) ? undefined : asked.answer;
  }

  async renew(policy: Policy, key: string, id: string, ttlMs?: number): Promise<Leased | Problem> {
    const asked = await this.#ask(policy, key, (object) =>
      ttlMs === undefined ? object.renew(policy.name, key, id) : object.renew(policy.name, key, id, ttlMs),
    );
    if (asked === undefined) return unavailable("whether the lease was renewed is not known: ask again");
    return isMissing(asked.answer) ? leaseMissing() : (JSON.parse(asked.answer) as Leased);
  }

  async release(policy: Policy, key: string, id: string): Promise<Problem | undefined> {
    const asked = await this.#ask(policy, key, (object) => object.release(policy.name, key, id));
    if (asked === undefined) return unavailable("whether the lease was released is not known: ask again");
    return asked.answer ? undefined : leaseMissing();
  }

  async peek(policy: Policy, key: string): Promise<KeyReport | Problem> {
    const asked = await this.#ask(policy, key, (object) => object.peek(policy.name, key));
    return asked === undefined ? unavailable("ask again") : reportOf(policy, key, asked.answer);
  }

  /** The same when the key has no leases, or when the time is over. */
  async waitForIdle(
    policy: Policy,
    key: string,
    waitMs: number,
    signal?: AbortSignal,
  ): Promise<KeyReport | Problem> {
    const asked = await this.#caller.objects.wait(
      policy,
      key,
      "idle",
      { policy: policy.name, key, waitMs },
      signal,
    );
    if (asked === undefined) return unavailable("ask again");
    return reportOf(policy, key, JSON.parse(asked.answer) as Peeked);
  }

  async reset(policy: Policy, key: string): Promise<Problem | undefined> {
    const asked = await this.#ask(policy, key, (object) => object.reset(policy.name, key));
    return asked === undefined ? unavailable("whether the key was reset is not known: ask again") : undefined;
  }

  /** Asks the object, which is to decide on all there is: what this isolate has of it goes back first. */
  #ask<Answer>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Answer>,
    waitMs = 0,
  ): Promise<{ readonly answer: Answer } | undefined> {
    return this.#caller.objects.askAfter(isolate.end(policy, key), policy, key, call, waitMs);
  }

  /** Hands a WebSocket on to the object. */
  async openSocket(policy: Policy, key: string, call: Acquiring): Promise<Response | Problem> {
    const message: AcquireCall = { policy: policy.name, key, ...call };
    const url = `https://object/socket?call=${encodeURIComponent(JSON.stringify(message))}`;
    const init = { headers: { upgrade: "websocket" } };
    const asked = await this.#ask(policy, key, (object) => object.fetch(url, init));
    return asked?.answer ?? unavailable("no socket was opened: ask again");
  }
}

function isNothing({ rules }: Policy, cost: Cost): boolean {
  return typeof cost === "number" ? cost === 0 : rules.every((rule) => costOf(rule, cost) === 0);
}
