import { DurableObject } from "cloudflare:workers";
import type { Cost } from "../core/protocol/cost.ts";
import {
  unsupportedOf,
  type AcquireCall,
  type AnswerText,
  type HoldCall,
  type IdleCall,
  type Peeked,
  type ReserveCall,
  type Returned,
  type Versioned,
} from "../core/protocol/messages.ts";
import type { Attached, LimiterMethods, Maybe } from "../core/protocol/object-methods.ts";
import { leaseHandle } from "./connections/lease-handle.ts";
import { collectGarbage } from "./keys/garbage-collection.ts";
import { makeParts, type ObjectParts } from "./object-parts.ts";
import { objectPolicies } from "./object-policies.ts";
import type { AskKey } from "./operations/operations.ts";

/**
 * The object: load, decide, save, answer. It serves one or many keys of one policy. Nothing is awaited
 * between reading and writing, so there are no locks; and what an answer says has been written, or is covered
 * by what was, before it leaves (the output gate holds it back until the write is durable).
 *
 * Operations return values. They become JSON text here and nowhere else.
 */
export class LimiterObject extends DurableObject implements LimiterMethods {
  readonly #parts: ObjectParts;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    this.#parts = makeParts(ctx);
    const { storage, timers } = this.#parts;
    if (!storage.isEmpty) void ctx.blockConcurrencyWhile(() => timers.readAlarm());
  }

  limit(policy: string, key: string, cost: Cost, idempotencyKey?: string): Maybe<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.limit(keyState, cost, idempotencyKey, nowMs),
    );
  }

  reserve({ policy, key, ...call }: ReserveCall): Maybe<AnswerText> {
    return this.#answer(
      policy,
      key,
      (operations, keyState, nowMs) => operations.reserve(keyState, call, nowMs),
      call,
    );
  }

  giveBack(policy: string, returned: readonly Returned[]): void {
    for (const each of returned)
      void this.#parts.ask(policy, each.key, (operations, keyState, nowMs) =>
        operations.giveBack(keyState, each, nowMs),
      );
  }

  refund(policy: string, key: string, units: Cost, idempotencyKey: string): Maybe<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.refund(keyState, units, idempotencyKey, nowMs),
    );
  }

  hold({ policy, key, ...call }: HoldCall): Maybe<AnswerText> {
    return this.#answer(
      policy,
      key,
      (operations, keyState, nowMs) => operations.hold(keyState, call, nowMs),
      call,
    );
  }

  settle(policy: string, key: string, id: string, used: Cost): Maybe<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.settle(keyState, id, used, nowMs),
    );
  }

  cancel(policy: string, key: string, id: string): Maybe<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) => operations.cancel(keyState, id, nowMs));
  }

  /** Leases units for as long as the caller keeps what comes back; without waiting, which `fetch` does. */
  async acquire({ policy, key, ...call }: AcquireCall): Promise<Attached> {
    const asked = { ...call, waitMs: 0 };
    const answer =
      unsupportedOf(call) ??
      (await this.#parts.ask(policy, key, (operations, keyState, nowMs) =>
        operations.acquire(keyState, asked, nowMs),
      ));
    const lease = "lease" in answer ? answer.lease : undefined;
    return this.#attached(policy, key, answer, lease?.id);
  }

  /** Makes a lease last that was granted to a caller who might have gone. */
  async confirm(
    policy: string,
    key: string,
    id: string,
    ttlMs: number,
    isAttached: boolean,
  ): Promise<Attached> {
    const renewed = await this.#parts.ask(policy, key, (operations, keyState, nowMs) =>
      operations.renew(keyState, id, ttlMs, nowMs),
    );
    return this.#attached(policy, key, renewed, isAttached && !("missing" in renewed) ? id : undefined);
  }

  renew(policy: string, key: string, id: string, ttlMs?: number): Maybe<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.renew(keyState, id, ttlMs, nowMs),
    );
  }

  async release(policy: string, key: string, id: string): Promise<boolean> {
    const [{ claims }] = this.#parts.open(policy, key);
    const isSocket = claims.get(id)?.isSocket === true;
    const isReleased = await this.#parts.ask(policy, key, (operations, keyState, nowMs) =>
      operations.release(keyState, id, nowMs),
    );
    if (isSocket) this.#closeLost(policy, key);
    return isReleased;
  }

  peek(policy: string, key: string): Maybe<Peeked> {
    return this.#parts.ask(policy, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
  }

  async reset(policy: string, key: string): Promise<void> {
    await this.#parts.ask(policy, key, (operations, keyState, nowMs) => operations.reset(keyState, nowMs));
    this.#closeLost(policy, key);
  }

  /** Calls that wait, and sockets. */
  override async fetch(request: Request): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    const message = searchParams.get("call") ?? (await request.text());
    const call = JSON.parse(message) as AcquireCall | IdleCall;
    const unsupported = unsupportedOf(call);
    if (unsupported !== undefined) return Response.json(unsupported);
    if (pathname === "/socket") return this.#parts.sockets.accept(call as AcquireCall);
    if (pathname === "/acquire")
      return Response.json(await this.#parts.waiting.acquire(call as AcquireCall, request.signal));
    return Response.json(await this.#parts.waiting.untilIdle(call, request.signal));
  }

  override webSocketClose(socket: WebSocket): void {
    this.#parts.sockets.closed(socket);
  }

  override webSocketError(socket: WebSocket): void {
    this.#parts.sockets.closed(socket);
  }

  /** Forgets keys that are whole again and answers that no longer stand; deletes everything when nothing is left. */
  override async alarm(): Promise<void> {
    const { storage, cache, timers, sockets } = this.#parts;
    const nowMs = timers.nowMs();
    timers.alarmCame();
    const againMs = await sockets.renew();
    const dueMs = collectGarbage(storage, cache, objectPolicies, nowMs);
    if (dueMs === undefined) await storage.removeAll().then(() => timers.alarmCame());
    const nextMs = Math.min(dueMs ?? Infinity, againMs);
    if (nextMs < Infinity) timers.alarmBy(nextMs, nowMs, againMs < Infinity ? 0 : undefined);
  }

  #closeLost(policy: string, key: string): void {
    const [{ claims }] = this.#parts.open(policy, key);
    this.#parts.sockets.closeLost(policy, key, (leaseId) => claims.has(leaseId));
  }

  /** What a key answers, as it is sent: at once if it is there at once. A message of a higher protocol is refused. */
  #answer(policy: string, key: string, ask: Parameters<AskKey>[2], call: Versioned = {}): Maybe<AnswerText> {
    const answer = unsupportedOf(call) ?? this.#parts.ask(policy, key, ask);
    return answer instanceof Promise ? answer.then((late) => JSON.stringify(late)) : JSON.stringify(answer);
  }

  /** An answer, with what keeps the lease for whoever has it if there is one. */
  #attached(policy: string, key: string, answer: object, lease: string | undefined): Attached {
    const handle = lease === undefined ? {} : leaseHandle(this.#parts.ask, policy, key, lease);
    return { answer: JSON.stringify(answer), ...handle };
  }
}
