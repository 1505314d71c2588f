import type { Answer, AnswerText, Unsupported } from "../../core/protocol/answers.ts";
import {
  batchText,
  isForAlone,
  type Batch,
  type BatchedAnswer,
  type BatchedCall,
} from "../../core/protocol/batches.ts";
import type { Full } from "../../core/protocol/bounds.ts";
import { BATCH_PROTOCOL, PROTOCOL, type LimitCall, type ReserveCall } from "../../core/protocol/messages.ts";
import type { LimiterStub } from "./stubs.ts";

/** The answers to calls that went in one message, in their order, or the object's refusal of that message. */
export type Answers = readonly BatchedAnswer[] | Unsupported | Full;

/**
 * Sends calls in one message. One that has no others goes as it would alone, so any version of an object knows it; but a
 * decision goes with the terms of its policy, which only a message has room for.
 *
 * @throws Error when the object throws, or answers something else
 */
export async function sendTogether(
  object: LimiterStub,
  calls: readonly { readonly call: BatchedCall; readonly text: string }[],
  terms?: string,
): Promise<Answers> {
  const [first] = calls;
  const isAlone = first !== undefined && calls.length === 1;
  if (isAlone && (terms === undefined || first.call.limit === undefined))
    return [await askAlone(object, first.call, terms)];
  const said = terms === undefined ? {} : { terms };
  const batch: Batch = { protocol: BATCH_PROTOCOL, calls: batchText(calls.map(({ text }) => text)), ...said };
  const answers = JSON.parse(await object.reserve(batch)) as Answers;
  const isComplete = "length" in answers ? answers.length === calls.length : isForAlone(answers);
  if (!isComplete) throw new Error("the object did not answer every call of a message");
  return answers;
}

/**
 * Makes a call by itself, in messages that every version of an object knows. Units go back first, on the same stub,
 * which delivers in order. The answer is `null` when that was all.
 *
 * @throws Error when the object throws, or refuses the call because it is older
 */
export async function askAlone(
  object: LimiterStub,
  { giveBack, limit, reserve }: BatchedCall,
  terms?: string,
): Promise<Answer | null> {
  const given = giveBack && quietly(object.giveBack(giveBack.policy, giveBack.returned));
  const answer =
    limit === undefined
      ? reserve === undefined
        ? null
        : await askReserve(object, terms === undefined ? reserve : { ...reserve, terms })
      : known(await askLimit(object, limit));
  await given;
  return answer;
}

/**
 * Waits, and only logs a failure: the call after that may go on. Units that are not given back count as used, and an
 * object that was not told of a version goes on with the one that it knows.
 */
export async function quietly(settled: Promise<void>): Promise<void> {
  try {
    await settled;
  } catch (error) {
    console.warn(`a message that goes before a call has failed: ${String(error)}`);
  }
}

/**
 * Asks an object for a decision. A call that is only a cost, with or without an idempotency key, can ask any version of
 * an object. Any other needs one that knows the message.
 */
function askLimit(object: LimiterStub, call: LimitCall): Promise<AnswerText> {
  const { policy, key, cost, idempotencyKey, ...more } = call;
  if (Object.values(more).some((value) => value !== undefined))
    return object.limitCall({ ...call, protocol: PROTOCOL });
  // RPC would send an argument that is `undefined`, so it is left out.
  return idempotencyKey === undefined
    ? object.limit(policy, key, cost)
    : object.limit(policy, key, cost, idempotencyKey);
}

/** While a deployment is rolled out, the object may be an older version. It can still decide on a cost. */
async function askReserve(object: LimiterStub, call: ReserveCall): Promise<Answer> {
  const answer = JSON.parse(await object.reserve({ protocol: PROTOCOL, ...call })) as Answer | Unsupported;
  if (!("unsupported" in answer)) return answer;
  const { policy, key, cost, priority } = call;
  return known(await askLimit(object, { policy, key, cost, priority }));
}

/** @throws Error when the object refused the message, because the object's version is older than this one */
function known(text: AnswerText): Answer {
  const answer = JSON.parse(text) as Answer | Unsupported;
  if ("unsupported" in answer)
    throw new Error(`the object knows the protocol up to version ${answer.unsupported.protocol} only`);
  return answer;
}
