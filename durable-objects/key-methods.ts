import type { InForce } from "../core/policies/in-force.ts";
import type { AnswerText, Peeked } from "../core/protocol/answers.ts";
import type { Batch } from "../core/protocol/batches.ts";
import type { Cost } from "../core/protocol/cost.ts";
import type { KeysCall } from "../core/protocol/keys-call.ts";
import {
  unsupportedOf,
  type HoldCall,
  type LimitCall,
  type RefundCall,
  type ReleaseCall,
  type ReserveCall,
  type Returned,
  type SetCall,
  type SheddingCall,
  type Versioned,
} from "../core/protocol/messages.ts";
import type { LimiterMethods, Maybe } from "../core/protocol/object-methods.ts";
import { answerBatch } from "./batches.ts";
import { closeLost, releaseLease, type ReleasingHost } from "./connections/releasing.ts";
import { countKeys, listKeys } from "./key-listing.ts";
import type { KeyParts } from "./key-parts.ts";
import type { KeyState } from "./keys/key-state.ts";
import type { AskKey } from "./operations/operations.ts";

/**
 * The methods of an object that need nothing of the platform. Operations return values. They become JSON text here and
 * nowhere else.
 */
export class KeyMethods implements Omit<LimiterMethods, "acquire" | "confirm" | "reserve"> {
  readonly #parts: KeyParts & ReleasingHost;

  constructor(parts: KeyParts & ReleasingHost) {
    this.#parts = parts;
  }

  limit(policy: string, key: string, cost: Cost, idempotencyKey?: string): Maybe<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.limit(keyState, { cost, idempotencyKey }, nowMs),
    );
  }

  limitCall({ policy, key, ...call }: LimitCall): Maybe<AnswerText> {
    const { debits } = this.#parts;
    const ask: Parameters<AskKey>[2] = (operations, keyState, nowMs) =>
      call.force === true ? debits.force(keyState, call, nowMs) : operations.limit(keyState, call, nowMs);
    return this.#answer(policy, key, ask, call);
  }

  setUsed({ policy, key, ...call }: SetCall): Maybe<AnswerText> {
    const { debits } = this.#parts;
    const ask: Parameters<AskKey>[2] = (operations, keyState, nowMs) =>
      debits.setUsed(keyState, call, nowMs) ?? operations.peek(keyState, nowMs);
    return this.#answer(policy, key, ask, call);
  }

  reserve(message: ReserveCall | Batch): Maybe<AnswerText> {
    if ("calls" in message) return answerBatch(message, this);
    const { policy, key, ...call } = message;
    const ask: Parameters<AskKey>[2] = (operations, keyState, nowMs) =>
      operations.reserve(keyState, call, nowMs);
    return this.#answer(policy, key, ask, call);
  }

  giveBack(policy: string, returned: readonly Returned[]): void {
    for (const each of returned)
      void this.#parts.ask(policy, each.key, (operations, keyState, nowMs) =>
        operations.giveBack(keyState, each, nowMs),
      );
  }

  refund(policy: string, key: string, units: Cost, idempotencyKey: string): Maybe<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.refund(keyState, units, idempotencyKey, undefined, nowMs),
    );
  }

  refundCharge({ policy, key, units, idempotencyKey, charge, ...version }: RefundCall): Maybe<AnswerText> {
    return this.#answer(
      policy,
      key,
      (operations, keyState, nowMs) => operations.refund(keyState, units, idempotencyKey, charge, nowMs),
      version,
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

  renew(policy: string, key: string, id: string, ttlMs?: number): Maybe<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.renew(keyState, id, ttlMs, nowMs),
    );
  }

  release(policy: string, key: string, id: string): Promise<boolean> {
    return releaseLease(this.#parts, policy, key, { id });
  }

  async releaseCall({ policy, key, ...call }: ReleaseCall): Promise<AnswerText> {
    const refused = unsupportedOf(call);
    if (refused !== undefined) return JSON.stringify(refused);
    const isReleased = await releaseLease(this.#parts, policy, key, call);
    return JSON.stringify(isReleased ? { released: true } : { missing: true });
  }

  async keys(call: KeysCall): Promise<AnswerText> {
    return JSON.stringify(unsupportedOf(call) ?? (await listKeys(this.#parts, call)));
  }

  countKeys(call: KeysCall): AnswerText {
    return JSON.stringify(unsupportedOf(call) ?? countKeys(this.#parts, call));
  }

  shedding({ policy, key, ...call }: SheddingCall): Maybe<AnswerText> {
    const tell = (_: unknown, keyState: KeyState, nowMs: number) =>
      this.#parts.shedders.tell(keyState, call, nowMs);
    return this.#answer(policy, key, tell, call);
  }

  tell(policy: string, key: string, inForce: InForce): void {
    this.#parts.hear(policy, key, { inForce });
    // Who waits for units of the key is served by it. A key that is not in memory has nobody who waits.
    if (this.#parts.cache.has(key)) void this.#parts.ask(policy, key, () => undefined);
  }

  peek(policy: string, key: string): Maybe<Peeked> {
    return this.#parts.ask(policy, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
  }

  async reset(policy: string, key: string): Promise<void> {
    await this.#parts.ask(policy, key, (operations, keyState, nowMs) => {
      const done = operations.reset(keyState, nowMs);
      const close = () => closeLost(this.#parts, policy, keyState);
      return done instanceof Promise ? done.then(close) : close();
    });
  }

  /** What a key answers, as it is sent: at once if it is there at once. A message of a higher protocol is refused. */
  #answer(policy: string, key: string, ask: Parameters<AskKey>[2], call: Versioned = {}): Maybe<AnswerText> {
    this.#parts.hear(policy, key, call);
    const answer = unsupportedOf(call) ?? this.#parts.ask(policy, key, ask);
    return answer instanceof Promise ? answer.then((late) => JSON.stringify(late)) : JSON.stringify(answer);
  }
}
