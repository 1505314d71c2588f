import type { AcquireCall } from "../core/protocol/messages.ts";
import type { Attached, LimiterMethods } from "../core/protocol/object-methods.ts";
import { acquireAttached, confirmLease } from "./connections/lease-handle.ts";
import { KeyMethods } from "./key-methods.ts";
import type { ObjectParts } from "./object-parts.ts";

/**
 * The calls on keys that are here: load, decide, save, answer. Nothing is awaited between reading and writing, so there
 * are no locks; and what an answer says has been written, or is covered by what was, before it leaves (the output gate
 * holds it back until the write is durable).
 *
 * What may be asked of keys is in key-methods.ts. Here are leases that end with their callers, which take the platform.
 */
export class KeyCalls extends KeyMethods implements Omit<LimiterMethods, "reserve"> {
  readonly #parts: ObjectParts;

  constructor(parts: ObjectParts) {
    super(parts);
    this.#parts = parts;
  }

  /** Leases units for as long as the caller keeps what comes back; without waiting, which `fetch` does. */
  acquire(call: AcquireCall): Promise<Attached> {
    this.#parts.hear(call.policy, call.key, call);
    return acquireAttached(this.#parts, call);
  }

  /** Makes a lease last that was granted to a caller who might have gone. */
  confirm(policy: string, key: string, id: string, ttlMs: number, isAttached: boolean): Promise<Attached> {
    return confirmLease(this.#parts, { policy, key, id, ttlMs, isAttached });
  }
}
