/** What one caller may do in one isolate, so that its calls do not take an object from others. */
export interface CallerBounds {
  /** The most calls that wait for the answer of one object. Calls that the isolate decides alone do not count. */
  readonly maxCallsAtOnce: number;
  /** The most keys a second that it has not asked for lately; ten times as many at once. */
  readonly maxNewKeysPerSecond: number;
}

/** Far above what an isolate does in earnest: an object answers some 1,000 calls a second. */
export const DEFAULT_BOUNDS: CallerBounds = { maxCallsAtOnce: 1_000, maxNewKeysPerSecond: 2_000 };

/** No token and no binding may have higher ones. */
export const MAX_CALLS_AT_ONCE = 100_000;
export const MAX_NEW_KEYS_PER_SECOND = 100_000;

/** For calls that are bounded by something else. */
export const MAX_BOUNDS: CallerBounds = {
  maxCallsAtOnce: MAX_CALLS_AT_ONCE,
  maxNewKeysPerSecond: MAX_NEW_KEYS_PER_SECOND,
};
