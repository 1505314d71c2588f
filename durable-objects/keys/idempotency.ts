import type { KeyState } from "./key-state.ts";
import type { AnswerText, Conflict } from "../../core/protocol/messages.ts";
import type { Claim, Storage } from "../storage/storage.ts";
import { ANSWERS_DROPPED, MOST_ANSWERS } from "../storage/answers.ts";

/** A call that must be charged once however often it is made. */
export interface Idempotent {
  readonly idempotencyKey: string;
  /** The rest of the request in words, to tell another request under the same key. Stored: never reword. */
  readonly request: string;
}

/** An answer stands for this long, or until the quota is whole again, whichever is later. */
export const REMEMBERED_MS = 24 * 60 * 60 * 1_000;

/** What was answered before under this idempotency key, if it still stands. Denials changed nothing and were not kept. */
export function findAnswer(
  storage: Storage,
  keyState: KeyState,
  { idempotencyKey, request }: Idempotent,
  nowMs: number,
  isWhole: () => boolean,
): AnswerText | undefined {
  const found = storage.answers.read(keyState.key, idempotencyKey);
  if (found === undefined) return undefined;
  if (nowMs >= found.atMs + REMEMBERED_MS && isWhole()) return undefined;
  if (found.request !== request) {
    return JSON.stringify({ conflict: { request: found.request } } satisfies Conflict);
  }
  return found.answer;
}

/** Remembers an answer, forgetting the key's oldest ones when there are too many. */
export function rememberAnswer(
  storage: Storage,
  keyState: KeyState,
  { idempotencyKey, request }: Idempotent,
  answer: AnswerText,
  nowMs: number,
): void {
  const { key } = keyState;
  storage.answers.write(key, idempotencyKey, { request, answer, atMs: nowMs });
  keyState.answers = keyState.answers === undefined ? storage.answers.count(key) : keyState.answers + 1;
  if (keyState.answers <= MOST_ANSWERS) return;
  // The count in memory misses what the alarm has forgotten since.
  keyState.answers = storage.answers.count(key);
  if (keyState.answers <= MOST_ANSWERS) return;
  storage.answers.removeOldest(key);
  keyState.answers -= ANSWERS_DROPPED;
}

/** What a hold's end is remembered as, under its own id: another settling is answered as the first was. */
export const HOLD_ENDED = "end of a hold";
/** In place of the answer to a settling that never came. */
export const EXPIRED = "expired";
export const CANCELLED = "cancelled";

/** Forgets an expired hold or lease. That a hold was there is remembered, for who settles too late. */
export function endExpired(storage: Storage, keyState: KeyState, claim: Claim): void {
  storage.removeClaim(keyState.key, claim.id);
  if (claim.kind === "lease" || claim.isProvisional === true) return;
  const ended = { idempotencyKey: claim.id, request: HOLD_ENDED };
  rememberAnswer(storage, keyState, ended, EXPIRED, claim.expiresAtMs);
}
