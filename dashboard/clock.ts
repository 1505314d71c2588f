/** The only place of the dashboard that reads a clock. */

/** Now, in milliseconds since 1970. */
export function readClockMs(): number {
  return Date.now();
}

/** An instant as RFC 3339 writes it. */
export function instantText(atMs: number): string {
  return new Date(atMs).toISOString();
}
