import type { Calendar } from "./calendar.ts";
import type { Forecast, Uses } from "./forecast.ts";

/** Where windows begin and end. */
export interface Windows {
  /** How long a window is; of a period of the calendar, about how long. */
  readonly windowMs: number;
  /** Windows are one after the other since the Unix epoch or in the calendar, or begin with the first request. */
  readonly align: "epoch" | "calendar" | "first";
  /** 0: none. */
  readonly jitterMs: number;
  /** Only with `calendar`: its periods, and by whose time they go. */
  readonly calendar?: Calendar;
  readonly period?: string;
  readonly timeZone?: string;
}

/** What was taken in a window: the state of a fixed window, as storage keeps it. Never rename a field. */
export interface Taken {
  /** More than the limit is a debt. */
  readonly units: number;
  /** When the first of them was taken: the window is the one that this begins, or that it is in. */
  readonly startMs: number;
  /** When the last was taken. Only a policy that changes asks for it. */
  readonly lastMs: number;
}

/** A debt beyond this is cut. */
export const MOST_TAKEN = 2 ** 52;

/** When a window ends whose first unit is taken at `startMs`. */
export function endFromMs({ align, windowMs, jitterMs, calendar }: Windows, startMs: number): number {
  const endMs =
    align === "first"
      ? startMs + windowMs
      : (calendar?.around(startMs).endMs ?? (Math.floor(startMs / windowMs) + 1) * windowMs);
  return jitterMs === 0 ? endMs : endMs + Math.floor(drawn(startMs) * jitterMs);
}

/**
 * When the window of a state ends, and when it began. Under another policy than the one that it was counted under,
 * units may have been taken after that end. Then they count as if all had been taken with the last of them.
 */
export function windowOf(windows: Windows, { startMs, lastMs }: Taken): { fromMs: number; endMs: number } {
  const endMs = endFromMs(windows, startMs);
  return lastMs < endMs ? { fromMs: startMs, endMs } : { fromMs: lastMs, endMs: endFromMs(windows, lastMs) };
}

/** The state with `units` more. A clock that was put back takes them in the window that there is. */
export function taking(windows: Windows, state: Taken | undefined, nowMs: number, units: number): Taken {
  if (state !== undefined && nowMs < windowOf(windows, state).endMs)
    return {
      units: Math.min(state.units + units, MOST_TAKEN),
      startMs: windowOf(windows, state).fromMs,
      lastMs: Math.max(state.lastMs, nowMs),
    };
  return { units, startMs: nowMs, lastMs: nowMs };
}

/** A fixed window that is played forward. */
export class WindowForecast implements Forecast {
  readonly #windows: Windows & { readonly limit: number };
  #units = 0;
  /** When the latest window ends in which units were taken; -Infinity: none were. */
  #endMs = -Infinity;

  constructor(windows: Windows & { readonly limit: number }, state: Taken | undefined) {
    this.#windows = windows;
    if (state === undefined) return;
    this.#units = state.units;
    this.#endMs = windowOf(windows, state).endMs;
  }

  debit({ endsMs, units }: Uses, from = 0, to = endsMs.length): void {
    for (let index = from; index < to; index += 1) this.take(endsMs[index] ?? 0, units[index] ?? 0);
  }

  take(atMs: number, units: number): void {
    if (units === 0) return;
    const isOver = atMs >= this.#endMs;
    this.#units = isOver ? units : Math.min(this.#units + units, MOST_TAKEN);
    if (isOver) this.#endMs = endFromMs(this.#windows, atMs);
  }

  passesAtMs(atMs: number, cost: number, outstanding: number): number {
    if (cost === 0) return atMs;
    const room = this.#windows.limit - outstanding - cost;
    if (room < 0) return Infinity;
    return atMs >= this.#endMs || this.#units <= room ? atMs : this.#endMs;
  }

  /** Units that are used before the window ends are taken from it as much as if they were held. Then it ends. */
  isCertain(): boolean {
    return true;
  }

  wholeAtMs(): number {
    return this.#endMs;
  }
}

/** A number in [0, 1) for an instant: the finaliser of MurmurHash3 (A. Appleby), of both halves. */
function drawn(atMs: number): number {
  const mixed = mix(mix(Math.floor(atMs / 2 ** 32)) ^ (atMs % 2 ** 32));
  return (mixed >>> 0) / 2 ** 32;
}

function mix(value: number): number {
  let mixed = value | 0;
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return mixed ^ (mixed >>> 16);
}
