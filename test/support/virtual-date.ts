/** A stopped date that tests and objects share; timers stay real. */
import { onTestFinished, vi } from "vitest";

export const START_MS = Date.now();

/**
 * Sets the date to `laterMs` after the start of the file, until the test ends: files run one after the other in an isolate,
 * and where the date stands still no call waits to its end.
 */
export function at(laterMs: number): void {
  vi.useFakeTimers({ toFake: ["Date"], now: START_MS + laterMs });
  onTestFinished(() => void vi.useRealTimers());
}
