import type { AnswerText } from "../core/protocol/answers.ts";
import { type AcquireCall, type IdleCall, type LimitCall, unsupportedOf } from "../core/protocol/messages.ts";
import type { ForwardedCall, ForwardedResult, HandOver, KeysStored } from "../core/protocol/moves.ts";
import type { KeyCall, MaybePromise } from "../core/protocol/object-methods.ts";
import { type KeyMoves, passOn, passRequest } from "./moves/key-moves.ts";
import type { Places } from "./moves/places.ts";
import { isWireMethod, readCall, type WireMethod } from "./wire-methods.ts";

/** Makes a call on a key that is here, and returns what the method that was called returns. */
type MakeHere = (message: KeyCall, method: WireMethod) => MaybePromise<unknown>;

/** Makes each call where its key is: here, or in another object (moves/key-moves.ts). */
export class OwnerRouting {
  readonly #makeHere: MakeHere;
  readonly #moves: KeyMoves;
  readonly #places: Places;

  constructor(makeHere: MakeHere, moves: KeyMoves, places: Places) {
    this.#makeHere = makeHere;
    this.#moves = moves;
    this.#places = places;
  }

  /** What a method of the object returns. @param isPassedOn another object has passed the call on */
  make(method: WireMethod, args: readonly unknown[], isPassedOn = false): MaybePromise<unknown> {
    const message = readCall(method, args);
    const { policy, key } = message;
    return this.#moves.make<unknown>(policy, key, {
      isPassedOn,
      here: () => this.#makeHere(message, method),
      there: (kept, mayBeAt) => passOn(this.#places, kept, { policy, key, method, args, mayBeAt }),
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
    if (!isWireMethod(method)) return { isElsewhere: true };
    return { returned: await this.make(method, args, true) };
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
