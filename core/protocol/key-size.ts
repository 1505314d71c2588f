/** How long a key may be. */

/** The longest key, in bytes of UTF-8. */
export const MOST_KEY_BYTES = 512;

/** Whether a text is no longer than a key may be, and has no half of a character. */
export function isKeySized(text: string): boolean {
  // A UTF-16 unit takes at most three bytes, so short text need not be encoded.
  if (text.length > MOST_KEY_BYTES || !text.isWellFormed()) return false;
  return text.length * 3 <= MOST_KEY_BYTES || new TextEncoder().encode(text).length <= MOST_KEY_BYTES;
}
