import { vi } from "vitest";

/** Waits until a check passes, and returns its result. Patient with slow machines. */
export const eventually = <Result>(check: () => Result | Promise<Result>): Promise<Result> =>
  vi.waitFor(check, { timeout: 60_000, interval: 20 });
