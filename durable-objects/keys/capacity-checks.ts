import { callerIn, type KeyRange, rangeOf } from "../../core/protocol/names.ts";
import { full, type Full } from "../../core/protocol/problems.ts";
import {
  type AnswerCount,
  MAX_ANSWERS,
  MAX_ANSWERS_LENGTH,
  MAX_ANSWERS_LENGTH_OF_CALLER,
} from "../storage/answers.ts";
import type { Claim } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import type { KeyState } from "./key-state.ts";

/** Whether there is room for what a call wants to keep. Nothing is touched by looking. */

/** The most holds and leases of one key: each decision looks at them (docs/performance.md has what that costs). */
export const MAX_CLAIMS_OF_KEY = 10_000;
/** The most in one object, and of one caller there. So no caller takes all places of an object that keys share. */
export const MAX_CLAIMS_OF_OBJECT = 20_000;
export const MAX_CLAIMS_OF_CALLER = 10_000;

/** However many calls a caller makes, its answers are remembered for this long, in milliseconds. */
const MIN_REMEMBERED_MS = 60_000;

/** The bound that new claims would pass; `undefined`: there is room for them. Renewed claims take none. */
export function claimsFull(storage: KeyStorage, keyState: KeyState, put: readonly Claim[]): Full | undefined {
  const { claims } = keyState;
  const begun = put.filter(({ id }) => !claims.has(id));
  if (begun.length === 0) return undefined;
  if (claims.size + begun.length > MAX_CLAIMS_OF_KEY) return full("key-claims", MAX_CLAIMS_OF_KEY);
  const { counts } = storage.claims;
  if (counts.all + begun.length > MAX_CLAIMS_OF_OBJECT) return full("object-claims", MAX_CLAIMS_OF_OBJECT);
  const { caller = "" } = begun[0] ?? {};
  // Claims of nobody in particular are those of older versions, and of clients that say nothing.
  if (caller !== "" && counts.of(caller) + begun.length > MAX_CLAIMS_OF_CALLER)
    return full("caller-claims", MAX_CLAIMS_OF_CALLER);
  return undefined;
}

/**
 * The bound that one more answer under an idempotency key would pass; `undefined`: there is room. The caller's oldest
 * answer makes room, but not one that the caller may still need for a call that it repeats.
 */
export function answersFull(
  storage: KeyStorage,
  keyState: KeyState,
  idempotencyKey: string,
  nowMs: number,
): Full | undefined {
  const range = rangeOf(idempotencyKey);
  const { lengths } = storage.answers;
  if (lengths.all >= MAX_ANSWERS_LENGTH) return full("object-answers", MAX_ANSWERS_LENGTH);
  if (callerIn(idempotencyKey) !== undefined && lengths.of(range) >= MAX_ANSWERS_LENGTH_OF_CALLER)
    return full("caller-object-answers", MAX_ANSWERS_LENGTH_OF_CALLER);
  const known = answersOf(storage, keyState, range);
  if (known.count < MAX_ANSWERS || nowMs >= known.oldestMs + MIN_REMEMBERED_MS) return undefined;
  return full("caller-answers", MAX_ANSWERS);
}

/**
 * How many answers the key has in the range of one caller. They are counted when the key has been loaded, and
 * again when they are said to be too many: the alarm deletes answers without telling the key.
 */
export function answersOf(storage: KeyStorage, { key, answers }: KeyState, range: KeyRange): AnswerCount {
  const known = answers.get(range[0]);
  if (known !== undefined && (known.count < MAX_ANSWERS || known.isExact)) return known;
  const counted = { ...storage.answers.count(key, range), isExact: true };
  answers.set(range[0], counted);
  return counted;
}
