import type { AnswerText } from "../core/protocol/answers.ts";
import { type AcquireCall, type IdleCall, type LimitCall, unsupportedOf } from "../core/protocol/messages.ts";
import type { ForwardedCall, ForwardedResult, HandOver, KeysStored } from "../core/protocol/moves.ts";
import type { LimiterMethods, MaybePromise } from "../core/protocol/object-methods.ts";
import type { KeyCalls } from "./key-calls.ts";
import { type KeyMoves, NOT_OWNER, passOn, passRequest } from "./moves/key-moves.ts";
import type { Places } from "./moves/places.ts";

/** The methods that are about one key. */
type KeyMethod = Exclude<keyof KeyCalls, "keys" | "countKeys">;

type MethodResult<Method extends KeyMethod> = Awaited<ReturnType<KeyCalls[Method]>>;

/** Makes each call where its key is: here, or in another object (moves/key-moves.ts). */
export class OwnerRouting {
  readonly #calls: KeyCalls;
  readonly #moves: KeyMoves;
  readonly #places: Places;

  readonly #onCall: (policy: string, method: string) => void;

  /** @param onCall is told of each call that is made here */
  constructor(
    calls: KeyCalls,
    moves: KeyMoves,
    places: Places,
    onCall: (policy: string, method: string) => void = () => undefined,
  ) {
    this.#onCall = onCall;
    this.#calls = calls;
    this.#moves = moves;
    this.#places = places;
  }

  make<Method extends KeyMethod>(
    method: Method,
    policy: string,
    key: string,
    args: Parameters<KeyCalls[Method]>,
    isPassedOn = false,
  ): MaybePromise<MethodResult<Method>> {
    const call = this.#calls[method] as (
      ...given: Parameters<KeyCalls[Method]>
    ) => MaybePromise<MethodResult<Method>>;
    return this.#moves.make<MethodResult<Method>>(policy, key, {
      isPassedOn,
      here: () => {
        this.#onCall(policy, method);
        return call.apply(this.#calls, args);
      },
      there: (kept, mayBeAt) =>
        passOn(this.#places, kept, { policy, key, method, args, mayBeAt }) as Promise<
          MethodResult<Method> | typeof NOT_OWNER
        >,
    });
  }

  /** Answers what objects say to each other when keys move. */
  answerMove(message: HandOver | KeysStored | ForwardedCall): MaybePromise<AnswerText | ForwardedResult> {
    const unsupported = unsupportedOf(message);
    if (unsupported !== undefined) return JSON.stringify(unsupported);
    if ("passedOn" in message) return this.#makePassed(message.passedOn);
    const { departures, arrivals } = this.#moves;
    if ("handOver" in message)
      return JSON.stringify(departures.handOver(message.handOver, (key) => arrivals.isUnderWay(key)));
    if ("taken" in message) departures.taken(message.taken);
    return JSON.stringify(null);
  }

  /** Makes a call that another object has passed on, if the key may be here. */
  async #makePassed({
    policy,
    key,
    method,
    args,
    mayBeAt,
  }: ForwardedCall["passedOn"]): Promise<ForwardedResult> {
    if (!this.#moves.mayTake(policy, key, mayBeAt)) return { isElsewhere: true };
    if (!isKeyMethod(method, this.#calls)) return { isElsewhere: true };
    const returned = await this.make(method, policy, key, args as Parameters<KeyCalls[KeyMethod]>, true);
    return { returned };
  }

  /** Answers a request where the key of its message is. */
  async request(
    request: Request,
    message: AcquireCall | IdleCall | LimitCall,
    answer: () => Promise<Response>,
  ): Promise<Response> {
    const { policy, key, mayBeAt } = message;
    if (mayBeAt !== undefined && !this.#moves.mayTake(policy, key, mayBeAt))
      throw new Error(`the key ${JSON.stringify(key)} is not to be here`);
    return await this.#moves.make<Response>(policy, key, {
      isPassedOn: mayBeAt !== undefined,
      here: answer,
      there: (kept, names) => passRequest(this.#places, kept, request, message, names),
    });
  }
}

function isKeyMethod(method: string, calls: KeyCalls): method is KeyMethod & keyof LimiterMethods {
  return method in calls && method !== "constructor" && method !== "keys" && method !== "countKeys";
}
