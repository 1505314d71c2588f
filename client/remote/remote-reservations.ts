import { normaliseKey } from "../../core/catalog/keys.ts";
import { Latch, randomId, type Time } from "../../core/clock.ts";
import { forPriority, type PolicyView, takesNothing, versionOf } from "../../core/policies/policy.ts";
import type { Slots } from "../../core/protocol/answers.ts";
import type { LimitCall, Versioned } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { Departures, STALE, type BatchedCall, type MadeAnswer } from "../../core/protocol/messages.ts";
import { LimiterError, Problem } from "../../core/protocol/problems.ts";
import {
  type ClientCall,
  type DescribedPolicy,
  MAX_MADE,
  MAX_RESERVING,
  type PolicyDescription,
  type RefusedCall,
  type HeldMessage,
  type ReservationAnswer,
  RESERVATIONS_PROTOCOL,
  type ReservationsReply,
} from "../../core/protocol/reservation-messages.ts";
import type { UnitSource } from "../call-gate.ts";
import type { KeyRequest, LimitRequest } from "../limiter.ts";
import { causeOf } from "../local-call.ts";
import { plainCall, type PlainCall } from "../local-limiter.ts";
import { toDecision } from "../read-answer.ts";
import { BatchQueue, OVERLOADED_TEXT, type QueuedCall } from "../transports/batch-queue.ts";
import type { CongestionControl } from "../transports/congestion-control.ts";
import { MAX_QUEUED, QUEUE_FULL } from "../transports/http.ts";
import type { FailureLog } from "../transports/send-batch.ts";
import type { LimiterTransport } from "../transports/transport.ts";
import { describedPolicy, seenBy } from "./described-policies.ts";

/** An HTTP message has at most 16 KiB. The policies' versions, beside the calls, are shorter than these. */
const BOUNDS = { maxCalls: MAX_RESERVING, maxLength: 11_500 };
/** The most calls on a key that are sent before its policy is known: then the units of a message may serve all others. */
const MAX_UNDESCRIBED = 16;
/** No message is sent for this long after the limiter refused one, e.g. because the token lacks the scope. */
const REFUSED_MS = 60_000;
/** Or it could not read one: it is of an earlier version by now. */
const UNREAD_MS = 1_000;
/** How often a policy is asked for that stays unknown: the limiter is away, or has none of that name. */
const ASK_MS = 5_000;
/** The most policies whose time is remembered: callers name any. */
const MAX_ASKED = 100;
/** How long a description is waited for. */
const DESCRIBED_MS = 2_000;
/** A concurrency policy refuses each call that takes units. One call in this time checks that again. */
const REFUSAL_TTL_MS = 1_000;

interface RemoteReservationsParts {
  readonly transport: LimiterTransport;
  readonly time: Time;
  readonly inBackground: (work: Promise<unknown>) => void;
  /** Overrides the deadline of each policy, in milliseconds. */
  readonly deadlineMs?: number | undefined;
  readonly failures: FailureLog;
  /** From which round trip on a bucket is asked for. Absent: the usual one. */
  readonly farMs?: number | undefined;
  /** A policy or the limiter has changed: what is held must be returned. */
  readonly onChange: () => void;
}

/** Units of a remote limiter. Concurrent calls share a message, also on several keys. */
export class RemoteReservations implements UnitSource {
  readonly #parts: RemoteReservationsParts;
  readonly #queue = new BatchQueue<ReservationAnswer>(BOUNDS);
  readonly #known = new Map<string, DescribedPolicy>();
  readonly #refusals = new WeakMap<DescribedPolicy, { readonly problem: Problem; checkedAtMs: number }>();
  readonly #departures = new Departures(randomId);
  /** What the limiter that answered last reads. */
  #reads: Pick<ReservationsReply, "readsSent" | "readsMade"> = {};
  /** Decisions that were made here, and that the limiter has not been told. */
  readonly #made = new Map<string, [admitted: number, denied: number]>();
  #refusedUntilMs = -Infinity;
  #failure = "";
  /** By policy: when it was asked for. */
  readonly #askedAtMs = new Map<string, number>();
  /** By policy and key: calls since the last answer under policies that are not known. */
  readonly #unknown = new Map<string, number>();
  /** Opened by the next message that ends, answered or not. */
  #nextAnswer = new Latch();

  constructor(parts: RemoteReservationsParts) {
    this.#parts = parts;
  }

  /** The decision, noted. Those that were made here are told to the limiter, which counts them. */
  noted(decision: Decision): Decision {
    const { policy, plan, success, source } = decision;
    if (source !== "isolate") return decision;
    const name = plan === undefined ? policy : `${policy} ${plan}`;
    const made = this.#made.get(name) ?? [0, 0];
    made[success ? 0 : 1] += 1;
    this.#made.set(name, made);
    return decision;
  }

  /** How fast messages are sent to the limiter. */
  get congestion(): CongestionControl {
    return this.#queue.congestion;
  }

  /** Waits until the call's policy is known, or it may be sent. Returns whether that was in time. */
  async described(call: LimitCall, deadlineMs: number): Promise<boolean> {
    let leftMs = deadlineMs;
    do {
      if (leftMs <= 0) return this.#unanswered(1, `no answer within ${deadlineMs} ms`) ?? false;
      leftMs -= await this.#nextAnswer.wait(this.#parts.time, leftMs);
    } while (!this.#known.has(call.policy) && !this.isRefused && this.isHot(call));
    return true;
  }

  /** Notes a call under a policy that is not known. Whether as many wait that it need not be sent before that is known. */
  isHot({ policy, key }: LimitCall): boolean {
    const name = `${policy}/${key}`;
    const calls = (this.#unknown.get(name) ?? 0) + 1;
    if (calls > MAX_UNDESCRIBED || this.#queue.queued >= BOUNDS.maxCalls) return true;
    this.#unknown.set(name, calls);
    return false;
  }

  /** A policy as the limiter last described it; `undefined`: it has not. */
  policy(name: string): DescribedPolicy | undefined {
    return this.#known.get(name);
  }

  /** Whether the limiter recently refused a message: then each call is sent alone. */
  get isRefused(): boolean {
    // Each call runs this, and reading the clock takes a large part of a local decision.
    return this.#refusedUntilMs > -Infinity && this.#parts.time.nowMs() < this.#refusedUntilMs;
  }

  /** Why the policy refuses each call that takes units; `undefined`: the limiter decides. */
  refusalOf(policy: DescribedPolicy): Problem | undefined {
    const refusal = this.#refusals.get(policy);
    if (refusal === undefined) return undefined;
    const nowMs = this.#parts.time.nowMs();
    if (nowMs - refusal.checkedAtMs < REFUSAL_TTL_MS) return refusal.problem;
    // This call is sent, and its answer brings a changed policy. Until then all others are refused.
    refusal.checkedAtMs = nowMs;
    return undefined;
  }

  async call<Read extends MadeAnswer>(
    policy: PolicyView,
    _key: string,
    call: BatchedCall,
    waitMs = 0,
  ): Promise<{ readonly answer: Read } | Problem | undefined> {
    // After `#forgetAll` it may not be readable: the units end by themselves.
    if (call.giveBack !== undefined && !this.#known.has(policy.name)) return undefined;
    const answer = await this.#post(call, policy.deadlineMs + waitMs);
    if (answer === undefined || answer instanceof Problem) return answer;
    if (answer === null || !("decision" in answer)) return { answer: answer as Read };
    // The policy has changed, or the key has an override. The decision is still valid.
    const { rules, source } = answer.decision;
    if (source === "fallback" && rules.length === 0) return undefined;
    return { answer: { rules, told: answer.decision } as unknown as Read };
  }

  /** Decides a cost remotely. The answer also brings a policy that is unknown here. */
  async decide(asked: PlainCall, deadlineMs: number): Promise<Decision | Problem | undefined> {
    const { plan, ...call } = asked;
    const limit = { ...call, ...versionOf({ plan }) };
    const answer = await this.#post({ limit }, deadlineMs);
    if (answer === undefined || answer === null) return undefined;
    this.#noteRefusal(limit, answer instanceof Problem ? answer : undefined);
    if (answer instanceof Problem) return answer;
    if ("decision" in answer) return answer.decision;
    if (!("rules" in answer)) return undefined;
    // The policy became known while the call was queued, so the answer is the object's own.
    const described = this.#known.get(limit.policy);
    const policy = seenBy(described, asked) ?? described;
    if (policy === undefined) return undefined;
    const key = normaliseKey(policy, limit.key) ?? limit.key;
    return toDecision(forPriority(policy, limit.priority), key, answer, "object");
  }

  /** Says what slots this client has. @returns a Problem: it was refused; `undefined`: no answer */
  async slots(policy: PolicyView, message: HeldMessage): Promise<Slots | Problem | undefined> {
    if (this.isRefused) return undefined;
    const operation = { op: "slots", ...message, ...NOT_HANDED } as const;
    const answer = await this.#post({ operation }, policy.deadlineMs);
    if (answer === undefined || answer === null || answer instanceof Problem) return answer ?? undefined;
    return "slots" in answer ? answer : undefined;
  }

  /**
   * Asks for the policy of a call that is sent alone, and so does not bring it. Nobody waits for this: a call that takes
   * nothing is refused or answered, and brings the policy. @param everyMs absent: only for one that is not known
   */
  ask({ policy = "", key, group }: KeyRequest & Pick<LimitRequest, "group">, everyMs = ASK_MS): void {
    const isDue = everyMs !== ASK_MS || !this.#known.has(policy);
    const call = isDue && !this.isRefused ? plainCall({ policy, key, group, cost: 0 }) : undefined;
    const nowMs = this.#parts.time.nowMs();
    if (call === undefined || Math.abs(nowMs - (this.#askedAtMs.get(policy) ?? -Infinity)) < everyMs) return;
    const [oldest = ""] = this.#askedAtMs.keys();
    if (this.#askedAtMs.size >= MAX_ASKED) this.#askedAtMs.delete(oldest);
    this.#askedAtMs.set(policy, nowMs);
    const { plan: _, ...limit } = call;
    const { deadlineMs = DESCRIBED_MS, inBackground } = this.#parts;
    inBackground(this.#post({ limit }, Math.min(deadlineMs, DESCRIBED_MS), 0));
  }

  /** @param waiting the calls that wait for a decision */
  async #post(
    call: BatchedCall,
    deadlineMs: number,
    waiting = isDecision(call) ? 1 : 0,
  ): Promise<Exclude<ReservationAnswer, { readonly problem: unknown }> | Problem | undefined> {
    const { time, inBackground } = this.#parts;
    if (call.giveBack === undefined && this.#queue.queued >= MAX_QUEUED)
      return this.#unanswered(waiting, QUEUE_FULL);
    const send = (calls: readonly QueuedCall<ReservationAnswer>[]) => this.#send(calls);
    const { answer, leftMs } = await this.#queue.post(call, { time, deadlineMs, inBackground, send });
    if (answer === undefined)
      return this.#unanswered(waiting, leftMs > 0 ? this.#failure : `no answer within ${deadlineMs} ms`);
    if (answer === null)
      return isDecision(call) ? this.#unanswered(waiting, "the answer has no decision") : null;
    if ("problem" in answer) return problemOf(answer.problem);
    if ("overloaded" in answer) return this.#unanswered(waiting, OVERLOADED_TEXT);
    if ("failed" in answer) {
      if (answer.failed === STALE) this.#departures.restart();
      return this.#unanswered(waiting, answer.failed);
    }
    if ("unsupported" in answer || "full" in answer) return undefined;
    return answer;
  }

  /** A problem of the policy alone applies to each call that takes units under it. */
  #noteRefusal({ policy: name, cost }: LimitCall, problem: Problem | undefined): void {
    const policy = this.#known.get(name);
    if (policy === undefined || takesNothing(policy, cost)) return;
    const [first, ...others] = problem?.errors ?? [];
    if (problem?.status === 422 && first?.pointer === "/policy" && others.length === 0)
      this.#refusals.set(policy, { problem, checkedAtMs: this.#parts.time.nowMs() });
    else this.#refusals.delete(policy);
  }

  unanswered(): undefined {
    this.#parts.failures.note(undefined);
  }

  #unanswered(waiting: number, cause: string): undefined {
    this.#parts.failures.note(cause, waiting);
  }

  /** It does not reject: a failed message has no answers. */
  async #send(
    calls: readonly QueuedCall<ReservationAnswer>[],
  ): Promise<readonly ReservationAnswer[] | undefined> {
    const { transport, time } = this.#parts;
    const known: Record<string, string> = {};
    for (const { call } of calls) {
      const policy = this.#known.get(
        (call.reserve ?? call.limit ?? call.giveBack ?? call.operation)?.policy ?? "",
      );
      if (policy !== undefined) known[policy.name] = policy.version;
    }
    try {
      const { readsSent, readsMade } = this.#reads;
      const made = Object.fromEntries(readsMade ? [...this.#made].slice(0, MAX_MADE) : []);
      const sent = readsSent && { sent: this.#departures.stamp(calls, time.nowMs()) };
      const message = {
        protocol: RESERVATIONS_PROTOCOL,
        known,
        calls: calls.map(({ call }) => toClientCall(call)),
        ...sent,
        ...(readsMade && { made }),
      };
      // Lost with its message: nothing is counted twice.
      for (const name in made) this.#made.delete(name);
      const withinMs = Math.max(1, Math.max(...calls.map(({ untilMs }) => untilMs)) - time.nowMs());
      const { answers, policies, ...reads } = await transport.call("reserve", message, withinMs);
      this.#reads = reads;
      if (answers.length !== calls.length) throw new Error("the limiter did not answer every call");
      this.#parts.failures.flush();
      this.#learn(policies);
      return answers;
    } catch (error) {
      const refused = limiterErrorOf(error);
      if (refused === undefined || refused.status >= 500) {
        this.#failure = causeOf(error);
        return undefined;
      }
      const { status, code, message: title, errors } = refused;
      const problem = { status, code, title, detail: title, errors };
      const isUnread = status === 422;
      const others = calls.filter((call) => !saysSlots(call));
      if (isUnread && others.length < calls.length) {
        // Nothing of it was done, and earlier versions read the others.
        const answers = others.length === 0 ? [] : await this.#send(others);
        const answerOf = (call: QueuedCall<ReservationAnswer>) => answers?.[others.indexOf(call)] ?? null;
        return answers && calls.map((call) => (saysSlots(call) ? { problem } : answerOf(call)));
      }
      if (isUnread) this.#forgetAll();
      this.#refusedUntilMs = time.nowMs() + (isUnread ? UNREAD_MS : REFUSED_MS);
      return calls.map(() => ({ problem }));
    } finally {
      this.#unknown.clear();
      this.#nextAnswer.open();
      this.#nextAnswer = new Latch();
    }
  }

  /** An earlier version answers now, which refuses what this one reads: of policies only what that one says is known. */
  #forgetAll(): void {
    this.#reads = {};
    this.#known.clear();
    this.#parts.onChange();
  }

  #learn(policies: Readonly<Record<string, PolicyDescription>>): void {
    for (const [name, description] of Object.entries(policies)) {
      const before = this.#known.get(name);
      if (before?.version === description.version) continue;
      const { deadlineMs = description.deadlineMs } = this.#parts;
      this.#known.set(name, describedPolicy(name, { ...description, deadlineMs }, this.#parts.farMs));
      if (before !== undefined) this.#parts.onChange();
    }
  }
}

function saysSlots({ call }: QueuedCall<ReservationAnswer>): boolean {
  return call.operation?.op === "slots";
}

/** A call as the limiter reads it: with the name of its plan, if the policy has plans. */
function toClientCall({ giveBack, limit, reserve, operation }: BatchedCall): ClientCall {
  if (operation?.op === "slots") {
    const { op: _, ttlMs: __, handed: ___, ...slots } = operation;
    return { slots };
  }
  return {
    ...(giveBack && { giveBack }),
    ...(limit && { limit: named(limit) }),
    ...(reserve && { reserve: named(reserve) }),
  };
}

function named<Call extends Versioned>({ inForce, ...call }: Call) {
  const { plan = "" } = inForce ?? {};
  return plan === "" ? call : { ...call, plan };
}

const NOT_HANDED = { ttlMs: 0, handed: [] } as const;

/** Whether the call is for a decision, and not only for units. */
function isDecision({ limit, reserve }: BatchedCall): boolean {
  return limit !== undefined || (reserve !== undefined && reserve.cost !== 0);
}

function problemOf({ status, code, title, detail, errors }: RefusedCall["problem"]): Problem {
  return new Problem([status, code, title], detail, { errors });
}

/** The error as a `LimiterError` if the limiter threw it; `undefined`: the limiter did not answer. */
export function limiterErrorOf(error: unknown): LimiterError | undefined {
  if (error instanceof LimiterError) return error;
  if (!(error instanceof Error)) return undefined;
  const { status, code, message, errors = [] } = error as Error & Partial<Omit<LimiterError, keyof Error>>;
  if (typeof status !== "number" || typeof code !== "string") return undefined;
  return new LimiterError({ status, code, title: message, detail: message, errors }, message);
}
