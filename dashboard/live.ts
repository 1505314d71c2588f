import { readClockMs } from "./clock.ts";
import { useSession } from "./context.ts";
import { usePoll, type Polled } from "./poll.ts";
import { totalsIn, withReading, type Reading } from "./rates.ts";

const EVERY_MS = 5_000;

/** The readings of the last half minute, while the page is shown. */
export function useReadings(isAllowed: boolean): Polled<readonly Reading[]> {
  const { ask, readings } = useSession();
  return usePoll("metrics", isAllowed ? EVERY_MS : 0, async () => {
    if (!isAllowed) return { value: [], etag: undefined };
    const answer = await ask<string>("GET", "/metrics", { accept: "application/openmetrics-text" });
    if (answer.problem !== undefined) return answer;
    const reading = { atMs: readClockMs(), totals: totalsIn(answer.value) };
    readings.current = withReading(readings.current, reading);
    return { value: readings.current, etag: undefined };
  });
}
