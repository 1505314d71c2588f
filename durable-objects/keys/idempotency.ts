import type { Conflict, Decided } from "../../core/protocol/messages.ts";
import { ANSWERS_DROPPED, MOST_ANSWERS } from "../storage/answers.ts";
import type { Claim } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import type { KeyState } from "./key-state.ts";

/** A call that must be charged once however often it is made. */
export interface Idempotent {
  readonly idempotencyKey: string;
  /** The rest of the request in words, to tell another request under the same key. Stored: never reword. */
  readonly request: string;
}

/** What is remembered: an answer, or how a hold ended that was never settled. */
export type Remembered = Decided | Ending;
export type Ending = "expired" | "cancelled";

/** An answer stands for this long, or until the quota is whole again, whichever is later. */
export const REMEMBERED_MS = 24 * 60 * 60 * 1_000;

/** The end of a hold is remembered under its own id, so that another settling is answered as the first was. Stored. */
export function endOfHold(id: string): Idempotent {
  return { idempotencyKey: id, request: "end of a hold" };
}

/** What was answered before under this idempotency key, if it still stands. Denials changed nothing and were not kept. */
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

/** Remembers an answer, forgetting the key's oldest ones when there are too many. */
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
  // The count in memory misses what the alarm has forgotten since.
  const counted = storage.answers.count(key);
  keyState.noteAnswers(counted);
  if (counted <= MOST_ANSWERS) return;
  storage.answers.removeOldest(key);
  keyState.noteAnswers(counted - ANSWERS_DROPPED);
}

/** Forgets an expired hold or lease. That a hold was there is remembered, for who settles too late. */
export function endExpired(storage: Storage, keyState: KeyState, claim: Claim): void {
  storage.removeClaim(keyState.key, claim.id);
  if (claim.kind === "lease" || claim.isProvisional === true) return;
  rememberAnswer(storage, keyState, endOfHold(claim.id), "expired", claim.expiresAtMs);
}

/** Endings are stored as they are, answers as JSON. For ever. */
function textOf(remembered: Remembered): string {
  return typeof remembered === "string" ? remembered : JSON.stringify(remembered);
}

function rememberedIn(text: string): Remembered {
  return text === "expired" || text === "cancelled" ? text : (JSON.parse(text) as Decided);
}
