import type { PolicyLookup } from "../../core/policies/policy.ts";
import type { AnswerPlace, Swept } from "../storage/answers.ts";
import type { SweptKey } from "../storage/records.ts";
import { KEYS_SWEPT, type KeyStorage } from "../storage/storage.ts";
import { FAILED_AGAIN_MS, FORGET_AFTER_MS, UNKNOWN_KEPT_MS } from "../storage/sweeps.ts";
import { REMEMBERED_MS } from "./idempotency.ts";
import type { KeyCache } from "./key-cache.ts";
import type { Timers } from "./key-store.ts";

/** Calls may come in after this many keys. */
const KEYS_A_TURN = 50;
const FIRST: AnswerPlace = { key: "", idempotencyKey: "" };

interface GarbageHost {
  readonly storage: KeyStorage;
  readonly cache: KeyCache;
  readonly policies: PolicyLookup;
  readonly timers: Pick<Timers, "nowMs">;
}

/**
 * An alarm: renews sockets' leases, sends notices, collects garbage, and deletes everything if nothing is left. The runtime
 * drops an alarm that failed six times: no failure here is thrown, and a repeated alarm first sets the next.
 *
 * @param isRepeated whether this alarm came before, and did not end
 */
export async function cleaned(
  host: GarbageHost & { readonly timers: Timers },
  wakeOthers: () => Promise<number>,
  isRepeated = false,
): Promise<void> {
  const { storage, timers } = host;
  timers.alarmCame();
  const failed = (error: unknown) => {
    console.error(`an alarm has failed, and comes again: ${String(error)}`);
    const nowMs = timers.nowMs();
    timers.alarmBy(nowMs + FAILED_AGAIN_MS, nowMs);
    return nowMs + FAILED_AGAIN_MS;
  };
  if (isRepeated) failed("it did not end");
  const againMs = await wakeOthers().catch(failed);
  const work = collectGarbage(host);
  try {
    let step = work.next();
    for (; step.done !== true; step = work.next()) await new Promise((resolve) => setTimeout(resolve, 0));
    // No call comes between the last step and this.
    const nowMs = timers.nowMs();
    if (step.value === undefined) await storage.removeAll().then(() => timers.alarmCame());
    const nextMs = Math.min(step.value ?? Infinity, againMs);
    if (nextMs < Infinity) timers.alarmBy(nextMs, nowMs, againMs < Infinity ? 0 : undefined);
  } catch (error) {
    failed(error);
  }
}

/** Deletes untouched keys and invalid answers. Returns when the next is due; `undefined`: nothing is left. */
export function* collectGarbage(host: GarbageHost): Generator<undefined, number | undefined> {
  const { storage, cache, policies, timers } = host;
  if (storage.isEmpty) return undefined;
  const { sweeps } = storage;
  const restsUntilMs = sweeps.restsUntilMs(timers.nowMs());
  if (restsUntilMs !== undefined) return restsUntilMs;
  sweeps.begin();
  yield* sweepKeys(host);
  for (let after: AnswerPlace | undefined = FIRST; after !== undefined;) {
    if (after !== FIRST) yield;
    const swept: Swept = storage.answers.sweep(after, timers.nowMs() - REMEMBERED_MS);
    // An answer is read with the record of its key.
    sweeps.leave(2 * swept.left, swept.oldestMs + REMEMBERED_MS);
    after = swept.last;
  }
  const moves = storage.moves.sweep(timers.nowMs());
  sweeps.leave(moves.left, moves.dueMs + FORGET_AFTER_MS);
  yield* forgetUnrecorded(host);
  // While a crash allowance has an effect, memory may know keys without a record.
  const allowanceEndsMs = storage.allowances.endsAtMs(policies);
  if (allowanceEndsMs > timers.nowMs()) sweeps.leave(1, allowanceEndsMs + FORGET_AFTER_MS);
  const dueMs = sweeps.end(timers.nowMs());
  if (dueMs === undefined && storage.loneKey !== undefined) cache.forget(storage.loneKey);
  return dueMs;
}

/** Reads every key's record, and deletes untouched keys. A failing key does not stop the others. */
function* sweepKeys(host: GarbageHost): Generator<undefined, void> {
  const { storage, policies, timers } = host;
  let due = 0;
  for (let after: string | undefined = ""; after !== undefined;) {
    if (after !== "") yield;
    const keys = storage.keysSwept(after);
    for (const swept of keys) {
      let dueMs: number | undefined = swept.wholeAtMs + FORGET_AFTER_MS;
      if (policies.isRemoved?.(swept.policy) === true || swept.wholeAtMs <= timers.nowMs()) {
        due += 1;
        if (due % KEYS_A_TURN === 0) yield;
        try {
          dueMs = sweepKey(host, swept, timers.nowMs());
        } catch (error) {
          console.error(`policy ${swept.policy}: a key could not be swept: ${String(error)}`);
          dueMs = timers.nowMs() + FAILED_AGAIN_MS;
        }
      }
      if (dueMs !== undefined) storage.sweeps.leave(1, dueMs);
    }
    after = keys.length < KEYS_SWEPT ? undefined : keys.at(-1)?.key;
  }
}

/** Deletes a key of a removed or unknown policy, or one that is untouched. Or returns when to read it again. */
function sweepKey(host: GarbageHost, swept: SweptKey, nowMs: number): number | undefined {
  const { storage, policies } = host;
  if (policies.isRemoved?.(swept.policy) === true) return removeKey(storage, swept.key);
  const isUnknown = policies.get(swept.policy) === undefined && (swept.versionAt ?? 0) === 0;
  return isUnknown ? keepUnknown(storage, swept, nowMs) : forgetKey(host, swept, nowMs);
}

/** Deletes a key's rows. An only key's record is deleted with everything else: alone it would cost a row. */
function removeKey(storage: KeyStorage, key: string): undefined {
  if (storage.loneKey !== key) storage.remove(key);
}

/** Deletes a key of an unknown policy after `UNKNOWN_KEPT_MS`, or returns when to read it again. */
function keepUnknown(storage: KeyStorage, { key, wholeAtMs }: SweptKey, nowMs: number): number | undefined {
  const ends = storage.claims.read(key).map(({ expiresAtMs }) => expiresAtMs);
  const dueMs = ends.reduce((last, endMs) => Math.max(last, endMs), wholeAtMs) + UNKNOWN_KEPT_MS;
  return dueMs > nowMs ? dueMs : removeKey(storage, key);
}

/** Deletes a key if it is untouched. Otherwise returns when to read it again. */
function forgetKey(host: GarbageHost, { policy: name, key }: SweptKey, nowMs: number): number | undefined {
  const { storage, cache, policies } = host;
  const policy = policies.get(name);
  // No call opens a key that was given away, and the rest of it is untouched.
  if (policy?.objectsBefore !== undefined && storage.moves.isAway(key)) return removeKey(storage, key);
  // Memory may know better than the record, or the policy has changed since.
  const keyState = cache.open(name, policy, key, nowMs);
  if (!keyState.isWhole(nowMs)) {
    const wholeMs = cache.write(keyState, keyState.accounts, nowMs);
    cache.take(keyState, keyState.accounts, nowMs, true);
    return wholeMs + FORGET_AFTER_MS;
  }
  // An only key is deleted with everything else. Until then it stays in memory: reading its record again
  // would presume units.
  if (storage.loneKey === key) return undefined;
  storage.atomically(() => {
    for (const claim of keyState.expired) cache.answers.endExpired(keyState, claim);
    storage.remove(key);
  });
  cache.drop(keyState);
  return undefined;
}

function* forgetUnrecorded({ cache, timers }: GarbageHost): Generator<undefined, void> {
  for (const [index, keyState] of [...cache.states].entries()) {
    if (index % KEYS_A_TURN === KEYS_A_TURN - 1) yield;
    const isUsed = keyState.claims.size + keyState.holders.size > 0;
    if (!isUsed && keyState.isUnrecorded && keyState.isWhole(timers.nowMs())) cache.drop(keyState);
  }
}
