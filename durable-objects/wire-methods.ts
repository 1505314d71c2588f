/** An object's methods over Workers RPC. Other versions call them: never change a name or an argument. */
import { type Time, andThen } from "../core/clock.ts";
import {
  type AnswerText,
  ASK_HOME,
  type Missing,
  type Released,
  type UnsupportedProtocol,
} from "../core/protocol/answers.ts";
import type { OperationCall, ReserveCall, GiveBackMessage, Sent, UnitsCall } from "../core/protocol/calls.ts";
import {
  Arrivals,
  STALE,
  type Batch,
  type BatchedAnswer,
  type BatchedCall,
  batchText,
  type Failed,
  KNOWN_PROTOCOL,
  MAX_BATCH_LENGTH,
  MAX_BATCHED,
  unsupportedOf,
} from "../core/protocol/messages.ts";
import type {
  MaybePromise,
  ForwardedCall,
  ForwardedResult,
  HandOver,
  KeyCall,
  KeysStored,
  LimiterMethods,
  ObjectStub,
} from "../core/protocol/object-methods.ts";
import { full } from "../core/protocol/problems.ts";
import type { WaitingCall } from "./key-calls.ts";
import { type KeyMoves, type Places, passOn, passRequest } from "./moves/key-moves.ts";
import type { Epochs } from "./operations/limits.ts";

export type WireMethod = Exclude<keyof LimiterMethods, "keys" | "countKeys">;

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
  operate: (call) => call,
  tell: (policy, key, inForce) => ({ op: "tell", policy, key, inForce }),
  peek: (policy, key, group, inForce) => ({ op: "peek", policy, key, group, inForce }),
  reset: (policy, key) => ({ op: "reset", policy, key }),
  endWaits: (policy, key) => ({ op: "endWaits", policy, key }),
};

const WRITERS: Partial<Record<WireMethod, (answer: unknown) => unknown>> = {
  giveBack: () => undefined,
  acquire: (attached) => attached,
  confirm: (attached) => attached,
  release: (answer) => "released" in (answer as Released | Missing | UnsupportedProtocol),
  tell: () => undefined,
  peek: (peeked) => peeked,
  reset: () => undefined,
  endWaits: () => undefined,
};

export const WIRE_METHODS = Object.keys(READERS) as readonly WireMethod[];

export function writeAnswer(method: WireMethod, answer: MaybePromise<unknown>): MaybePromise<unknown> {
  return andThen(answer, WRITERS[method] ?? JSON.stringify);
}

type MakeHere = (message: KeyCall, method: WireMethod) => MaybePromise<unknown>;

/** The methods by which other objects and clients call this one. */
export function stubOf(routing: OwnerRouting): Pick<ObjectStub, WireMethod> {
  const methodOf =
    (method: WireMethod) =>
    async (...args: readonly unknown[]) =>
      await routing.call(method, args);
  const methods = WIRE_METHODS.map((method) => [method, methodOf(method)]);
  return Object.fromEntries(methods) as Pick<ObjectStub, WireMethod>;
}

/** The most answers, their UTF-16 units, and how long they are kept: a message comes again while its calls wait. */
const MAX_ANSWERS = 2_048;
const MAX_ANSWERS_LENGTH = 2 ** 20;
const ANSWER_KEPT_MS = 3_000;

interface RecentAnswer {
  readonly name: string;
  readonly answer: MaybePromise<unknown>;
  readonly atMs: number;
  /** The next newer one. */
  next?: RecentAnswer;
}

/**
 * The answers to the last messages. A message whose answer is lost or late comes again, and is answered as before, so its
 * calls are charged once. An object that has lost its memory in between charges them twice.
 */
class RecentAnswers {
  readonly #answers = new Map<string, RecentAnswer>();
  /** The map would find it too, but among all that were deleted before: that takes longer than deciding. */
  #oldest: RecentAnswer | undefined;
  #newest: RecentAnswer | undefined;
  #length = 0;

  once(sent: Sent | undefined, nowMs: number, make: () => MaybePromise<unknown>): MaybePromise<unknown> {
    if (sent?.number === undefined) return make();
    const name = `${sent.from} ${sent.number}`;
    const known = this.#answers.get(name);
    if (known !== undefined) return known.answer;
    const added: RecentAnswer = { name, answer: make(), atMs: nowMs };
    this.#answers.set(name, added);
    this.#length += lengthOf(added);
    if (this.#oldest === undefined || this.#newest === undefined) this.#oldest = added;
    else this.#newest.next = added;
    this.#newest = added;
    // Thousands of objects may share the memory of one isolate.
    while (this.#oldest !== undefined && !this.#mayKeep(this.#oldest, nowMs)) {
      this.#answers.delete(this.#oldest.name);
      this.#length -= lengthOf(this.#oldest);
      this.#oldest = this.#oldest.next;
    }
    return added.answer;
  }

  #mayKeep({ atMs }: RecentAnswer, nowMs: number): boolean {
    const isRoomy = this.#answers.size <= MAX_ANSWERS && this.#length <= MAX_ANSWERS_LENGTH;
    return isRoomy && nowMs < atMs + ANSWER_KEPT_MS;
  }
}

function lengthOf({ answer }: RecentAnswer): number {
  return typeof answer === "string" ? answer.length : 0;
}

interface RoutingHost {
  readonly time: Pick<Time, "nowMs">;
  /** Absent: all keys are here. */
  readonly elsewhere?: {
    readonly moves: KeyMoves;
    readonly places: Places;
    readonly epochs: Pick<Epochs, "lift">;
  };
  /** The keys for which this is the object of a region. Absent: it is of none. */
  readonly regions?: { call(message: KeyCall): MaybePromise<unknown> };
  /** A call was not decided, since its caller had left. */
  readonly onDropped?: (policy: string) => void;
}

/** Executes each call where its key is: here, or in another object (moves/key-moves.ts). */
export class OwnerRouting {
  readonly #makeHere: MakeHere;
  readonly #host: RoutingHost;
  readonly #arrivals = new Arrivals();
  readonly #answers = new RecentAnswers();

  constructor(makeHere: MakeHere, host: RoutingHost) {
    this.#makeHere = makeHere;
    this.#host = host;
  }

  call(method: WireMethod, args: readonly unknown[]): MaybePromise<unknown> {
    const [first] = args as [string | ReserveCall | Batch | HandOver | KeysStored | ForwardedCall];
    if (method === "giveBack") return this.#giveBack(...(args as [string, readonly GiveBackMessage[]]));
    if (method !== "reserve" || typeof first === "string") return this.#make(method, args);
    if ("holder" in first)
      return this.#answers.once(first.sent, this.#host.time.nowMs(), () => {
        const isStale = this.#staleness(first.sent)({ reserve: first }, 0);
        return this.#paced(first, isStale ? text(NOT_DECIDED) : this.#make(method, args));
      });
    if ("calls" in first)
      return this.#answers.once(first.sent, this.#host.time.nowMs(), () => {
        const isStale = this.#staleness(first.sent);
        return this.#paced(
          first,
          answerBatch(first, (...call) => this.call(...call), isStale),
        );
      });
    return this.#answerMove(first);
  }

  #staleness(sent: Sent | undefined): ReturnType<Arrivals["note"]> {
    const isStale = this.#arrivals.note(sent, this.#host.time.nowMs());
    return (call, index) => {
      if (!isStale(call, index)) return false;
      this.#host.onDropped?.((call.limit ?? call.reserve ?? call.operation)?.policy ?? "");
      return true;
    };
  }

  /** Says when the object wants the sender's next message, if it is behind. */
  #paced({ sent }: Pick<Batch, "sent">, answers: MaybePromise<unknown>): MaybePromise<unknown> {
    if (sent === undefined) return answers;
    return andThen(answers, (written) => {
      if ((written as AnswerText).includes(ASKS_REGION)) this.#arrivals.forget(sent.from);
      const { paceMs } = this.#arrivals;
      return paceMs === 0 ? written : `{"paceMs":${paceMs},"answers":${written as AnswerText}}`;
    });
  }

  #make(method: WireMethod, args: readonly unknown[], isPassedOn = false): MaybePromise<unknown> {
    const message = (READERS[method] as (...given: readonly unknown[]) => KeyCall)(...args);
    const { elsewhere, regions } = this.#host;
    if (isForRegion(message))
      return writeAnswer(method, regions === undefined ? ASK_HOME : regions.call(message));
    if (elsewhere === undefined) return this.#makeHere(message, method);
    const { moves, places } = elsewhere;
    const { policy, key } = message;
    return moves.make<unknown>(policy, key, {
      isPassedOn,
      here: () => this.#makeHere(message, method),
      // The other object may be of a version that does not know it: its sender makes it alone.
      there: (kept, mayBeAt) =>
        method === "operate"
          ? Promise.resolve(text({ unsupported: { protocol: KNOWN_PROTOCOL } }))
          : passOn(places, kept, { policy, key, method, args, mayBeAt }),
    });
  }

  #giveBack(policy: string, returned: readonly GiveBackMessage[]): MaybePromise<void> {
    const done = returned.map((each) => this.#make("giveBack", [policy, [each]]));
    const late = done.filter((each) => each instanceof Promise);
    if (late.length > 0) return Promise.all(late).then(() => undefined);
  }

  #answerMove(message: HandOver | KeysStored | ForwardedCall): MaybePromise<AnswerText | ForwardedResult> {
    const unsupported = unsupportedOf(message);
    const { elsewhere } = this.#host;
    if (unsupported !== undefined || elsewhere === undefined) return JSON.stringify(unsupported);
    const { moves } = elsewhere;
    if ("passedOn" in message) return this.#makePassed(moves, message.passedOn);
    const { departures, arrivals } = moves;
    if ("handOver" in message) {
      // Its denials are another object's from now on.
      elsewhere.epochs.lift();
      return JSON.stringify(departures.handOver(message.handOver, (key) => arrivals.isUnderWay(key)));
    }
    if ("taken" in message) departures.taken(message.taken);
    return JSON.stringify(null);
  }

  async #makePassed(moves: KeyMoves, call: ForwardedCall["passedOn"]): Promise<ForwardedResult> {
    const { policy, key, method, args, mayBeAt } = call;
    if (!moves.mayTake(policy, key, mayBeAt) || !Object.hasOwn(READERS, method)) return { isElsewhere: true };
    return { returned: await this.#make(method as WireMethod, args, true) };
  }

  async request(request: Request, message: WaitingCall, answer: () => Promise<Response>): Promise<Response> {
    const { elsewhere } = this.#host;
    if (elsewhere === undefined) return await answer();
    const { moves, places } = elsewhere;
    const { policy, key, mayBeAt } = message;
    if (mayBeAt !== undefined && !moves.mayTake(policy, key, mayBeAt))
      throw new Error(`the key ${JSON.stringify(key)} is not to be here`);
    return await moves.make<Response>(policy, key, {
      isPassedOn: mayBeAt !== undefined,
      here: answer,
      there: (kept, names) => passRequest(places, kept, request, message, names),
    });
  }
}

function isForRegion(message: KeyCall): boolean {
  if (message.op === "giveBack") return message.returned.some(({ region }) => region !== undefined);
  return (message.op === "limit" || message.op === "reserve") && message.region !== undefined;
}

type MakeCall = (
  method: "giveBack" | "limitCall" | "operate" | "reserve",
  args: readonly unknown[],
) => unknown;

/**
 * Answers several calls in one turn, so the runtime commits their writes together. A call that cannot be
 * read, or that throws, fails alone. A batch that is too large is rejected completely.
 *
 * @throws Error when the batch is not a list of calls
 */
export function answerBatch(
  { calls, terms, sent, ...version }: Batch,
  make: MakeCall,
  isStale: ReturnType<Arrivals["note"]> = () => false,
): MaybePromise<AnswerText> {
  const unsupported = unsupportedOf(version);
  if (unsupported !== undefined) return text(unsupported);
  if (calls.length > MAX_BATCH_LENGTH) return text(full("batch-length", MAX_BATCH_LENGTH));
  const all = JSON.parse(calls) as unknown;
  if (!Array.isArray(all)) throw new TypeError("a batch is a list of calls");
  if (all.length > MAX_BATCHED) return text(full("batch-calls", MAX_BATCHED));
  const answers = all.map((call: BatchedCall, index) =>
    isStale(call, index)
      ? takenBack(call, make)
      : orFailed(() => answerOne(call, { terms, leftMs: sent?.leftMs[index] }, make)),
  );
  // Only calls on keys that move take time, and calls to a pool, which clients never batch.
  const isThere = (answer: MaybePromise<AnswerText>) => typeof answer === "string";
  return answers.every(isThere)
    ? batchText(answers)
    : Promise.all(answers.map((answer) => Promise.resolve(answer))).then(batchText);
}

/** In the text of an answer after which its sender asks another object (`Reserved.asksRegion`). */
const ASKS_REGION = '"asksRegion":true';
const NOT_DECIDED: Failed = { failed: STALE };

/** A call whose caller has left is not decided, but the units that come with it are taken back. */
function takenBack(call: BatchedCall, make: MakeCall): AnswerText {
  void answerGiveBack(call, make);
  return text(NOT_DECIDED);
}

function answerGiveBack({ giveBack }: BatchedCall, make: MakeCall): MaybePromise<AnswerText> | undefined {
  if (giveBack === undefined) return undefined;
  return orFailed(() => andThen(make("giveBack", [giveBack.policy, giveBack.returned]), () => text(null)));
}

/** Units that come back with a call serve it. If their return fails, the call is carried out all the same. */
function answerOne(
  call: BatchedCall,
  { terms, leftMs }: Pick<UnitsCall, "terms" | "leftMs">,
  make: MakeCall,
): MaybePromise<AnswerText> {
  const { limit, reserve, operation } = call;
  const given = answerGiveBack(call, make);
  const said = terms === undefined ? {} : { terms };
  if (limit !== undefined)
    return limit.waitMs === undefined
      ? (make("limitCall", [{ ...limit, isBatched: true, leftMs, ...said }]) as MaybePromise<AnswerText>)
      : text(full("batch-waits", 0));
  if (reserve !== undefined)
    return make("reserve", [{ ...reserve, isBatched: true, leftMs, ...said }]) as MaybePromise<AnswerText>;
  if (operation !== undefined)
    return mayWait(operation)
      ? text(full("batch-waits", 0))
      : (make("operate", [{ ...operation, isBatched: true, ...said }]) as MaybePromise<AnswerText>);
  return given ?? text({ unsupported: { protocol: KNOWN_PROTOCOL } });
}

function mayWait(operation: OperationCall): boolean {
  return operation.op === "lease"
    ? operation.waitMs > 0
    : operation.op === "hold" && operation.provisional !== undefined;
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
