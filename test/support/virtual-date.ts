/** A stopped date that tests and objects share; timers stay real. */
import { vi } from "vitest";

export const START_MS = Date.now();

/** Sets the date to `laterMs` after the start of the file. */
export function at(laterMs: number): void {
  vi.useFakeTimers({ toFake: ["Date"], now: START_MS + laterMs });
}
