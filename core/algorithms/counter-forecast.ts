import type { Forecast, Uses } from "./forecast.ts";

/** Every sum of parts that is compared with a limit is exact up to here. */
export const MOST_PARTS = 2 ** 53 - 1;

interface Config {
  readonly limit: number;
  readonly windowMs: number;
}

/** Two counters: the units of one window, and of the window before it. */
export interface Counters {
  /** Where the window of `units` begins. */
  readonly startMs: number;
  readonly units: number;
  readonly before: number;
}

/** The counters as storage keeps them: never rename a field. */
export interface KeptCounters extends Counters {
  /** The window that they were counted under. */
  readonly windowMs: number;
  /** When units were taken last. */
  readonly lastMs: number;
}

/** The counters of a state under a policy. When the window has changed, the units that counted at the last use. */
export function countersUnder(
  { windowMs }: { readonly windowMs: number },
  state: KeptCounters | undefined,
): Counters | undefined {
  if (state === undefined || state.windowMs === windowMs) return state;
  const parts = partsAt(state.windowMs, state, Math.max(state.lastMs, state.startMs));
  const units = Math.min(Math.ceil(parts / state.windowMs), mostCounted(windowMs));
  return { startMs: Math.floor(state.lastMs / windowMs) * windowMs, units, before: 0 };
}

/** The counters for an instant. A clock that was put back leaves them as they are. */
export function countersAt(windowMs: number, counters: Counters | undefined, nowMs: number): Counters {
  const startMs = Math.floor(nowMs / windowMs) * windowMs;
  if (counters === undefined) return { startMs, units: 0, before: 0 };
  if (startMs <= counters.startMs) return counters;
  const isNext = startMs === counters.startMs + windowMs;
  return { startMs, units: 0, before: isNext ? counters.units : 0 };
}

/** The estimate in parts, a unit being `windowMs` parts. Before `startMs` it is that of `startMs`. */
export function partsAt(windowMs: number, { startMs, units, before }: Counters, nowMs: number): number {
  const inViewMs = Math.min(windowMs, windowMs - nowMs + startMs);
  return before * inViewMs + units * windowMs;
}

/** The most units that a counter counts. What is over that is a debt that no wait of two windows would tell apart. */
export function mostCounted(windowMs: number): number {
  return Math.floor(MOST_PARTS / windowMs);
}

/**
 * The first instant, `nowMs` or later, at which a cost passes while `outstanding` stays as it is. Infinity: never. The
 * estimate only falls while nothing is taken, also from one window to the next.
 */
export function passesAtMs(
  { limit, windowMs }: Config,
  counters: Counters,
  nowMs: number,
  cost: number,
  outstanding: number,
): number {
  if (cost === 0) return nowMs;
  if (cost + outstanding > limit) return Infinity;
  const room = (limit - outstanding - cost) * windowMs;
  const { startMs, units, before } = counters;
  if (partsAt(windowMs, counters, nowMs) <= room) return nowMs;
  // In this window the counter before it has to fall to what `units` leave of the room; then `units` have to fall.
  const left = room - units * windowMs;
  if (left >= before) return startMs + windowMs - Math.floor(left / before);
  const inViewMs = units === 0 ? windowMs : Math.min(windowMs, Math.floor(room / units));
  return startMs + 2 * windowMs - inViewMs;
}

/** Two counters that are played forward. */
export class CounterForecast implements Forecast {
  readonly #config: Config;
  #counters: Counters | undefined;

  constructor(config: Config, counters: Counters | undefined) {
    this.#config = config;
    this.#counters = counters;
  }

  debit({ endsMs, units }: Uses, from = 0, to = endsMs.length): void {
    for (let index = from; index < to; index += 1) this.take(endsMs[index] ?? 0, units[index] ?? 0);
  }

  take(atMs: number, units: number): void {
    if (units === 0) return;
    const { windowMs } = this.#config;
    const counters = countersAt(windowMs, this.#counters, atMs);
    this.#counters = { ...counters, units: Math.min(counters.units + units, mostCounted(windowMs)) };
  }

  passesAtMs(atMs: number, cost: number, outstanding: number): number {
    const counters = countersAt(this.#config.windowMs, this.#counters, atMs);
    return passesAtMs(this.#config, counters, atMs, cost, outstanding);
  }

  /** Units that are held count whole for as long as they are held. Once used, they leave the view with their window. */
  isCertain(_: number, outstanding: number): boolean {
    return outstanding === 0;
  }

  wholeAtMs(): number {
    if (this.#counters === undefined) return -Infinity;
    const { startMs, units } = this.#counters;
    return startMs + (units > 0 ? 2 : 1) * this.#config.windowMs;
  }
}
