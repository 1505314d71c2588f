import { type Algorithm, configProblem, scaleLimit } from "../algorithm.ts";
import { afterUses, replay } from "../forecast.ts";

/**
 * Sliding window counter: about `limit` units in any window, counted with two counters, however large the limit is.
 *
 * A sliding log stores when each unit was taken. This stores only how many were taken in the current window since the
 * epoch and how many in the one before, and estimates as if those had come evenly:
 *
 *     estimate = before * (part of the window before that is still in view) + units
 *     a cost passes when  estimate + outstanding + cost  <=  limit
 *
 * Cloudflare ("How we built rate limiting capable of scaling to millions of domains", 2017) and Upstash's
 * `slidingWindow` count like this, and round. Here a unit is `windowMs` parts, so the estimate is an integer, and
 * waits and `remaining` are exact for it.
 *
 * Example: limit 50 per minute, 42 units in the minute before, and 18 in this one. After 15 s of it the estimate is
 * 42 * 45 / 60 + 18 = 49.5, so a unit is denied. Each second 0.7 leave the view, so 49 is reached after 714.3 ms: the
 * wait is 715 ms.
 *
 * The bound, in any interval of L ms: limit + limit * L / windowMs units, as of a token bucket with burst = limit. The
 * estimate is never over `limit` when a cost was admitted, and falls by at most before / windowMs <= limit / windowMs
 * units in a millisecond; what is admitted in an interval is how much the estimate rose and fell in it.
 *
 * The error, against "at most `limit` in any window", which a sliding log keeps:
 *
 * - It admits too many when the units of the window before came late. At worst, `limit` units come in the last
 *   millisecond of a window, and then one whenever one passes: a window that begins with that millisecond has
 *   2 * limit - ceil(2 * limit / windowMs). Never more: of A units in the window before and C in this one, the last
 *   admitted `e` ms after this one began, A * (windowMs - e) / windowMs + C <= limit. So A + C <= limit +
 *   A * e / windowMs. One window that has both has e <= windowMs - 2, and A <= limit.
 * - It denies wrongly when they came early. At worst, `limit` units come in the first millisecond of a window. When
 *   the next begins, a log has forgotten them and admits `limit`, and here none passes. The first passes
 *   ceil(windowMs / limit) ms later, and the full limit a window later.
 *
 * So a steady `limit` units per window may be denied now and then. Of n units a window, evenly, the estimate with a
 * call at `e`, rounded down, is below n * (windowMs - e) / windowMs + n * (e + 1) / windowMs + 1 = n + 1 +
 * n / windowMs. So a steady limit - 2 never is, if that is at most one a millisecond; limit - 1 may be.
 * bench/window-counter-error.ts measures other traffic. What it is bad at: exactness. Use it when a log of `limit`
 * units is too large, and a token bucket is not what was promised.
 *
 * Held units count in full until they are settled, and then in the window of that instant. So estimate + outstanding
 * never exceeds the limit, and the bound holds for used units even with late settlement.
 *
 * A charge returned by name leaves its counter. The estimate is linear, so it is then as if the charge had never been
 * made. Without a name units leave the current counter first, and then as many of the other one as count as much,
 * rounded down: a refund creates nothing.
 *
 * When the window of a policy changes, the estimate at the last use becomes the new window's count. Counting is exact
 * while limit * windowMs < 2^53. The Redis script does not implement it.
 */
export interface SlidingWindowCounterConfig {
  readonly limit: number;
  readonly windowMs: number;
}

type Config = SlidingWindowCounterConfig;
type State = StoredCounters;

export const slidingWindowCounter: Algorithm<Config, State> = {
  name: "sliding-window-counter",
  fields: { limit: "units", window: "duration" },

  configure(fields) {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    if (limit * windowMs <= MAX_PARTS) return { limit, windowMs };
    const max = maxCounted(windowMs);
    if (max === 0) return configProblem("window", "less than 2^53 ms");
    return configProblem(
      "limit",
      `at most ${max} with a window of ${windowMs} ms (limit * window may not reach 2^53, so that counting stays exact)`,
    );
  },

  capacity: (config) => config.limit,
  quota: ({ limit, windowMs }) => ({ units: limit, windowMs }),
  localDecisions: () => ({ admits: true, denies: true }),
  refillMs: ({ windowMs }) => 2 * windowMs,
  scale: scaleLimit,
  canCount: ({ windowMs }, units) => units * windowMs <= MAX_PARTS,

  decide(config, state, nowMs, cost, outstanding) {
    const { limit, windowMs } = config;
    const counters = countersAt(windowMs, countersUnder(config, state), nowMs);
    const freeParts = (limit - outstanding) * windowMs - partsAt(windowMs, counters, nowMs);
    if (cost > 0 && cost * windowMs > freeParts) {
      const atMs = passesAtMs(config, counters, cost + outstanding);
      return {
        allowed: false,
        reason: cost > limit ? "cost-over-limit" : "quota",
        retryAfterMs: atMs === Infinity ? null : atMs - nowMs,
        remaining: Math.max(0, Math.floor(freeParts / windowMs)),
        resetAfterMs: untouchedAfterMs(config, counters, nowMs),
      };
    }
    const units = counters.units + cost;
    const isUntouched = units + counters.before === 0;
    const after = cost === 0 ? state : stateOf(config, { ...counters, units }, state, nowMs);
    return {
      allowed: true,
      state: isUntouched ? undefined : after,
      remaining: Math.max(0, Math.floor(freeParts / windowMs) - cost),
      resetAfterMs: untouchedAfterMs(config, { ...counters, units }, nowMs),
    };
  },

  debit(config, state, nowMs, units) {
    if (units === 0) return state;
    const counters = countersAt(config.windowMs, countersUnder(config, state), nowMs);
    const max = maxCounted(config.windowMs);
    return stateOf(config, { ...counters, units: Math.min(counters.units + units, max) }, state, nowMs);
  },

  credit(config, state, nowMs, units, atMs) {
    if (state === undefined) return undefined;
    const { windowMs } = config;
    const counters = countersAt(windowMs, countersUnder(config, state), nowMs);
    const { startMs } = counters;
    const mayBeOf = (ms: number) => atMs === undefined || Math.floor(atMs / windowMs) * windowMs === ms;
    const [isCurrent, isBefore] = [mayBeOf(startMs), mayBeOf(startMs - windowMs)];
    if (!isCurrent && !isBefore) return state;
    const ofUnits = isCurrent ? Math.min(units, counters.units) : 0;
    const inViewMs = atMs === undefined ? Math.min(windowMs, windowMs - nowMs + startMs) : windowMs;
    const left = Math.floor(((units - ofUnits) * windowMs) / inViewMs);
    const ofBefore = isBefore ? Math.min(counters.before, left) : 0;
    const less = { startMs, units: counters.units - ofUnits, before: counters.before - ofBefore };
    return less.units + less.before === 0 ? undefined : stateOf(config, less, state, state.lastMs);
  },

  untouchedAtMs(config, state, uses) {
    const counters = countersUnder(config, afterUses(slidingWindowCounter, config, state, uses));
    return counters === undefined ? -Infinity : outOfViewMs(config, counters);
  },

  // Held units count in full. Used ones leave the view with their window.
  forecast: (config, state) =>
    replay(slidingWindowCounter, config, state, (_, __, outstanding) => outstanding === 0),

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const { windowMs } = config;
    const spare = (ahead - outstanding) * windowMs;
    const [kept, mine] = [countersUnder(config, stored as State | undefined), countersUnder(config, state)];
    const keptParts = (atMs: number) => partsAt(windowMs, countersAt(windowMs, kept, atMs), atMs);
    const parts = (atMs: number) => partsAt(windowMs, countersAt(windowMs, mine, atMs), atMs);
    // Both estimates fall on straight lines between these instants, and are 0 after the last.
    const [nextMs, starts] = [countersAt(windowMs, undefined, nowMs).startMs, [kept, mine]];
    const bendsMs = starts.flatMap((each) => [0, 1, 2].map((n) => (each?.startMs ?? nextMs) + n * windowMs));
    return [nowMs, ...bendsMs.filter((atMs) => atMs > nowMs)].every(
      (atMs) => keptParts(atMs) + spare >= parts(atMs),
    );
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as State,
  used(record) {
    const { units, before } = (record ?? { units: 0, before: 0 }) as Counters;
    return units + before;
  },
};

function stateOf({ windowMs }: Config, counters: Counters, state: State | undefined, nowMs: number): State {
  const { startMs, units, before } = counters;
  return { startMs, units, before, windowMs, lastMs: Math.max(state?.lastMs ?? nowMs, nowMs) };
}

function untouchedAfterMs(config: Config, counters: Counters, nowMs: number): number {
  return counters.units + counters.before === 0 ? 0 : outOfViewMs(config, counters) - nowMs;
}

function outOfViewMs({ windowMs }: Config, { startMs, units }: Counters): number {
  return startMs + (units > 0 ? 2 : 1) * windowMs;
}

/** Every sum of parts that is compared with a limit is exact up to here. */
const MAX_PARTS = 2 ** 53 - 1;

/** The units of one window, and of the window before it. */
interface Counters {
  readonly startMs: number;
  readonly units: number;
  readonly before: number;
}

/** Stored: never rename a field. */
export interface StoredCounters extends Counters {
  readonly windowMs: number;
  readonly lastMs: number;
}

/** The counters of a state under a policy. When the window has changed, the units that counted at the last use. */
function countersUnder({ windowMs }: Config, state: State | undefined): Counters | undefined {
  if (state === undefined || state.windowMs === windowMs) return state;
  const parts = partsAt(state.windowMs, state, Math.max(state.lastMs, state.startMs));
  const units = Math.min(Math.ceil(parts / state.windowMs), maxCounted(windowMs));
  return { startMs: Math.floor(state.lastMs / windowMs) * windowMs, units, before: 0 };
}

/** The counters for an instant. A clock that was set back does not change them. */
function countersAt(windowMs: number, counters: Counters | undefined, nowMs: number): Counters {
  const startMs = Math.floor(nowMs / windowMs) * windowMs;
  if (counters === undefined) return { startMs, units: 0, before: 0 };
  if (startMs <= counters.startMs) return counters;
  const isNext = startMs === counters.startMs + windowMs;
  return { startMs, units: 0, before: isNext ? counters.units : 0 };
}

/** The estimate in parts, a unit being `windowMs` parts. Before `startMs` it is that of `startMs`. */
function partsAt(windowMs: number, { startMs, units, before }: Counters, nowMs: number): number {
  const inViewMs = Math.min(windowMs, windowMs - nowMs + startMs);
  return before * inViewMs + units * windowMs;
}

/** The maximum of a counter. A larger debt makes no difference within two windows. */
function maxCounted(windowMs: number): number {
  return Math.floor(MAX_PARTS / windowMs);
}

/** The first instant when a denied cost passes; `units` includes the outstanding ones. Infinity: never. */
function passesAtMs({ limit, windowMs }: Config, counters: Counters, units: number): number {
  if (units > limit) return Infinity;
  const room = (limit - units) * windowMs;
  // In this window `before` has to fall to what `units` leave of the room; in the next, `units` have to fall.
  const left = room - counters.units * windowMs;
  if (left >= counters.before) return counters.startMs + windowMs - Math.floor(left / counters.before);
  const inViewMs = counters.units === 0 ? windowMs : Math.min(windowMs, Math.floor(room / counters.units));
  return counters.startMs + 2 * windowMs - inViewMs;
}
