/** The only place of the dashboard that reads a clock. */

export function readClockMs(): number {
  return Date.now();
}

export function instantText(atMs: number): string {
  return new Date(atMs).toISOString();
}
