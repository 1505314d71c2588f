/**
 * Idempotency keys belong to whoever made the call: a token by its name, a service binding by its props. So an object
 * and a pool know an idempotency key with its caller before it, as `ownKey` writes it. Stored: never change.
 */
import { hash } from "./hash.ts";

/** Callers' names are JSON text, which has no control characters. So no two pairs of caller and key are alike. */
const MARK = "\u0001";
/** Sorts right after everything that begins with `MARK`. */
const AFTER_MARK = "\u0002";

/** The idempotency key with its caller. Without a caller (a client of one's own) it stays as it is. */
export function ownKey(caller: string | undefined, idempotencyKey: string): string {
  return caller === undefined ? idempotencyKey : `${MARK}${caller}${MARK}${idempotencyKey}`;
}

/**
 * The idempotency key without its caller, as it was stored before callers were told apart; `undefined`: it has none. A
 * caller may write its key as another caller's own key is stored. It is not looked for: it would find that one's answer.
 */
export function sharedKey(own: string): string | undefined {
  const written = writtenKey(own);
  return written === own || written.startsWith(MARK) ? undefined : written;
}

/** The idempotency key as its caller wrote it. */
export function writtenKey(own: string): string {
  const end = own.startsWith(MARK) ? own.indexOf(MARK, 1) : -1;
  return end < 0 ? own : own.slice(end + 1);
}

/** The caller of an own key, as it is written before the key; `undefined`: it has none. */
export function callerIn(own: string): string | undefined {
  return own.startsWith(MARK) ? own.slice(0, own.indexOf(MARK, 1)) : undefined;
}

/** All idempotency keys of the caller that an own key belongs to: from the first, included, to the second, not. */
export type KeyRange = readonly [from: string, to: string];

export function rangeOf(own: string): KeyRange {
  const end = own.startsWith(MARK) ? own.indexOf(MARK, 1) : -1;
  // Those without a caller, and what older versions stored.
  if (end < 0) return [AFTER_MARK, "\u{10FFFF}"];
  const caller = own.slice(0, end);
  return [`${caller}${MARK}`, `${caller}${AFTER_MARK}`];
}

/** So many characters of base64url, 24 bits, begin the id of a hold. The 108 bits after them nobody can guess. */
const HOLD_MARK = 4;
const BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/**
 * The id of a caller's hold, made of a random one. It begins alike for all holds of a caller, since the end of a hold is
 * remembered under its id, and whoever asks for the end need not be who held. So a caller's ends can be counted.
 */
export function ownHoldId(caller: string | undefined, id: string): string {
  const mark = hash(caller ?? "");
  const digits = Array.from({ length: HOLD_MARK }, (_, index) => BASE64URL[(mark >>> (6 * index)) & 63]);
  return `${digits.join("")}${id.slice(HOLD_MARK)}`;
}

/** The ids of all holds of the caller that held this one. */
export function rangeOfEnds(holdId: string): KeyRange {
  const mark = holdId.slice(0, HOLD_MARK);
  // No character of an id sorts after this one.
  return [mark, `${mark}\u007f`];
}

/** How long a key may be. */

/** The longest key, in bytes of UTF-8. */
export const MAX_KEY_BYTES = 512;

/** Whether a text is no longer than a key may be, and has no half of a character. */
export function isKeySized(text: string): boolean {
  // A UTF-16 unit takes at most three bytes, so short text need not be encoded.
  if (text.length > MAX_KEY_BYTES || !text.isWellFormed()) return false;
  return text.length * 3 <= MAX_KEY_BYTES || new TextEncoder().encode(text).length <= MAX_KEY_BYTES;
}
