import { vi } from "vitest";

/** Waits until a check passes. It may take long on a slow machine: no test is about that. Returns what the check does. */
export const eventually = <Result>(check: () => Result | Promise<Result>): Promise<Result> =>
  vi.waitFor(check, { timeout: 20_000, interval: 20 });
