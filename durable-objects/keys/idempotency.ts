import type { Conflict, Decided } from "../../core/protocol/messages.ts";
import { ANSWERS_DROPPED, MOST_ANSWERS } from "../storage/answers.ts";
import type { Claim } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import type { KeyState } from "./key-state.ts";

/** A call that is charged once, also when it is sent again. */
export interface Idempotent {
  readonly idempotencyKey: string;
  /** The request in words, to tell another request under the same idempotency key. Stored: never reword. */
  readonly request: string;
}

/** What is remembered: an answer or, when a hold ended without being settled, how it ended. */
export type Remembered = Decided | Ending;
export type Ending = "expired" | "cancelled";

/** An answer is valid for this many milliseconds, or until the key is whole again, whichever is later. */
export const REMEMBERED_MS = 24 * 60 * 60 * 1_000;

/** The end of a hold is remembered under the hold's id, so a repeated settle is answered as the first was. Stored. */
export function endOfHold(id: string): Idempotent {
  return { idempotencyKey: id, request: "end of a hold" };
}

/**
 * The earlier answer under this idempotency key; `undefined`: there is none that is still valid. A denial that changed
 * nothing was not remembered.
 */
export function findAnswer(
  storage: Storage,
  keyState: KeyState,
  { idempotencyKey, request }: Idempotent,
  nowMs: number,
): Remembered | Conflict | undefined {
  const found = storage.answers.read(keyState.key, idempotencyKey);
  if (found === undefined) return undefined;
  if (nowMs >= found.atMs + REMEMBERED_MS && keyState.isWhole(nowMs)) return undefined;
  if (found.request !== request) return { conflict: { request: found.request } };
  return rememberedIn(found.answer);
}

/** Remembers an answer, and deletes the key's oldest ones when there are more than `MOST_ANSWERS`. */
export function rememberAnswer(
  storage: Storage,
  keyState: KeyState,
  { idempotencyKey, request }: Idempotent,
  remembered: Remembered,
  nowMs: number,
): void {
  const { key } = keyState;
  storage.answers.write(key, idempotencyKey, { request, answer: textOf(remembered), atMs: nowMs });
  const answers = keyState.answers === undefined ? storage.answers.count(key) : keyState.answers + 1;
  keyState.noteAnswers(answers);
  if (answers <= MOST_ANSWERS) return;
  // The count in memory may be too high: the alarm deletes answers without telling the key.
  const counted = storage.answers.count(key);
  keyState.noteAnswers(counted);
  if (counted <= MOST_ANSWERS) return;
  storage.answers.removeOldest(key);
  keyState.noteAnswers(counted - ANSWERS_DROPPED);
}

/** Deletes an expired hold or lease. The end of a hold is remembered, for a caller who settles it too late. */
export function endExpired(storage: Storage, keyState: KeyState, claim: Claim): void {
  storage.removeClaim(keyState.key, claim.id);
  if (claim.kind === "lease" || claim.isProvisional === true) return;
  rememberAnswer(storage, keyState, endOfHold(claim.id), "expired", claim.expiresAtMs);
}

/** An ending is stored as it is, an answer as JSON. Stored: never change. */
function textOf(remembered: Remembered): string {
  return typeof remembered === "string" ? remembered : JSON.stringify(remembered);
}

function rememberedIn(text: string): Remembered {
  return text === "expired" || text === "cancelled" ? text : (JSON.parse(text) as Decided);
}
