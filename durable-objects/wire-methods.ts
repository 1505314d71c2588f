/**
 * The methods of an object over Workers RPC, and the one message that each of them is here. Isolates and objects of other
 * versions call these methods while a deployment is rolled out: never rename one, and never change its arguments.
 */
import type { AnswerText, Missing, Released, UnsupportedProtocol } from "../core/protocol/answers.ts";
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
import type { KeyCall, LimiterMethods, MaybePromise } from "../core/protocol/object-methods.ts";
import { full } from "../core/protocol/problems.ts";

/** The methods about one key. */
export type WireMethod = Exclude<keyof LimiterMethods, "keys" | "countKeys">;

/** How a method's arguments are read. */
type Readers = {
  readonly [Method in Exclude<WireMethod, "reserve">]: (
    ...args: Parameters<LimiterMethods[Method]>
  ) => KeyCall;
} & { readonly reserve: (call: Omit<Extract<KeyCall, { op: "reserve" }>, "op">) => KeyCall };

const READERS: Readers = {
  limit: (policy, key, cost, idempotencyKey) => ({ op: "limit", policy, key, cost, idempotencyKey }),
  limitCall: (call) => ({ op: "limit", ...call }),
  setUsed: (call) => ({ op: "set", ...call }),
  reserve: (call) => ({ op: "reserve", ...call }),
  giveBack: (policy, returned) => ({ op: "giveBack", policy, key: returned[0]?.key ?? "", returned }),
  refund: (policy, key, units, idempotencyKey) => ({ op: "refund", policy, key, units, idempotencyKey }),
  refundCharge: (call) => ({ op: "refund", ...call }),
  hold: (call) => ({ op: "hold", ...call }),
  settle: (policy, key, id, used) => ({ op: "settle", policy, key, id, used }),
  cancel: (policy, key, id) => ({ op: "cancel", policy, key, id }),
  acquire: (call) => ({ op: "acquire", ...call }),
  confirm: (policy, key, id, ttlMs, isAttached) => ({ op: "confirm", policy, key, id, ttlMs, isAttached }),
  renew: (policy, key, id, ttlMs) => ({ op: "renew", policy, key, id, ttlMs }),
  release: (policy, key, id) => ({ op: "release", policy, key, id }),
  releaseCall: (call) => ({ op: "release", ...call }),
  shedding: (call) => ({ op: "shedding", ...call }),
  tell: (policy, key, inForce) => ({ op: "tell", policy, key, inForce }),
  peek: (policy, key) => ({ op: "peek", policy, key }),
  reset: (policy, key) => ({ op: "reset", policy, key }),
};

/** How answers are sent that are not sent as JSON text. */
const WRITERS: Partial<Record<WireMethod, (answer: unknown) => unknown>> = {
  giveBack: () => undefined,
  acquire: (attached) => attached,
  confirm: (attached) => attached,
  release: (answer) => "released" in (answer as Released | Missing | UnsupportedProtocol),
  tell: () => undefined,
  peek: (peeked) => peeked,
  reset: () => undefined,
};

/** The names of all methods about one key. */
export const WIRE_METHODS = Object.keys(READERS) as readonly WireMethod[];

/** Whether an object has a method of this name, which is about one key. */
export function isWireMethod(method: string): method is WireMethod {
  return Object.hasOwn(READERS, method);
}

/** The message that a method with these arguments is. */
export function readCall(method: WireMethod, args: readonly unknown[]): KeyCall {
  return (READERS[method] as (...given: readonly unknown[]) => KeyCall)(...args);
}

/** An answer as a method returns it: at once if it is there at once. */
export function writeAnswer(method: WireMethod, answer: MaybePromise<unknown>): MaybePromise<unknown> {
  const write = WRITERS[method] ?? JSON.stringify;
  return answer instanceof Promise ? answer.then(write) : write(answer);
}

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
