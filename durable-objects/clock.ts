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
