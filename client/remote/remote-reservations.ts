import { normaliseKey } from "../../core/catalog/keys.ts";
import type { Time } from "../../core/clock.ts";
import { forPriority, type PolicyView, takesNothing } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { BatchedCall, LimitCall, MadeAnswer } from "../../core/protocol/messages.ts";
import { Problem } from "../../core/protocol/problems.ts";
import {
  describedPolicy,
  type DescribedPolicy,
  MAX_RESERVING,
  type PolicyDescription,
  type RefusedCall,
  type ReservationAnswer,
  RESERVATIONS_PROTOCOL,
} from "../../core/protocol/reservation-messages.ts";
import type { UnitSource } from "../call-gate.ts";
import { toDecision } from "../read-answer.ts";
import { BatchQueue, type QueuedCall } from "../transports/batch-queue.ts";
import { MAX_QUEUED, QUEUE_FULL } from "../transports/requests.ts";
import { limiterErrorIn, type LimiterTransport } from "../transports/transport.ts";

/**
 * Over HTTP a message has 16 KiB at most. The versions of the policies that are known come beside the calls, and a call is
 * longer than what it adds to those.
 */
const BOUNDS = { mostCalls: MAX_RESERVING, mostLength: 11_500 };
/** After the limiter refused a whole message (the token lacks the scope, say), none is sent for so long. */
const REFUSED_MS = 60_000;
/** A policy of slots refuses each call that takes units. So does the client, and asks again so often, in milliseconds. */
const KIND_ASKED_MS = 1_000;

/** What the messages need of the process. */
interface RemoteReservationsParts {
  readonly far: Pick<LimiterTransport, "reserve">;
  readonly time: Time;
  readonly inBackground: (work: Promise<unknown>) => void;
  /** The longest that a caller waits, in milliseconds, whatever the policy says. */
  readonly deadlineMs?: number | undefined;
  readonly outages: Outages;
  /** A policy has changed: what is held under it is held no more. */
  readonly onChange: () => void;
}

/** Units of a limiter that is elsewhere. Calls that are made at once go in one message, whatever their keys. */
export class RemoteReservations implements UnitSource {
  readonly #parts: RemoteReservationsParts;
  readonly #outbox = new BatchQueue<ReservationAnswer>(BOUNDS);
  readonly #known = new Map<string, DescribedPolicy>();
  /** By the description under which it was said. */
  readonly #refusals = new WeakMap<DescribedPolicy, { readonly problem: Problem; askedAtMs: number }>();
  #refusedUntilMs = -Infinity;
  /** Why the last message failed that did. */
  #failure = "";

  constructor(parts: RemoteReservationsParts) {
    this.#parts = parts;
  }

  /** A policy as the limiter described it last; `undefined`: it has not. */
  policy(name: string): DescribedPolicy | undefined {
    return this.#known.get(name);
  }

  /** Whether the limiter has refused a message lately: then each call is made by itself. */
  get isRefused(): boolean {
    // Each call asks, and to read the clock takes a good part of a decision.
    return this.#refusedUntilMs > -Infinity && this.#parts.time.nowMs() < this.#refusedUntilMs;
  }

  /** Why calls that take units are refused under this policy, whatever they say; `undefined`: the caller is to ask. */
  refusalOf(policy: DescribedPolicy): Problem | undefined {
    const refusal = this.#refusals.get(policy);
    if (refusal === undefined) return undefined;
    const nowMs = this.#parts.time.nowMs();
    if (nowMs - refusal.askedAtMs < KIND_ASKED_MS) return refusal.problem;
    // This call asks: its answer brings the policy, if that is another now. All others are refused meanwhile.
    refusal.askedAtMs = nowMs;
    return undefined;
  }

  async call<Read extends MadeAnswer>(
    policy: PolicyView,
    _key: string,
    call: BatchedCall,
    waitMs = 0,
  ): Promise<{ readonly answer: Read } | Problem | undefined> {
    const answer = await this.#post(call, policy.deadlineMs + waitMs);
    if (answer === undefined || answer instanceof Problem) return answer;
    if (answer === null || !("decision" in answer)) return { answer: answer as Read };
    // The policy has changed, or the key has an override. What was decided holds all the same.
    const { rules, source } = answer.decision;
    if (source === "fallback" && rules.length === 0) return undefined;
    return { answer: { rules, told: answer.decision } as unknown as Read };
  }

  /** The limiter decides on a cost. The answer brings the policy too, if it is not known here. */
  async decide(limit: LimitCall, deadlineMs: number): Promise<Decision | Problem | undefined> {
    const answer = await this.#post({ limit }, deadlineMs);
    if (answer === undefined || answer === null) return undefined;
    this.#noteRefusal(limit, answer instanceof Problem ? answer : undefined);
    if (answer instanceof Problem) return answer;
    if ("decision" in answer) return answer.decision;
    if (!("rules" in answer)) return undefined;
    // The policy became known while the call waited to be sent, so the object's own answer has come.
    const policy = this.#known.get(limit.policy);
    if (policy === undefined) return undefined;
    const key = normaliseKey(policy, limit.key) ?? limit.key;
    return toDecision(forPriority(policy, limit.priority), key, answer, "object");
  }

  async #post(
    call: BatchedCall,
    deadlineMs: number,
  ): Promise<Exclude<ReservationAnswer, { readonly problem: unknown }> | Problem | undefined> {
    const { time, inBackground } = this.#parts;
    if (call.giveBack === undefined && this.#outbox.queued >= MAX_QUEUED)
      return this.#unanswered(call, QUEUE_FULL);
    const send = (calls: readonly QueuedCall<ReservationAnswer>[]) => this.#send(calls);
    const { answer, leftMs } = await this.#outbox.post(call, { time, deadlineMs, inBackground, send });
    if (answer === undefined)
      return this.#unanswered(call, leftMs > 0 ? this.#failure : `no answer within ${deadlineMs} ms`);
    if (answer === null)
      return isDecision(call) ? this.#unanswered(call, "the answer has no decision") : null;
    if ("problem" in answer) return problemOf(answer.problem);
    if ("failed" in answer) return this.#unanswered(call, answer.failed);
    if ("unsupported" in answer || "full" in answer) return undefined;
    return answer;
  }

  /** What only the policy is at fault for is wrong with each call that takes units under it. */
  #noteRefusal({ policy: name, cost }: LimitCall, problem: Problem | undefined): void {
    const policy = this.#known.get(name);
    if (policy === undefined || takesNothing(policy, cost)) return;
    const [first, ...others] = problem?.errors ?? [];
    if (problem?.status === 422 && first?.pointer === "/policy" && others.length === 0)
      this.#refusals.set(policy, { problem, askedAtMs: this.#parts.time.nowMs() });
    else this.#refusals.delete(policy);
  }

  #unanswered(call: BatchedCall, cause: string): undefined {
    this.#parts.outages.note(cause, isDecision(call) ? 1 : 0);
  }

  /** It does not reject: a message that fails has no answers. */
  async #send(
    calls: readonly QueuedCall<ReservationAnswer>[],
  ): Promise<readonly ReservationAnswer[] | undefined> {
    const { far, time } = this.#parts;
    const known: Record<string, string> = {};
    for (const { call } of calls) {
      const policy = this.#known.get((call.reserve ?? call.limit ?? call.giveBack)?.policy ?? "");
      if (policy !== undefined) known[policy.name] = policy.version;
    }
    try {
      const asked = { protocol: RESERVATIONS_PROTOCOL, known, calls: calls.map(({ call }) => call) };
      const withinMs = Math.max(...calls.map(({ untilMs }) => untilMs)) - time.nowMs();
      const { answers, policies } = await far.reserve(asked, withinMs);
      if (answers.length !== calls.length) throw new Error("the limiter did not answer every call");
      this.#parts.outages.answered();
      this.#learn(policies);
      return answers;
    } catch (error) {
      const refused = limiterErrorIn(error);
      if (refused === undefined || refused.status >= 500) {
        this.#failure = String(error);
        return undefined;
      }
      this.#refusedUntilMs = time.nowMs() + REFUSED_MS;
      const { status, code, message: title, errors } = refused;
      return calls.map(() => ({ problem: { status, code, title, detail: title, errors } }));
    }
  }

  #learn(policies: Readonly<Record<string, PolicyDescription>>): void {
    for (const [name, description] of Object.entries(policies)) {
      const before = this.#known.get(name);
      if (before?.version === description.version) continue;
      const { deadlineMs = description.deadlineMs } = this.#parts;
      this.#known.set(name, describedPolicy(name, { ...description, deadlineMs }));
      if (before !== undefined) this.#parts.onChange();
    }
  }
}

/** Whether somebody waits for a decision: the message does not only ask for units, or give some back. */
function isDecision({ limit, reserve }: BatchedCall): boolean {
  return limit !== undefined || (reserve !== undefined && reserve.cost !== 0);
}

function problemOf({ status, code, title, detail, errors }: RefusedCall["problem"]): Problem {
  return new Problem([status, code, title], detail, { errors });
}

/** After one line about a limiter that does not answer, the next comes so much later at the earliest, in milliseconds. */
const QUIET_MS = 10_000;

/**
 * Says on the console that the limiter does not answer: at once, and from then on how many calls that were. It sets no
 * timer, since in a worker that would be one request's: what is left to say is said with the next call or answer.
 */
export class Outages {
  readonly #time: Time;
  #saidAtMs = -Infinity;
  #calls = 0;
  #cause = "";

  constructor(time: Time) {
    this.#time = time;
  }

  /** @param calls how many were answered without the limiter; 0: a message failed that no call waits for */
  note(cause: string, calls = 1): void {
    const isFirst = this.#calls === 0;
    this.#calls += calls;
    this.#cause = cause;
    const nowMs = this.#time.nowMs();
    if (!this.#isDue(nowMs)) return;
    if (!isFirst) return this.#say(nowMs);
    this.#saidAtMs = nowMs;
    this.#calls = 0;
    console.warn(`weir: no answer from the limiter: ${cause}`);
  }

  /** The limiter has answered. */
  answered(): void {
    if (this.#calls === 0) return;
    const nowMs = this.#time.nowMs();
    if (this.#isDue(nowMs)) this.#say(nowMs);
  }

  #isDue(nowMs: number): boolean {
    // The clock may have been set back.
    return nowMs < this.#saidAtMs || nowMs - this.#saidAtMs >= QUIET_MS;
  }

  #say(nowMs: number): void {
    const calls = this.#calls === 1 ? "1 call was" : `${this.#calls} calls were`;
    const seconds = Math.max(1, Math.round((nowMs - this.#saidAtMs) / 1_000));
    this.#saidAtMs = nowMs;
    this.#calls = 0;
    console.warn(`weir: ${calls} answered without the limiter in the last ${seconds} s: ${this.#cause}`);
  }
}
