import { DurableObject } from "cloudflare:workers";
import type { PolicyRevision } from "../core/policies/policy-revision.ts";
import type { AnswerText, Peeked } from "../core/protocol/answers.ts";
import type { Cost } from "../core/protocol/cost.ts";
import {
  type AcquireCall,
  type Batch,
  CLOSE_BROKEN,
  type HoldCall,
  type IdleCall,
  type KeysCall,
  type LimitCall,
  type RefundCall,
  type ReleaseCall,
  type ReserveCall,
  type Returned,
  type SetCall,
  type SheddingCall,
  unsupportedOf,
} from "../core/protocol/messages.ts";
import type { HandOver, ForwardedResult, ForwardedCall, KeysStored } from "../core/protocol/moves.ts";
import type { Attached, LimiterMethods, MaybePromise } from "../core/protocol/object-methods.ts";
import type { StatsNamespace } from "../core/stats/messages.ts";
import { answerBatch, type BatchedMethods } from "./batches.ts";
import { KeyCalls } from "./key-calls.ts";
import type { ObjectNamespace } from "./moves/places.ts";
import { makeParts, type ObjectParts, ObjectStats } from "./object-parts.ts";
import { OwnerRouting } from "./owner-routing.ts";
import { FAILED_AGAIN_MS } from "./storage/sweeps.ts";

/** What the object finds in its environment. */
interface Bindings {
  readonly OBJECTS: ObjectNamespace;
  /** Absent: nobody takes counts. */
  readonly STATS?: StatsNamespace;
}

/** The object. It serves one or many keys of one policy: each call is made where its key is, which is mostly here. */
export class LimiterObject extends DurableObject implements LimiterMethods {
  readonly #parts: ObjectParts;
  readonly #calls: KeyCalls;
  readonly #placed: OwnerRouting;
  readonly #stats: ObjectStats;
  /** A batch is one call, also where a subclass counts or delays calls. */
  readonly #batched: BatchedMethods = {
    giveBack: (policy, returned) => this.#giveBack(policy, returned),
    limitCall: (call) => this.#placed.make("limitCall", call.policy, call.key, [call]),
    reserve: (call) => this.#placed.make("reserve", call.policy, call.key, [call]),
  };

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    const { OBJECTS, STATS } = env as unknown as Bindings;
    this.#parts = makeParts(ctx, OBJECTS);
    this.#calls = new KeyCalls(this.#parts);
    this.#stats = new ObjectStats(STATS, (work) => ctx.waitUntil(work));
    const { moves, places } = this.#parts;
    this.#placed = new OwnerRouting(this.#calls, moves, places, (...call) => this.#stats.called(...call));
    const { storage, timers } = this.#parts;
    if (!storage.isEmpty) void ctx.blockConcurrencyWhile(() => timers.readAlarm(FAILED_AGAIN_MS));
  }

  limit(
    ...args: [policy: string, key: string, cost: Cost, idempotencyKey?: string]
  ): MaybePromise<AnswerText> {
    return this.#placed.make("limit", args[0], args[1], args);
  }

  limitCall(call: LimitCall): MaybePromise<AnswerText> {
    return this.#placed.make("limitCall", call.policy, call.key, [call]);
  }

  setUsed(call: SetCall): MaybePromise<AnswerText> {
    return this.#placed.make("setUsed", call.policy, call.key, [call]);
  }

  reserve(message: ForwardedCall): Promise<ForwardedResult | AnswerText>;
  reserve(message: ReserveCall | Batch | HandOver | KeysStored): MaybePromise<AnswerText>;
  reserve(
    message: ReserveCall | Batch | HandOver | KeysStored | ForwardedCall,
  ): MaybePromise<AnswerText | ForwardedResult> {
    if ("calls" in message) return answerBatch(message, this.#batched);
    if (!("holder" in message)) return this.#placed.answerMove(message);
    return this.#placed.make("reserve", message.policy, message.key, [message]);
  }

  giveBack(policy: string, returned: readonly Returned[]): MaybePromise<void> {
    return this.#giveBack(policy, returned);
  }

  refund(
    ...args: [policy: string, key: string, units: Cost, idempotencyKey: string]
  ): MaybePromise<AnswerText> {
    return this.#placed.make("refund", args[0], args[1], args);
  }

  refundCharge(call: RefundCall): MaybePromise<AnswerText> {
    return this.#placed.make("refundCharge", call.policy, call.key, [call]);
  }

  hold(call: HoldCall): MaybePromise<AnswerText> {
    return this.#placed.make("hold", call.policy, call.key, [call]);
  }

  settle(...args: [policy: string, key: string, id: string, used: Cost]): MaybePromise<AnswerText> {
    return this.#placed.make("settle", args[0], args[1], args);
  }

  cancel(...args: [policy: string, key: string, id: string]): MaybePromise<AnswerText> {
    return this.#placed.make("cancel", args[0], args[1], args);
  }

  async acquire(call: AcquireCall): Promise<Attached> {
    return await this.#placed.make("acquire", call.policy, call.key, [call]);
  }

  confirm(
    ...args: [policy: string, key: string, id: string, ttlMs: number, isAttached: boolean]
  ): MaybePromise<Attached> {
    return this.#placed.make("confirm", args[0], args[1], args);
  }

  renew(...args: [policy: string, key: string, id: string, ttlMs?: number]): MaybePromise<AnswerText> {
    return this.#placed.make("renew", args[0], args[1], args);
  }

  release(...args: [policy: string, key: string, id: string]): MaybePromise<boolean> {
    return this.#placed.make("release", args[0], args[1], args);
  }

  releaseCall(call: ReleaseCall): MaybePromise<AnswerText> {
    return this.#placed.make("releaseCall", call.policy, call.key, [call]);
  }

  keys(call: KeysCall): Promise<AnswerText> {
    return this.#calls.keys(call);
  }

  countKeys(call: KeysCall): AnswerText {
    return this.#calls.countKeys(call);
  }

  shedding(call: SheddingCall): MaybePromise<AnswerText> {
    return this.#placed.make("shedding", call.policy, call.key, [call]);
  }

  tell(...args: [policy: string, key: string, inForce: PolicyRevision]): MaybePromise<void> {
    return this.#placed.make("tell", args[0], args[1], args);
  }

  peek(...args: [policy: string, key: string]): MaybePromise<Peeked> {
    return this.#placed.make("peek", args[0], args[1], args);
  }

  reset(...args: [policy: string, key: string]): MaybePromise<void> {
    return this.#placed.make("reset", args[0], args[1], args);
  }

  /** Writes all that memory knows better than storage, and sends what was counted: nothing is lost if the process ends now. */
  async rest(): Promise<void> {
    this.#parts.rest();
    await this.#stats.sendAll();
  }

  override async fetch(request: Request): Promise<Response> {
    const message = await messageOf(request);
    return await this.#placed.request(request, message, () => {
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

  /** Each of the units goes where its key is. */
  #giveBack(policy: string, returned: readonly Returned[]): MaybePromise<void> {
    const given = returned.map((each) => this.#placed.make("giveBack", policy, each.key, [policy, [each]]));
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
