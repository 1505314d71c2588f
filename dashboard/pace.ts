/** How often an open page calls the limiter. Each call is billed, and a tab may stay open for days. */

interface Pace {
  /** From so long without input on, in ms. */
  readonly idleMs: number;
  readonly everyMs: number;
}

/** The last one that has begun applies: a policy's page left open for a day makes 7,000 calls, not 240,000. */
const PACES: readonly Pace[] = [
  { idleMs: 3 * 60_000, everyMs: 30_000 },
  { idleMs: 60 * 60_000, everyMs: 300_000 },
];

/** The time between two calls, in ms: `everyMs`, or longer if the last input was `idleMs` ago. */
export function intervalMs(everyMs: number, idleMs: number): number {
  const pace = PACES.findLast((each) => idleMs >= each.idleMs);
  return Math.max(everyMs, pace?.everyMs ?? 0);
}

/** Whether a page without input for so long calls less often than a used one. */
export function isSlow(idleMs: number): boolean {
  return PACES.some((each) => idleMs >= each.idleMs);
}
