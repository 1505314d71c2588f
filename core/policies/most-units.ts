/** The most units of a limit, a burst or a cost. */
export const MAX_UNITS = 1_000_000_000;
