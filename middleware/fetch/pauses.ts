/** Pauses that servers request with Retry-After, for all requests of a process that share a limiter and a name. */

/** The most pauses of one limiter. The oldest is forgotten: its partner answers 429 again if necessary. */
const MAX_PAUSES = 10_000;

/** When partners' pauses end, for all calls in this process that share a limiter and a key. */
const pauses = new WeakMap<object, Map<string, number>>();

/** @param name what pauses, among all that use the limiter */
export function pause(limiter: object, name: string, untilMs: number): void {
  const ofLimiter = pauses.get(limiter) ?? new Map<string, number>();
  pauses.set(limiter, ofLimiter);
  const lastsUntilMs = Math.max(untilMs, ofLimiter.get(name) ?? 0);
  ofLimiter.delete(name);
  const [oldest] = ofLimiter.keys();
  if (oldest !== undefined && ofLimiter.size >= MAX_PAUSES) ofLimiter.delete(oldest);
  ofLimiter.set(name, lastsUntilMs);
}

/** How long requests are still to wait, in milliseconds; 0: not at all. */
export function pausedForMs(limiter: object, name: string, nowMs: number): number {
  return Math.max(0, (pauses.get(limiter)?.get(name) ?? 0) - nowMs);
}

/** The three forms of RFC 9110 begin with a day of the week, and have a time. */
const HTTP_DATE = /^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? .*\d\d:\d\d:\d\d/;

/** The pause that the server requests, in milliseconds; `undefined`: none, or one of unknown length. */
export function pauseOf(response: Pick<Response, "status" | "headers">, nowMs: number): number | undefined {
  if (response.status !== 429 && response.status !== 503) return undefined;
  const retryAfter = response.headers.get("retry-after")?.trim() ?? "";
  if (/^\d{1,12}$/.test(retryAfter)) return Number(retryAfter) * 1_000;
  // `Date.parse` takes "-5" and "1.5" for days in 2001.
  const atMs = HTTP_DATE.test(retryAfter) ? Date.parse(retryAfter) : Number.NaN;
  if (Number.isNaN(atMs)) return undefined;
  // The server's clock may differ from this one, so its own date counts.
  const serverMs = Date.parse(response.headers.get("date") ?? "");
  const leftMs = atMs - (Number.isNaN(serverMs) ? nowMs : serverMs);
  // A past instant is no pause of 0 ms: requests would be repeated without end.
  return leftMs < 0 ? undefined : leftMs;
}
