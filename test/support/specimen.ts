/** What a specimen of an algorithm is, and those of windows that are counted: see algorithms.ts. */
import fc from "fast-check";

export interface Specimen<Fields extends Given = Given> {
  /** Fields as a policy gives them, durations in milliseconds; `configure` must accept every one. */
  readonly fields: fc.Arbitrary<Fields>;
  /** Whether `units` admitted within `lengthMs` (first to last instant) keep the bound the algorithm promises. */
  keepsBound(fields: Fields, units: number, lengthMs: number): boolean;
  /** Present when calls that are admitted may be told to wait (`delayMs`). */
  readonly delays?: {
    /** Whether `units` whose callers went on within `lengthMs`, all having waited as told, keep the bound. */
    keepsPace(fields: Fields, units: number, lengthMs: number, largestCost: number): boolean;
    /** The longest delay in milliseconds that anybody may be told. */
    mostMs(fields: Fields): number;
  };
  /** The distance between calls of cost 1 that the quota always admits, in milliseconds. */
  paceMs(fields: Fields): number;
  /** No time gives back what was taken. */
  readonly neverRefills?: true;
  /** Nothing that is taken or held makes a difference. */
  readonly countsNothing?: true;
  /** Rounding may leave a millisecond until the quota is whole, when all of a charge has been given back. */
  readonly roundsWhole?: true;
  /** A refund without a name may give back a unit less than was asked for, and never more. */
  readonly roundsCredit?: true;
}

export type Given = Readonly<Record<string, number | string>>;

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** Of each period: how short and how long it is in the zones below. */
const LENGTHS_MS: Readonly<Record<string, readonly [shortest: number, longest: number]>> = {
  "1 hour": [HOUR_MS / 2, 1.5 * HOUR_MS],
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

const fixedWindow: Specimen<FixedWindow> = {
  fields: fc.oneof(
    durations,
    periods,
    fc.tuple(periods, fc.integer({ min: 1, max: HOUR_MS / 2 })).map(jittered),
  ),
  keepsBound(given, units, lengthMs) {
    const jitterMs = Number(given["jitter"] ?? 0);
    return units <= given.limit * (Math.floor((lengthMs + jitterMs) / lengthsMs(given)[0]) + 2);
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
  // One unit less than the limit in each window: what came evenly is still counted as a whole unit when it comes.
  paceMs: ({ limit: most, window }) => (most === 1 ? 2 * window : Math.ceil(window / (most - 1))),
  roundsCredit: true,
};

export const windowSpecimens: Readonly<Record<string, Specimen>> = {
  "fixed-window": fixedWindow,
  "sliding-window-counter": slidingWindowCounter,
};
