import type { AnswerText } from "../core/protocol/answers.ts";
import {
  type Batch,
  type BatchedAnswer,
  type BatchedCall,
  batchText,
  KNOWN_PROTOCOL,
  MAX_BATCH_LENGTH,
  MAX_BATCHED,
  unsupportedOf,
} from "../core/protocol/messages.ts";
import type { MaybePromise } from "../core/protocol/object-methods.ts";
import { full } from "../core/protocol/problems.ts";

/** Makes one call of a batch, and returns what its method returns. */
export type MakeCall = (
  method: "giveBack" | "limitCall" | "reserve",
  args: readonly unknown[],
) => MaybePromise<unknown>;

/**
 * Answers several calls in one turn, so the runtime commits all that they write together. A call that cannot be read,
 * or that throws, fails alone. A batch that is too large is refused as a whole, and nothing is touched.
 *
 * @throws Error when the batch is not a list of calls
 */
export function answerBatch({ calls, terms, ...version }: Batch, make: MakeCall): MaybePromise<AnswerText> {
  const unsupported = unsupportedOf(version);
  if (unsupported !== undefined) return text(unsupported);
  if (calls.length > MAX_BATCH_LENGTH) return text(full("batch-length", MAX_BATCH_LENGTH));
  const all = JSON.parse(calls) as unknown;
  if (!Array.isArray(all)) throw new TypeError("a batch is a list of calls");
  if (all.length > MAX_BATCHED) return text(full("batch-calls", MAX_BATCHED));
  const answers = all.map((call: BatchedCall) => orFailed(() => answerOne(call, terms, make)));
  // Only calls to a pool take time, which clients make alone, and calls on keys that move.
  const isThere = (answer: MaybePromise<AnswerText>) => typeof answer === "string";
  return answers.every(isThere)
    ? batchText(answers)
    : Promise.all(answers.map((answer) => Promise.resolve(answer))).then(batchText);
}

/** Units that go back are free for the call that they come with. If they cannot be given back, it is made all the same. */
function answerOne(
  { giveBack, limit, reserve }: BatchedCall,
  terms: string | undefined,
  make: MakeCall,
): MaybePromise<AnswerText> {
  const given =
    giveBack &&
    orFailed(() => {
      const done = make("giveBack", [giveBack.policy, giveBack.returned]);
      return done instanceof Promise ? done.then(() => text(null)) : text(null);
    });
  const said = terms === undefined ? {} : { terms };
  if (limit !== undefined)
    return limit.waitMs === undefined
      ? (make("limitCall", [{ ...limit, isBatched: true, ...said }]) as MaybePromise<AnswerText>)
      : text(full("batch-waits", 0));
  if (reserve !== undefined)
    return make("reserve", [{ ...reserve, isBatched: true, ...said }]) as MaybePromise<AnswerText>;
  return given ?? text({ unsupported: { protocol: KNOWN_PROTOCOL } });
}

function orFailed(work: () => MaybePromise<AnswerText>): MaybePromise<AnswerText> {
  try {
    const answer = work();
    return answer instanceof Promise ? answer.catch(failed) : answer;
  } catch (error) {
    return failed(error);
  }
}

function failed(error: unknown): AnswerText {
  console.error("a call of a batch failed", error);
  return text({ failed: String(error) });
}

const text = (answer: BatchedAnswer): AnswerText => JSON.stringify(answer);
