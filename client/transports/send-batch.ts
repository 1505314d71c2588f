import type { Time } from "../../core/clock.ts";
import type { Jurisdiction, LocationHint, PolicyView } from "../../core/policies/policy.ts";
import type { Answer, AnswerText, UnsupportedProtocol } from "../../core/protocol/answers.ts";
import type { Departures } from "../../core/protocol/lateness.ts";
import {
  type Batch,
  BATCH_PROTOCOL,
  type BatchedAnswer,
  type BatchedCall,
  batchText,
  isForAlone,
  type LimitCall,
  PROTOCOL,
  type ReserveCall,
  type Sent,
  type Returned,
} from "../../core/protocol/messages.ts";
import { objectName } from "../../core/protocol/names.ts";
import type { ObjectStub } from "../../core/protocol/object-methods.ts";
import type { Full } from "../../core/protocol/problems.ts";
import type { QueuedCall } from "./batch-queue.ts";

/** The answers to the calls of a message, in order, or the object's refusal of that message. */
export type Answers = readonly BatchedAnswer[] | UnsupportedProtocol | Full;

/**
 * Sends calls in one message. A single call is sent alone, so any version of an object knows it, unless it
 * has policy terms. @throws Error when the object throws, or answers in another form
 */
export async function sendTogether(
  object: LimiterStub,
  calls: readonly { readonly call: BatchedCall; readonly text: string }[],
  terms?: string,
  sent?: Sent,
): Promise<Answers> {
  const [first] = calls;
  const isAlone = first !== undefined && calls.length === 1;
  if (isAlone && (terms === undefined || first.call.limit === undefined))
    return [await askAlone(object, first.call, terms, sent)];
  const text = batchText(calls.map((each) => each.text));
  const more = { ...(terms !== undefined && { terms }), ...(sent !== undefined && { sent }) };
  const batch: Batch = { protocol: BATCH_PROTOCOL, calls: text, ...more };
  const answers = JSON.parse(await object.reserve(batch)) as Answers;
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
  { giveBack, limit, reserve }: BatchedCall,
  terms?: string,
  sent?: Sent,
): Promise<Answer | null> {
  const given = giveBack && quietly(object.giveBack(giveBack.policy, giveBack.returned));
  let answer: Answer | null = null;
  if (limit !== undefined) answer = readAnswer(await askLimit(object, limit));
  else if (reserve !== undefined)
    answer = await askReserve(object, { ...reserve, ...(terms && { terms }), ...(sent && { sent }) });
  await given;
  return answer;
}

/** Logs a failure instead of throwing. Unreturned units count as used. */
export async function quietly(sent: Promise<void>): Promise<void> {
  await sent.catch((error: unknown) =>
    console.warn(`a message that goes before a call has failed: ${String(error)}`),
  );
}

/** Asks an object for a decision. Calls with only a cost and an idempotency key work with any version. */
function askLimit(object: LimiterStub, call: LimitCall): Promise<AnswerText> {
  const { policy, key, cost, idempotencyKey, ...more } = call;
  if (Object.values(more).some((value) => value !== undefined))
    return object.limitCall({ protocol: PROTOCOL, ...call });
  // RPC would send an argument that is `undefined`, so it is omitted.
  return idempotencyKey === undefined
    ? object.limit(policy, key, cost)
    : object.limit(policy, key, cost, idempotencyKey);
}

/** During a rollout the object may be an older version, which can still decide a cost. */
async function askReserve(object: LimiterStub, call: ReserveCall): Promise<Answer> {
  const answer = JSON.parse(await object.reserve({ protocol: PROTOCOL, ...call })) as
    | Answer
    | UnsupportedProtocol;
  if (!("unsupported" in answer)) return answer;
  const { policy, key, cost, priority } = call;
  return readAnswer(await askLimit(object, { policy, key, cost, priority }));
}

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

export interface ReturnedUnits {
  readonly policy: PolicyView;
  readonly returned: Returned;
}

/** Returns ended reservations, in one message for each object. If it is lost, the units count as used. */
export async function returnUnits(
  objects: { call(policy: PolicyView, key: string, call: BatchedCall): Promise<unknown> },
  endings: readonly ReturnedUnits[],
): Promise<void> {
  await Promise.all(
    byObject(endings).map(async (each) => {
      const [first] = each;
      if (first === undefined) return;
      const { policy, returned } = first;
      const all = each.map((ending) => ending.returned);
      await objects.call(policy, returned.key, { giveBack: { policy: policy.name, returned: all } });
    }),
  );
}

export function split(
  endings: readonly ReturnedUnits[],
  maxMessages: number,
): { readonly first: readonly ReturnedUnits[]; readonly rest: readonly ReturnedUnits[] } {
  const groups = byObject(endings);
  return { first: groups.slice(0, maxMessages).flat(), rest: groups.slice(maxMessages).flat() };
}

function byObject(endings: readonly ReturnedUnits[]): readonly (readonly ReturnedUnits[])[] {
  // Node 20 has no Map.groupBy.
  const groups = new Map<string, ReturnedUnits[]>();
  for (const ending of endings) {
    const name = objectName(ending.policy, ending.returned.key);
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
function mayPass(error: unknown): boolean {
  if (typeof error !== "object" || error === null) return false;
  const { retryable, overloaded, durableObjectReset } = error as Partial<Record<string, unknown>>;
  return (retryable === true || durableObjectReset === true) && overloaded !== true;
}

/** Whether repeating a call has one effect: it returns units, reads, or has an idempotency key. */
export function isRepeatable({ limit, reserve }: BatchedCall): boolean {
  // The object recognizes a repeated message for units.
  if (reserve !== undefined && reserve.cost !== 0) return false;
  return limit === undefined || limit.cost === 0 || limit.idempotencyKey !== undefined;
}

export interface Attempts {
  readonly isRepeatable?: boolean | undefined;
  readonly onDeadline?: (() => void) | undefined;
}

/** Waits until the deadline, shared by both attempts. A later answer is dropped. */
export function inTime<Result>(
  time: Time,
  deadlineMs: number,
  attempt: () => Promise<Result>,
  { isRepeatable: isTwice = false, onDeadline }: Attempts = {},
): Promise<Result> {
  return new Promise((resolve, reject) => {
    let isOver = false;
    const cancel = time.after(deadlineMs, () => {
      isOver = true;
      onDeadline?.();
      reject(overdue(deadlineMs));
    });
    const again = (error: unknown): Promise<Result> => {
      if (isOver || !isTwice || !mayPass(error)) throw error;
      return attempt();
    };
    attempt().catch(again).then(resolve, reject).finally(cancel);
  });
}

export class DeadlineError extends Error {}

export function overdue(deadlineMs: number): Error {
  return new DeadlineError(`deadline of ${deadlineMs} ms passed`);
}

/** Repeats failed calls if that is safe and their callers wait. Async, so that a failing stub rejects. */
export async function sendTwice(
  objectOf: () => LimiterStub,
  calls: readonly QueuedCall[],
  time: Time,
  terms?: string,
  departures?: Departures,
): Promise<Answers> {
  const send = (each: typeof calls) =>
    sendTogether(objectOf(), each, terms, departures?.stamp(each, time.nowMs()));
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
