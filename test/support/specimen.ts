/** Specimens of algorithms, and those of counted windows: see algorithms.ts. */
import fc from "fast-check";

export interface Specimen<Fields extends Given = Given> {
  /** Fields as in a policy, durations in milliseconds; `configure` must accept every one. */
  readonly fields: fc.Arbitrary<Fields>;
  /** Whether `units` admitted within `lengthMs` (first to last instant) keep the algorithm's bound. */
  keepsBound(fields: Fields, units: number, lengthMs: number): boolean;
  /** Present when admitted calls may be delayed (`delayMs`). */
  readonly delays?: {
    /** Whether `units` whose callers continued within `lengthMs`, after their delays, keep the bound. */
    keepsPace(fields: Fields, units: number, lengthMs: number, largestCost: number): boolean;
    /** The longest delay, in milliseconds. */
    mostMs(fields: Fields): number;
  };
  /** The distance between calls of cost 1 that the quota always admits, in milliseconds. */
  paceMs(fields: Fields): number;
  readonly neverRefills?: true;
  /** Taken or held units make no difference. */
  readonly countsNothing?: true;
  /** Rounding may leave a millisecond until the quota is refilled, after a complete refund. */
  readonly roundsWhole?: true;
  /** A refund without a name may return one unit less than requested, and never more. */
  readonly roundsCredit?: true;
}

export type Given = Readonly<Record<string, number | string>>;

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** The shortest and longest length of each period in the zones below. */
const LENGTHS_MS: Readonly<Record<string, readonly [shortest: number, longest: number]>> = {
  "1 hour": [HOUR_MS / 2, HOUR_MS],
  "1 day": [23 * HOUR_MS, 25 * HOUR_MS],
  "1 week": [7 * DAY_MS - HOUR_MS, 7 * DAY_MS + HOUR_MS],
  "1 month": [28 * DAY_MS - HOUR_MS, 31 * DAY_MS + HOUR_MS],
  "1 year": [365 * DAY_MS, 366 * DAY_MS],
};
const ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"];
const limit = fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 1_000_000 }));

interface FixedWindow {
  readonly [field: string]: number | string;
  readonly limit: number;
  readonly window: number | string;
}

const durations = fc
  .record({
    limit,
    window: fc.oneof(
      fc.integer({ min: 1, max: 2_000 }),
      fc.constantFrom(1, 60, 1_000, 60_000, 7 * HOUR_MS, DAY_MS, 30 * DAY_MS),
    ),
    align: fc.constantFrom("epoch", "first"),
    jitterShare: fc.constantFrom(0, 0, 0.1, 0.5),
  })
  .map(({ jitterShare, ...fields }) => {
    const jitter = Math.floor(fields.window * jitterShare);
    return jitter === 0 ? fields : { ...fields, jitter };
  });
const periods = fc.record({
  limit,
  window: fc.constantFrom(...Object.keys(LENGTHS_MS)),
  timeZone: fc.constantFrom(...ZONES),
});
const lengthsMs = ({ window }: FixedWindow) =>
  typeof window === "number" ? ([window, window] as const) : (LENGTHS_MS[window] ?? ([0, 0] as const));

/** With units of earlier windows, by the day or the millisecond, a few or of a year. */
const carrying = fc
  .record({ fields: fc.oneof(durations, periods), share: fc.constantFrom(0.3, 1, 2.5, 12) })
  .map(({ fields: { limit: most, window, ...others }, share }): FixedWindow => {
    const zone =
      typeof window === "string" ? { timeZone: String((others as { timeZone?: string }).timeZone) } : {};
    return { limit: most, window, carry: Math.max(1, Math.floor(most * share)), ...zone };
  });

const fixedWindow: Specimen<FixedWindow> = {
  fields: fc.oneof(
    durations,
    periods,
    carrying,
    carrying,
    fc.tuple(periods, fc.integer({ min: 1, max: HOUR_MS / 2 })).map(jittered),
  ),
  keepsBound(given, units, lengthMs) {
    const jitterMs = Number(given["jitter"] ?? 0);
    const windows = Math.floor((lengthMs + jitterMs) / lengthsMs(given)[0]) + 2;
    return units <= given.limit * windows + Number(given["carry"] ?? 0);
  },
  paceMs: (given) => Math.ceil((lengthsMs(given)[1] + Number(given["jitter"] ?? 0)) / given.limit),
};

function jittered([fields, jitter]: [FixedWindow, number]): FixedWindow {
  return { ...fields, jitter };
}

const slidingWindowCounter: Specimen<{ readonly limit: number; readonly window: number }> = {
  fields: fc
    .record({
      limit: fc.oneof(limit, fc.constant(1_000_000_000)),
      window: fc.oneof(
        fc.integer({ min: 1, max: 2_000 }),
        fc.constantFrom(1, 60, 1_000, 60_000, DAY_MS, 30 * DAY_MS),
      ),
    })
    .filter((given) => given.limit * given.window < 2 ** 53),
  keepsBound: (given, units, lengthMs) =>
    BigInt(units) * BigInt(given.window) <= BigInt(given.limit) * BigInt(given.window + lengthMs),
  // One unit below the limit in each window: an even arrival still counts as a full unit when it comes.
  paceMs: ({ limit: most, window }) => (most === 1 ? 2 * window : Math.ceil(window / (most - 1))),
  roundsCredit: true,
};

export const windowSpecimens: Readonly<Record<string, Specimen>> = {
  "fixed-window": fixedWindow,
  "sliding-window-counter": slidingWindowCounter,
};
