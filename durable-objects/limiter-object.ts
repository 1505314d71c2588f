import { DurableObject } from "cloudflare:workers";
import { objectPolicies } from "./deployment.ts";
import type { Desk } from "./call-router.ts";
import { makeDesk } from "./object-desk.ts";
import type { KeyState } from "./keys/key-state.ts";
import { KeyCache } from "./keys/key-cache.ts";
import { LeaseSockets } from "./connections/lease-sockets.ts";
import { KeyStore } from "./keys/key-store.ts";
import type {
  AcquireCall,
  AnswerText,
  Attached,
  Cost,
  Decided,
  HoldCall,
  LimiterMethods,
  Maybe,
  Peeked,
  ReserveCall,
  Returned,
} from "../core/protocol/messages.ts";
import { leaseHandle } from "./connections/lease-handle.ts";
import { Storage } from "./storage/storage.ts";
import { FORGET_AFTER_MS, sweep } from "./keys/garbage-collection.ts";
import { Timers } from "./keys/timers.ts";
import { WaitQueue } from "./operations/wait-queue.ts";

/**
 * The object: load, decide, save, answer. It serves one or many keys of one policy. Nothing is awaited
 * between reading and writing, so there are no locks; and what an answer says has been written, or is covered
 * by what was, before it leaves (the output gate holds it back until the write is durable).
 */
export class LimiterObject extends DurableObject implements LimiterMethods {
  readonly #storage: Storage;
  readonly #cache: KeyCache;
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #desk: Desk;
  readonly #sockets: LeaseSockets;
  readonly #upkeep: Timers;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    this.#storage = new Storage(ctx.storage);
    this.#cache = new KeyCache(this.#storage);
    const upkeep = new Timers(ctx.storage, this.#cache);
    this.#upkeep = upkeep;
    this.#store = new KeyStore(objectPolicies, this.#storage, this.#cache, (wholeMs, nowMs) => {
      upkeep.alarmBy(wholeMs + FORGET_AFTER_MS, nowMs);
      upkeep.watchQuiet();
    });
    this.#queue = new WaitQueue((keyState) => this.#toNow(keyState));
    this.#desk = makeDesk(this.#store, this.#queue, {
      nowMs: () => upkeep.nowMs(),
      toNow: (keyState) => this.#toNow(keyState),
      open: (policy, key) => this.#open(policy, key),
    });
    this.#sockets = new LeaseSockets(ctx, this.#desk, {
      open: (policy, key) => this.#open(policy, key),
      renewBy: (dueMs, nowMs) => upkeep.alarmBy(dueMs, nowMs, 0),
    });
    if (!this.#storage.isEmpty) void ctx.blockConcurrencyWhile(() => upkeep.readAlarm());
  }

  /** Decides on a cost and takes it if every rule admits it. */
  limit(policy: string, key: string, cost: Cost, idempotencyKey?: string): Maybe<AnswerText> {
    const [keyState, nowMs] = this.#open(policy, key);
    return this.#desk.limit(keyState, cost, idempotencyKey, nowMs);
  }

  /** The same, and reserves units for an isolate, which settles those it had. */
  reserve({ policy, key, ...call }: ReserveCall): Maybe<AnswerText> {
    const [keyState, nowMs] = this.#open(policy, key);
    return this.#desk.reserve(keyState, call, nowMs);
  }

  /** Ends reservations of an isolate, each with what was used of it. */
  giveBack(policy: string, returned: readonly Returned[]): void {
    for (const each of returned) {
      const [keyState, nowMs] = this.#open(policy, each.key);
      this.#desk.giveBack(keyState, each, nowMs);
    }
  }

  /** Gives units back, at most up to an untouched quota. */
  refund(policy: string, key: string, units: Cost, idempotencyKey: string): Maybe<AnswerText> {
    const [keyState, nowMs] = this.#open(policy, key);
    return this.#desk.refund(keyState, units, idempotencyKey, nowMs);
  }

  /** Sets units apart; only a call that decides on several keys may wait, for others of its kind. */
  hold({ policy, key, ...call }: HoldCall): Maybe<AnswerText> {
    const [keyState, nowMs] = this.#open(policy, key);
    return this.#desk.hold(keyState, call, nowMs);
  }

  /** Ends a hold with what was used. */
  settle(policy: string, key: string, id: string, used: Cost): Maybe<AnswerText> {
    const [keyState, nowMs] = this.#open(policy, key);
    return this.#desk.settle(keyState, id, used, nowMs);
  }

  /** Ends a hold of which nothing was used. */
  cancel(policy: string, key: string, id: string): Maybe<AnswerText> {
    const [keyState, nowMs] = this.#open(policy, key);
    return this.#desk.cancel(keyState, id, nowMs);
  }

  /** Leases units for as long as the caller keeps what comes back; without waiting, which `fetch` does. */
  async acquire({ policy, key, ...call }: AcquireCall): Promise<Attached> {
    const [keyState, nowMs] = this.#open(policy, key);
    const answer = await this.#desk.acquire(keyState, { ...call, waitMs: 0 }, nowMs);
    const { lease } = JSON.parse(answer) as Decided;
    return lease === undefined ? { answer } : this.#attached(policy, key, lease.id, answer);
  }

  /** Makes a lease last that was granted to a caller who might have gone. */
  async confirm(
    policy: string,
    key: string,
    id: string,
    ttlMs: number,
    isAttached: boolean,
  ): Promise<Attached> {
    const answer = await this.renew(policy, key, id, ttlMs);
    const isThere = !("missing" in (JSON.parse(answer) as object));
    return isAttached && isThere ? this.#attached(policy, key, id, answer) : { answer };
  }

  renew(policy: string, key: string, id: string, ttlMs?: number): Maybe<AnswerText> {
    const [keyState, nowMs] = this.#open(policy, key);
    return this.#desk.renew(keyState, id, ttlMs, nowMs);
  }

  release(policy: string, key: string, id: string): Maybe<boolean> {
    const [keyState, nowMs] = this.#open(policy, key);
    const isSocket = keyState.claims.get(id)?.isSocket === true;
    const isReleased = this.#desk.release(keyState, id, nowMs);
    if (!isSocket) return isReleased;
    return Promise.resolve(isReleased).finally(() => this.#sockets.closeLost(keyState));
  }

  /** What a call of cost 1 would be answered, and who has and waits for units; nothing is taken. */
  peek(policy: string, key: string): Maybe<Peeked> {
    const [keyState, nowMs] = this.#open(policy, key);
    return this.#desk.peek(keyState, nowMs);
  }

  /** Makes the key as new: its consumption, holds, leases and idempotency keys are forgotten. */
  async reset(policy: string, key: string): Promise<void> {
    const open = () => this.#open(policy, key);
    const [keyState, nowMs] = open();
    await this.#desk.reset(keyState, nowMs);
    this.#sockets.closeLost(open()[0]);
  }

  /**
   * Calls that wait, and sockets. They come as requests and not as RPC, since only a request has a signal that
   * says when the caller has gone (flag enable_request_signal; tried on workerd 1.20261023.1: within 2 ms).
   */
  override async fetch(request: Request): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    const message = searchParams.get("call") ?? (await request.text());
    const { policy, key, ...call } = JSON.parse(message) as AcquireCall;
    if (pathname === "/socket") return this.#sockets.accept({ policy, key, ...call });
    const [keyState, nowMs] = this.#open(policy, key);
    if (pathname === "/acquire")
      return new Response(await this.#desk.acquireFor(keyState, { ...call, signal: request.signal }, nowMs));
    await this.#queue.untilIdle(keyState, nowMs + call.waitMs, request.signal);
    return Response.json(await this.peek(policy, key));
  }

  override webSocketClose(socket: WebSocket): void {
    this.#sockets.closed(socket);
  }

  override webSocketError(socket: WebSocket): void {
    this.#sockets.closed(socket);
  }

  /** Forgets keys that are whole again and answers that no longer stand; deletes everything when nothing is left. */
  override async alarm(): Promise<void> {
    const nowMs = this.#upkeep.nowMs();
    this.#upkeep.alarmCame();
    const againMs = await this.#sockets.renew();
    const dueMs = sweep(this.#storage, this.#cache, objectPolicies, nowMs);
    if (dueMs === undefined) await this.#storage.removeAll().then(() => this.#upkeep.alarmCame());
    const nextMs = Math.min(dueMs ?? Infinity, againMs);
    if (nextMs < Infinity) this.#upkeep.alarmBy(nextMs, nowMs, againMs < Infinity ? 0 : undefined);
  }

  #attached(policy: string, key: string, id: string, answer: AnswerText): Attached {
    const open = () => this.#open(policy, key);
    return { answer, ...leaseHandle(this.#desk, open, id) };
  }

  #open(policy: string, key: string): [keyState: KeyState, nowMs: number] {
    const nowMs = this.#upkeep.nowMs();
    const keyState = this.#store.open(policy, key, nowMs);
    this.#upkeep.watchQuiet();
    return [keyState, nowMs];
  }

  #toNow(keyState: KeyState): number {
    const nowMs = this.#upkeep.nowMs();
    this.#cache.advance(keyState, nowMs);
    return nowMs;
  }
}
