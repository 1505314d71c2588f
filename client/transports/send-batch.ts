import type { Time } from "../../core/clock.ts";
import type { Jurisdiction, LocationHint, PolicyView } from "../../core/policies/policy.ts";
import {
  type Answer,
  type AnswerText,
  ASK_HOME,
  type UnsupportedProtocol,
} from "../../core/protocol/answers.ts";
import type {
  OperationCall,
  LimitCall,
  ReserveCall,
  Sent,
  GiveBackMessage,
} from "../../core/protocol/calls.ts";
import {
  type Batch,
  BATCH_PROTOCOL,
  type BatchedAnswer,
  type BatchedCall,
  batchText,
  type CallAnswer,
  PROTOCOL,
  unpaced,
} from "../../core/protocol/messages.ts";
import { objectName } from "../../core/protocol/names.ts";
import type { ObjectStub } from "../../core/protocol/object-methods.ts";
import type { Full } from "../../core/protocol/problems.ts";
import type { QueuedCall } from "./batch-queue.ts";

/** The answers to the calls of a message, in order, or the object's refusal of that message. */
export type Answers = readonly BatchedAnswer[] | UnsupportedProtocol | Full;

/**
 * Sends calls in one message. A single call is sent alone, so any version of an object knows it, unless it is an
 * operation, or has policy terms. @throws Error when the object throws, or answers in another form
 */
export async function sendTogether(
  object: LimiterStub,
  calls: readonly { readonly call: BatchedCall; readonly text: string }[],
  terms?: string,
  sent?: Sent,
  onPace?: OnPace,
): Promise<Answers> {
  const [first] = calls;
  const isAlone = first !== undefined && calls.length === 1;
  const { limit, operation } = first?.call ?? {};
  if (isAlone && operation === undefined && (terms === undefined || limit === undefined))
    return [await askAlone(object, first.call, terms, sent, onPace)];
  const text = batchText(calls.map((each) => each.text));
  const more = { ...(terms !== undefined && { terms }), ...(sent !== undefined && { sent }) };
  const batch: Batch = { protocol: BATCH_PROTOCOL, calls: text, ...more };
  const answers = unpaced(JSON.parse(await object.reserve(batch)) as Answers, onPace);
  const isComplete = "length" in answers ? answers.length === calls.length : isForAlone(answers);
  if (!isComplete) throw new Error("the object did not answer every call of a message");
  return answers;
}

/**
 * Makes a call in messages that every version of an object knows. Units are returned first on the same stub;
 * `null`: that was all. @throws Error when the object throws, or refuses the call because it is older
 */
export async function askAlone(
  object: LimiterStub,
  { giveBack, limit, reserve, operation }: BatchedCall,
  terms?: string,
  sent?: Sent,
  onPace?: OnPace,
): Promise<CallAnswer> {
  const given = giveBack && quietly(object.giveBack(giveBack.policy, giveBack.returned));
  const reserving = reserve && { ...reserve, ...(terms && { terms }), ...(sent && { sent }) };
  const answer = await (operation === undefined
    ? answerOf(object, limit, reserving, onPace)
    : operateAlone(object, operation));
  await given;
  return answer;
}

/** An operation in the messages of versions that do not know it in a batch. */
async function operateAlone(object: LimiterStub, operation: OperationCall): Promise<CallAnswer> {
  const { policy, key, inForce } = operation;
  // Some of these methods have no field for the version in force.
  const isTold = inForce && quietly(object.tell(policy, key, inForce));
  const answer = readAnswer<NonNullable<CallAnswer>>(await askOperation(object, operation));
  await isTold;
  return answer;
}

async function askOperation(object: LimiterStub, operation: OperationCall): Promise<AnswerText> {
  const { policy, key } = operation;
  switch (operation.op) {
    case "hold":
      return await object.hold(operation);
    case "settle":
      return await object.settle(policy, key, operation.id, operation.used);
    case "cancel":
      return await object.cancel(policy, key, operation.id);
    case "lease": {
      const init = { method: "POST", body: JSON.stringify(operation) };
      const response = await object.fetch("https://object/acquire", init);
      if (!response.ok) throw new Error(`the object answered ${response.status}`);
      return await response.text();
    }
    case "renew": {
      const { id, ttlMs } = operation;
      // RPC would send an argument that is `undefined`, so it is omitted.
      return await object.renew(policy, key, id, ...(ttlMs === undefined ? [] : [ttlMs]));
    }
    case "release": {
      const { id, outcome, durationMs } = operation;
      if (outcome !== undefined || durationMs !== undefined) return await object.releaseCall(operation);
      return JSON.stringify((await object.release(policy, key, id)) ? { released: true } : { missing: true });
    }
    case "slots":
      // Older versions know no slots.
      return JSON.stringify({ missing: true });
    case "refund": {
      const { units, idempotencyKey, charge } = operation;
      return await (charge === undefined
        ? object.refund(policy, key, units, idempotencyKey)
        : object.refundCharge({ ...operation, charge }));
    }
    default:
      return operation satisfies never;
  }
}

async function answerOf(
  object: LimiterStub,
  limit?: LimitCall,
  reserve?: ReserveCall,
  onPace?: OnPace,
): Promise<Answer | null> {
  if (limit !== undefined) {
    const answer: Answer = readAnswer(await askLimit(object, limit));
    return answer;
  }
  return reserve === undefined ? null : await askReserve(object, reserve, onPace);
}

/** Logs a failure instead of throwing. Unreturned units count as used. */
export async function quietly(sent: Promise<void>): Promise<void> {
  await sent.catch((error: unknown) =>
    console.warn(`a message that goes before a call has failed: ${String(error)}`),
  );
}

/** Asks an object for a decision. Calls with only a cost and an idempotency key work with any version. */
async function askLimit(object: LimiterStub, call: LimitCall): Promise<AnswerText> {
  const { policy, key, cost, idempotencyKey, ...more } = call;
  if (call.region !== undefined) {
    const answer = await object.limitCall(call);
    return "unsupported" in (JSON.parse(answer) as object) ? JSON.stringify(ASK_HOME) : answer;
  }
  if (Object.values(more).some((value) => value !== undefined))
    return await object.limitCall({ protocol: PROTOCOL, ...call });
  // RPC would send an argument that is `undefined`, so it is omitted.
  return idempotencyKey === undefined
    ? await object.limit(policy, key, cost)
    : await object.limit(policy, key, cost, idempotencyKey);
}

/** During a rollout the object may be an older version, which can still decide a cost. */
async function askReserve(object: LimiterStub, call: ReserveCall, onPace?: OnPace): Promise<Answer> {
  const reply = JSON.parse(await object.reserve({ protocol: PROTOCOL, ...call })) as
    | Answer
    | UnsupportedProtocol;
  const answer = unpaced(reply, onPace);
  if (!("unsupported" in answer)) return answer;
  if (call.region !== undefined) return ASK_HOME;
  const { policy, key, cost, priority } = call;
  return readAnswer(await askLimit(object, { policy, key, cost, priority }));
}

/** Hears when the object wants the next message. */
type OnPace = (paceMs: number) => void;

/** @throws Error when an object of an older version refused the message */
export function readAnswer<Read extends object = Answer>(text: AnswerText): Read {
  const answer = JSON.parse(text) as Read | UnsupportedProtocol;
  if ("unsupported" in answer)
    throw new Error(`the object knows the protocol up to version ${answer.unsupported.protocol} only`);
  return answer;
}

export type LimiterStub = ObjectStub;

/** The used part of the binding OBJECTS. The runtime's own type loses unions in the answers. */
export interface LimiterNamespace {
  /** The objects of a jurisdiction. This throws on plain workerd, which has none. */
  jurisdiction?(name: Jurisdiction): LimiterNamespace;
  getByName(name: string, options?: { readonly locationHint?: LocationHint }): LimiterStub;
}

export function isOverloaded(error: unknown): boolean {
  return (
    typeof error === "object" && error !== null && (error as { overloaded?: unknown }).overloaded === true
  );
}

export function within(namespace: LimiterNamespace, { jurisdiction }: PolicyView): LimiterNamespace {
  if (jurisdiction === undefined) return namespace;
  const there = namespace.jurisdiction?.(jurisdiction);
  if (there === undefined) throw new Error(`there are no objects in the jurisdiction ${jurisdiction} here`);
  return there;
}

export interface UnsentGiveBack {
  readonly policy: PolicyView;
  readonly returned: GiveBackMessage;
}

/** How much longer than a decision units wait for their turn, if the object is behind: they are missing there until then. */
const LONGER_FOR_UNITS_MS = 2_000;

/** Returns ended reservations, in one message for each object. If it is lost, the units count as used. */
export async function returnUnits(
  objects: {
    call(
      policy: PolicyView,
      key: string,
      call: BatchedCall,
      waitMs?: number,
      region?: LocationHint,
    ): Promise<unknown>;
  },
  endings: readonly UnsentGiveBack[],
): Promise<void> {
  await Promise.all(
    byObject(endings).map(async (each) => {
      const [first] = each;
      if (first === undefined) return;
      const { policy, returned } = first;
      const all = each.map((ending) => ending.returned);
      const giveBack = { policy: policy.name, returned: all };
      await objects.call(policy, returned.key, { giveBack }, LONGER_FOR_UNITS_MS, returned.region);
    }),
  );
}

/** In one list for each object. */
export function byObject(endings: readonly UnsentGiveBack[]): UnsentGiveBack[][] {
  // Node 20 has no Map.groupBy.
  const groups = new Map<string, UnsentGiveBack[]>();
  for (const ending of endings) {
    const { region = "" } = ending.returned;
    const name = `${region} ${objectName(ending.policy, ending.returned.key)}`;
    const group = groups.get(name);
    if (group === undefined) groups.set(name, [ending]);
    else group.push(ending);
  }
  return [...groups.values()];
}

/**
 * Whether a second attempt, on a new stub, may pass. The runtime marks an error `retryable` after a
 * deployment or move; plain workerd (1.20261023.1) only sets `durableObjectReset`. An
 * `overloaded` object gets no second attempt, since that would add to its load.
 */
export function mayPass(error: unknown): boolean {
  if (typeof error !== "object" || error === null) return false;
  const { retryable, overloaded, durableObjectReset } = error as Partial<Record<string, unknown>>;
  return (retryable === true || durableObjectReset === true) && overloaded !== true;
}

/** Whether the object refused a batch or call, without a change, whose calls can be made alone. */
export function isForAlone(answer: object): boolean {
  if ("unsupported" in answer) return true;
  return "full" in answer && BATCH_BOUNDS.has((answer as { full: { bound: string } }).full.bound);
}

const BATCH_BOUNDS: ReadonlySet<string> = new Set(["batch-calls", "batch-length", "batch-waits"]);

/** Whether the object knows a message of these calls again: not if it is a single call as all versions know it. */
export function isKnownAgain(calls: readonly { readonly call: BatchedCall }[], terms?: string): boolean {
  return terms !== undefined || calls.length > 1 || calls[0]?.call.limit === undefined;
}

/** Whether an operation ends or prolongs a claim: it frees units, and takes effect once. */
export function isEnding({ op }: OperationCall): boolean {
  return op === "settle" || op === "cancel" || op === "renew" || op === "release";
}

/** Whether repeating a call has one effect: it returns units, reads, ends a claim, or has an idempotency key. */
export function isRepeatable({ limit, reserve, operation }: BatchedCall): boolean {
  if (operation?.op === "slots") return true;
  if (operation !== undefined && !isEnding(operation))
    return "idempotencyKey" in operation && operation.idempotencyKey !== undefined;
  // The object recognizes a repeated message for units.
  if (reserve !== undefined && reserve.cost !== 0) return false;
  return limit === undefined || limit.cost === 0 || limit.idempotencyKey !== undefined;
}

/** Repeats failed calls if that is safe and their callers wait. Async, so that a failing stub rejects. */
export async function sendTwice(
  objectOf: () => LimiterStub,
  calls: readonly QueuedCall[],
  time: Time,
  terms?: string,
  stamp?: (calls: readonly QueuedCall[], nowMs: number) => Sent,
  onPace?: OnPace,
): Promise<Answers> {
  const send = (each: typeof calls) =>
    sendTogether(objectOf(), each, terms, stamp?.(each, time.nowMs()), onPace);
  try {
    return await send(calls);
  } catch (error) {
    const nowMs = time.nowMs();
    const again = calls.filter(({ call, untilMs }) => isRepeatable(call) && nowMs < untilMs);
    if (!mayPass(error) || again.length === 0) throw error;
    const answers = await send(again);
    const failed = { failed: String(error) };
    return calls.map((each) => {
      const index = again.indexOf(each);
      if (index < 0) return failed;
      const answer = "length" in answers ? answers[index] : answers;
      return answer === undefined ? failed : answer;
    });
  }
}

/* Calls without an answer. */

/** Calls that were answered without the limiter or an object, since the last report of the same name. */
export interface Failure {
  readonly cause: string;
  /** 0: a message failed that no call waited for. */
  readonly calls: number;
  /** Since the last report; `undefined`: this is the first for a while. */
  readonly seconds: number | undefined;
}

interface Unreported {
  reportedAtMs: number;
  calls: number;
  cause: string;
}

/** The least time between two reports of a name. */
const QUIET_MS = 10_000;
const LATE = "the message that asked for units was not answered in time";

/**
 * Reports an outage at once, and its further calls later with their number: one line for each call would cost more
 * than the calls. It has no timer: in a worker that belongs to one request.
 */
export class FailureLog {
  readonly #time: Time;
  readonly #report: (failure: Failure, name: string) => void;
  readonly #byName = new Map<string, Unreported>();

  /** @param report Absent: a warning about the limiter on the console */
  constructor(time: Time, report: (failure: Failure, name: string) => void = warn) {
    this.#time = time;
    this.#report = report;
  }

  /** @param cause `undefined`: that of another's message. @param name a policy, of which there are few */
  note(cause: string | undefined, calls = 1, name = ""): void {
    const nowMs = this.#time.nowMs();
    const last = this.#byName.get(name) ?? { reportedAtMs: -Infinity, calls: 0, cause: LATE };
    this.#byName.set(name, last);
    const isFirst = last.calls === 0;
    last.calls += calls;
    last.cause = cause ?? last.cause;
    if (isDue(last, nowMs)) this.#say(name, last, nowMs, isFirst);
  }

  /** Reports what was not reported and is due. Called when the limiter answers, or at any other call. */
  flush(): void {
    for (const [name, last] of this.#byName) {
      if (last.calls === 0) continue;
      const nowMs = this.#time.nowMs();
      if (isDue(last, nowMs)) this.#say(name, last, nowMs, false);
    }
  }

  #say(name: string, last: Unreported, nowMs: number, isFirst: boolean): void {
    const { cause, calls, reportedAtMs } = last;
    const seconds = isFirst ? undefined : Math.max(1, Math.round((nowMs - reportedAtMs) / 1_000));
    Object.assign(last, { reportedAtMs: nowMs, calls: 0, cause: LATE } satisfies Unreported);
    this.#report({ cause, calls, seconds }, name);
  }
}

function isDue({ reportedAtMs }: Unreported, nowMs: number): boolean {
  // The clock may have been set back.
  return nowMs < reportedAtMs || nowMs - reportedAtMs >= QUIET_MS;
}

function warn({ cause, calls, seconds }: Failure): void {
  const were = calls === 1 ? "1 call was" : `${calls} calls were`;
  console.warn(
    seconds === undefined
      ? `weir: no answer from the limiter: ${cause}`
      : `weir: ${were} answered without the limiter in the last ${seconds} s: ${cause}`,
  );
}
