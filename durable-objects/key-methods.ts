import type { PolicyRevision } from "../core/policies/policy-revision.ts";
import type { AnswerText, KeyCount, KeyList, ListedKey, Peeked } from "../core/protocol/answers.ts";
import type { Cost } from "../core/protocol/cost.ts";
import { publicDecision } from "../core/protocol/decision.ts";
import {
  type Batch,
  type HoldCall,
  type KeysCall,
  type LimitCall,
  type RefundCall,
  type ReleaseCall,
  type ReserveCall,
  type Returned,
  type SetCall,
  type SheddingCall,
  unsupportedOf,
  type Versioned,
} from "../core/protocol/messages.ts";
import type { LimiterMethods, MaybePromise } from "../core/protocol/object-methods.ts";
import { answerBatch } from "./batches.ts";
import { closeLost, releaseLease, type ReleasingHost } from "./connections/lease-sockets.ts";
import type { KeyParts } from "./key-parts.ts";
import type { KeyState } from "./keys/key-state.ts";
import { isEmpty, isUnrecorded } from "./keys/record-writing.ts";
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

  limit(policy: string, key: string, cost: Cost, idempotencyKey?: string): MaybePromise<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.limit(keyState, { cost, idempotencyKey }, nowMs),
    );
  }

  limitCall({ policy, key, ...call }: LimitCall): MaybePromise<AnswerText> {
    const { debits } = this.#parts;
    const ask: Parameters<AskKey>[2] = (operations, keyState, nowMs) =>
      call.force === true ? debits.force(keyState, call, nowMs) : operations.limit(keyState, call, nowMs);
    return this.#answer(policy, key, ask, call);
  }

  setUsed({ policy, key, ...call }: SetCall): MaybePromise<AnswerText> {
    const { debits } = this.#parts;
    const ask: Parameters<AskKey>[2] = (operations, keyState, nowMs) =>
      debits.setUsed(keyState, call, nowMs) ?? operations.peek(keyState, nowMs);
    return this.#answer(policy, key, ask, call);
  }

  reserve(message: ReserveCall | Batch): MaybePromise<AnswerText> {
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

  refund(policy: string, key: string, units: Cost, idempotencyKey: string): MaybePromise<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.refund(keyState, units, idempotencyKey, undefined, nowMs),
    );
  }

  refundCharge({
    policy,
    key,
    units,
    idempotencyKey,
    charge,
    ...version
  }: RefundCall): MaybePromise<AnswerText> {
    return this.#answer(
      policy,
      key,
      (operations, keyState, nowMs) => operations.refund(keyState, units, idempotencyKey, charge, nowMs),
      version,
    );
  }

  hold({ policy, key, ...call }: HoldCall): MaybePromise<AnswerText> {
    return this.#answer(
      policy,
      key,
      (operations, keyState, nowMs) => operations.hold(keyState, call, nowMs),
      call,
    );
  }

  settle(policy: string, key: string, id: string, used: Cost): MaybePromise<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) =>
      operations.settle(keyState, id, used, nowMs),
    );
  }

  cancel(policy: string, key: string, id: string): MaybePromise<AnswerText> {
    return this.#answer(policy, key, (operations, keyState, nowMs) => operations.cancel(keyState, id, nowMs));
  }

  renew(policy: string, key: string, id: string, ttlMs?: number): MaybePromise<AnswerText> {
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

  shedding({ policy, key, ...call }: SheddingCall): MaybePromise<AnswerText> {
    const tell = (_: unknown, keyState: KeyState, nowMs: number) =>
      this.#parts.shedders.tell(keyState, call, nowMs);
    return this.#answer(policy, key, tell, call);
  }

  tell(policy: string, key: string, inForce: PolicyRevision): void {
    this.#parts.hear(policy, key, { inForce });
    // Who waits for units of the key is served by it. A key that is not in memory has nobody who waits.
    if (this.#parts.cache.has(key)) void this.#parts.ask(policy, key, () => undefined);
  }

  peek(policy: string, key: string): MaybePromise<Peeked> {
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
  #answer(
    policy: string,
    key: string,
    ask: Parameters<AskKey>[2],
    call: Versioned = {},
  ): MaybePromise<AnswerText> {
    this.#parts.hear(policy, key, call);
    const answer = unsupportedOf(call) ?? this.#parts.ask(policy, key, ask);
    return answer instanceof Promise ? answer.then((late) => JSON.stringify(late)) : JSON.stringify(answer);
  }
}

/** So many keys are looked at in one go, so that other calls do not wait for a long list. */
const KEYS_A_TURN = 50;

type Parts = Pick<KeyParts, "storage" | "cache" | "ask" | "policies">;

/**
 * The next keys of this object, with what a look at each of them says: keys with a record, and keys that memory alone
 * knows of. A key that is whole again is among them until it is forgotten.
 */
async function listKeys(
  { storage, cache, ask, policies }: Parts,
  { policy: name, prefix = "", after, most = 0 }: KeysCall,
): Promise<KeyList> {
  // One more than is asked for tells whether there are more.
  const stored = storage.keysAfter(prefix, after, most + 1);
  const others = unrecorded(cache, prefix).filter((key) => after === undefined || byBytes(key, after) > 0);
  const found = others.length === 0 ? stored : [...stored, ...others].toSorted(byBytes).slice(0, most + 1);
  const keys: ListedKey[] = [];
  for (const [index, key] of found.slice(0, most).entries()) {
    if (index % KEYS_A_TURN === KEYS_A_TURN - 1) await new Promise((resolve) => setTimeout(resolve, 0));
    const policy = cache.policyOf(name, policies.get(name), key);
    // It may have moved meanwhile: then it is listed there.
    if (policy === undefined || storage.moves.isAway(policy, key)) continue;
    const peeked = await ask(name, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
    const { limit, remaining = 0, resetAfterMs = 0 } = publicDecision(policy, key, peeked);
    const { outstanding, holds, leases } = peeked;
    keys.push({ key, limit, remaining, resetAfterMs, outstanding, holds, leases });
  }
  return { keys, hasMore: found.length > most };
}

/** How many keys this object knows of. */
function countKeys(
  { storage, cache }: Pick<Parts, "storage" | "cache">,
  { prefix = "" }: KeysCall,
): KeyCount {
  return { count: storage.countKeys(prefix) + unrecorded(cache, prefix).length };
}

/** Keys with this prefix of which memory alone knows, in no order. */
function unrecorded(cache: Parts["cache"], prefix: string): string[] {
  const keys: string[] = [];
  for (const state of cache.states)
    if (state.key.startsWith(prefix) && isUnrecorded(state) && !state.isWritten && !isEmpty(state))
      keys.push(state.key);
  return keys;
}

/** The order of two keys in storage: that of their bytes in UTF-8, which is that of their code points. */
function byBytes(one: string, other: string): number {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  // Where they differ in the second half of a code point, the first half is the same.
  const pointOf = (text: string) => text.codePointAt(at) ?? -1;
  return pointOf(one) - pointOf(other);
}
