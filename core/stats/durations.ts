/** The upper bounds of the buckets of all histograms, in milliseconds. They are stored: never take one away. */
export const DURATION_BOUNDS_MS = [1, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000] as const;
