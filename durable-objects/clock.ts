/**
 * The only place that reads a clock. Everything below takes `nowMs` as an argument.
 *
 * Deployed, the clock stands still within one synchronous run and moves at every entry; locally it
 * always moves. So each entry reads it once.
 *
 * @returns milliseconds since the Unix epoch, an integer
 */
export function readClockMs(): number {
  return Date.now();
}

/**
 * The only place that makes randomness, for ids that nobody can guess.
 *
 * @returns 128 random bits as 22 characters of base64url
 */
export function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
