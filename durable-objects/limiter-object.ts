import { DurableObject } from "cloudflare:workers";
import type { AcquireCall } from "../core/protocol/messages.ts";
import type { Attached, LimiterMethods } from "../core/protocol/object-methods.ts";
import { acquireAttached, confirmLease } from "./connections/granting.ts";
import { KeyMethods } from "./key-methods.ts";
import { makeParts, type ObjectParts } from "./object-parts.ts";
import { answerRequest } from "./object-requests.ts";

/**
 * The object: load, decide, save, answer. It serves one or many keys of one policy. Nothing is awaited
 * between reading and writing, so there are no locks; and what an answer says has been written, or is covered
 * by what was, before it leaves (the output gate holds it back until the write is durable).
 *
 * What may be asked of keys is in key-methods.ts. Here is what the platform adds.
 */
export class LimiterObject extends DurableObject implements LimiterMethods {
  readonly #parts: ObjectParts;
  /** A batch is one call, also where a subclass counts or delays calls: its calls are those of this. */
  readonly #methods: KeyMethods;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    this.#parts = makeParts(ctx);
    this.#methods = new KeyMethods(this.#parts);
    const { storage, timers } = this.#parts;
    if (!storage.isEmpty) void ctx.blockConcurrencyWhile(() => timers.readAlarm());
  }

  limit(...args: Parameters<LimiterMethods["limit"]>): ReturnType<LimiterMethods["limit"]> {
    return this.#methods.limit(...args);
  }

  limitCall(...args: Parameters<LimiterMethods["limitCall"]>): ReturnType<LimiterMethods["limitCall"]> {
    return this.#methods.limitCall(...args);
  }

  setUsed(...args: Parameters<LimiterMethods["setUsed"]>): ReturnType<LimiterMethods["setUsed"]> {
    return this.#methods.setUsed(...args);
  }

  reserve(...args: Parameters<LimiterMethods["reserve"]>): ReturnType<LimiterMethods["reserve"]> {
    return this.#methods.reserve(...args);
  }

  giveBack(...args: Parameters<LimiterMethods["giveBack"]>): ReturnType<LimiterMethods["giveBack"]> {
    return this.#methods.giveBack(...args);
  }

  refund(...args: Parameters<LimiterMethods["refund"]>): ReturnType<LimiterMethods["refund"]> {
    return this.#methods.refund(...args);
  }

  refundCharge(
    ...args: Parameters<LimiterMethods["refundCharge"]>
  ): ReturnType<LimiterMethods["refundCharge"]> {
    return this.#methods.refundCharge(...args);
  }

  hold(...args: Parameters<LimiterMethods["hold"]>): ReturnType<LimiterMethods["hold"]> {
    return this.#methods.hold(...args);
  }

  settle(...args: Parameters<LimiterMethods["settle"]>): ReturnType<LimiterMethods["settle"]> {
    return this.#methods.settle(...args);
  }

  cancel(...args: Parameters<LimiterMethods["cancel"]>): ReturnType<LimiterMethods["cancel"]> {
    return this.#methods.cancel(...args);
  }

  /** Leases units for as long as the caller keeps what comes back; without waiting, which `fetch` does. */
  acquire(call: AcquireCall): Promise<Attached> {
    return acquireAttached(this.#parts.ask, call);
  }

  /** Makes a lease last that was granted to a caller who might have gone. */
  confirm(policy: string, key: string, id: string, ttlMs: number, isAttached: boolean): Promise<Attached> {
    return confirmLease(this.#parts.ask, { policy, key, id, ttlMs, isAttached });
  }

  renew(...args: Parameters<LimiterMethods["renew"]>): ReturnType<LimiterMethods["renew"]> {
    return this.#methods.renew(...args);
  }

  release(...args: Parameters<LimiterMethods["release"]>): ReturnType<LimiterMethods["release"]> {
    return this.#methods.release(...args);
  }

  releaseCall(...args: Parameters<LimiterMethods["releaseCall"]>): ReturnType<LimiterMethods["releaseCall"]> {
    return this.#methods.releaseCall(...args);
  }

  keys(...args: Parameters<LimiterMethods["keys"]>): ReturnType<LimiterMethods["keys"]> {
    return this.#methods.keys(...args);
  }

  countKeys(...args: Parameters<LimiterMethods["countKeys"]>): ReturnType<LimiterMethods["countKeys"]> {
    return this.#methods.countKeys(...args);
  }

  shedding(...args: Parameters<LimiterMethods["shedding"]>): ReturnType<LimiterMethods["shedding"]> {
    return this.#methods.shedding(...args);
  }

  peek(...args: Parameters<LimiterMethods["peek"]>): ReturnType<LimiterMethods["peek"]> {
    return this.#methods.peek(...args);
  }

  reset(...args: Parameters<LimiterMethods["reset"]>): ReturnType<LimiterMethods["reset"]> {
    return this.#methods.reset(...args);
  }

  /** Writes all that memory knows better than storage: nothing is lost if the process ends now. */
  rest(): void {
    this.#parts.rest();
  }

  override fetch(request: Request): Promise<Response> {
    return answerRequest(request, this.#parts);
  }

  override webSocketClose(socket: WebSocket): void {
    this.#parts.sockets.closed(socket);
  }

  override webSocketError(socket: WebSocket): void {
    this.#parts.sockets.closed(socket);
  }

  /** Forgets keys that are whole again and answers that no longer stand; deletes everything when nothing is left. */
  override alarm(): Promise<void> {
    return this.#parts.cleanUp();
  }
}
