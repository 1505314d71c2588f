import { DurableObject } from "cloudflare:workers";
import type { AnswerText } from "../core/protocol/answers.ts";
import {
  type AcquireCall,
  type Batch,
  CLOSE_BROKEN,
  type IdleCall,
  type KeysCall,
  type LimitCall,
  type ReserveCall,
  type Returned,
  unsupportedOf,
} from "../core/protocol/messages.ts";
import type {
  ForwardedCall,
  HandOver,
  KeyCall,
  KeysStored,
  LimiterMethods,
  MaybePromise,
} from "../core/protocol/object-methods.ts";
import type { StatsNamespace } from "../core/stats/messages.ts";
import { acquireAttached, confirmLease } from "./connections/lease-handle.ts";
import { KeyCalls, OwnerRouting } from "./key-calls.ts";
import type { ObjectNamespace } from "./moves/places.ts";
import { makeParts, type ObjectParts, ObjectStats } from "./object-parts.ts";
import { FAILED_AGAIN_MS } from "./storage/sweeps.ts";
import { answerBatch, WIRE_METHODS, type WireMethod, writeAnswer } from "./wire-methods.ts";

/** What the object finds in its environment. */
interface Bindings {
  readonly OBJECTS: ObjectNamespace;
  /** Absent: nobody takes counts. */
  readonly STATS?: StatsNamespace;
}

/** A class with the methods about keys, which `LimiterObject` gets from wire-methods.ts. */
const WithWireMethods = DurableObject as new (
  ...args: ConstructorParameters<typeof DurableObject>
) => DurableObject & Pick<LimiterMethods, WireMethod>;

/** The object. It serves one or many keys of one policy: each call is made where its key is, which is mostly here. */
export class LimiterObject extends WithWireMethods {
  readonly #parts: ObjectParts;
  readonly #calls: KeyCalls;
  readonly #routing: OwnerRouting;
  readonly #stats: ObjectStats;

  static {
    // Workers RPC finds methods on the prototype.
    for (const method of WIRE_METHODS)
      Object.defineProperty(this.prototype, method, {
        configurable: true,
        writable: true,
        value(this: LimiterObject, ...args: readonly unknown[]) {
          return this.#call(method, args);
        },
      });
  }

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    const { OBJECTS, STATS } = env as unknown as Bindings;
    const parts = makeParts(ctx, OBJECTS);
    this.#parts = parts;
    this.#calls = new KeyCalls(parts, {
      acquire: (call) => acquireAttached(parts, call),
      confirm: (call) => confirmLease(parts, call),
    });
    this.#stats = new ObjectStats(STATS, (work) => ctx.waitUntil(work));
    const { moves, places, storage, timers } = parts;
    const makeHere = (message: KeyCall, method: WireMethod) => {
      this.#stats.called(message.policy, method);
      return writeAnswer(method, this.#calls.call(message));
    };
    this.#routing = new OwnerRouting(makeHere, moves, places);
    if (!storage.isEmpty) void ctx.blockConcurrencyWhile(() => timers.readAlarm(FAILED_AGAIN_MS));
  }

  keys(call: KeysCall): Promise<AnswerText> {
    return this.#calls.keys(call);
  }

  countKeys(call: KeysCall): AnswerText {
    return this.#calls.countKeys(call);
  }

  /** Writes all that memory knows better than storage, and sends what was counted: nothing is lost if the process ends now. */
  async rest(): Promise<void> {
    this.#parts.rest();
    await this.#stats.sendAll();
  }

  override async fetch(request: Request): Promise<Response> {
    const message = await messageOf(request);
    return await this.#routing.request(request, message, () => {
      this.#stats.called(message.policy, new URL(request.url).pathname.slice(1));
      return answerRequest(request, message, this.#parts);
    });
  }

  override webSocketClose(socket: WebSocket, code: number, _reason: string, wasClean: boolean): void {
    this.#parts.sockets.closed(socket, !wasClean || code === CLOSE_BROKEN);
  }

  override webSocketError(socket: WebSocket): void {
    this.#parts.sockets.closed(socket, true);
  }

  /** Forgets keys that are whole again and answers that no longer stand; deletes everything when nothing is left. */
  override alarm(info?: AlarmInvocationInfo): Promise<void> {
    return this.#parts.cleanUp(info?.isRetry === true);
  }

  /** Makes a call on a key, by the method that was called and its arguments, and returns what that method returns. */
  #call(method: WireMethod, args: readonly unknown[]): MaybePromise<unknown> {
    const [first] = args as [string | ReserveCall | Batch | HandOver | KeysStored | ForwardedCall];
    if (method === "giveBack") return this.#giveBack(...(args as [string, readonly Returned[]]));
    if (method !== "reserve" || typeof first === "string") return this.#routing.make(method, args);
    if ("calls" in first) return answerBatch(first, (...call) => this.#call(...call));
    return "holder" in first ? this.#routing.make(method, args) : this.#routing.answerMove(first);
  }

  /** Each of the units goes where its key is. */
  #giveBack(policy: string, returned: readonly Returned[]): MaybePromise<void> {
    const given = returned.map((each) => this.#routing.make("giveBack", [policy, [each]]));
    const late = given.filter((each) => each instanceof Promise);
    if (late.length > 0) return Promise.all(late).then(() => undefined);
  }
}

type Message = AcquireCall | IdleCall | LimitCall;

/** The message of a request: in its address when it opens a socket, else in its body. */
async function messageOf(request: Request): Promise<Message> {
  const text = new URL(request.url).searchParams.get("call") ?? (await request.text());
  return JSON.parse(text) as Message;
}

/** Answers the calls that come as requests and not over RPC: those that wait, and sockets. */
async function answerRequest(
  request: Request,
  message: Message,
  { sockets, waiting, hear }: Pick<ObjectParts, "sockets" | "waiting" | "hear">,
): Promise<Response> {
  const { pathname } = new URL(request.url);
  const unsupported = unsupportedOf(message);
  if (unsupported !== undefined) return Response.json(unsupported);
  hear(message.policy, message.key, message);
  if (pathname === "/socket") return sockets.accept(message as AcquireCall);
  return Response.json(await waiting.answer(pathname, message, request.signal));
}
