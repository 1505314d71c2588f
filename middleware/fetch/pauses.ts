/** The pauses that partners have asked for. All calls in this process that share a limiter and a key keep them. */

/** The most pauses of one limiter. The oldest goes: its partner will say again when it is left too little alone. */
const MAX_PAUSES = 10_000;

const pauses = new WeakMap<object, Map<string, number>>();

/** How long the pause of a key lasts still, in milliseconds; 0: there is none. */
export function pauseLeftMs(limiter: object, name: string, nowMs: number): number {
  return Math.max(0, (pauses.get(limiter)?.get(name) ?? 0) - nowMs);
}

/** Begins a pause. One that lasts longer already goes on. */
export function pause(limiter: object, name: string, untilMs: number): void {
  const ofLimiter = pauses.get(limiter) ?? new Map<string, number>();
  pauses.set(limiter, ofLimiter);
  const lastsUntilMs = Math.max(untilMs, ofLimiter.get(name) ?? 0);
  ofLimiter.delete(name);
  const [oldest] = ofLimiter.keys();
  if (oldest !== undefined && ofLimiter.size >= MAX_PAUSES) ofLimiter.delete(oldest);
  ofLimiter.set(name, lastsUntilMs);
}
