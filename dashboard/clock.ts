/** The only place of the dashboard that reads a clock. */

export function readClockMs(): number {
  return Date.now();
}

export function instantText(atMs: number): string {
  return new Date(atMs).toISOString();
}

/** An instant in local time, as a field for a date and a time has it: `2026-11-22T18:00`. */
export function localText(instant: string): string {
  const atMs = Date.parse(instant);
  return instantText(atMs - new Date(atMs).getTimezoneOffset() * 60_000).slice(0, 16);
}
