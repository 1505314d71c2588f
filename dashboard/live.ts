import type { Problem } from "./answers.ts";
import { readClockMs } from "./clock.ts";
import { useSession } from "./context.ts";
import { usePoll, type Polled } from "./poll.ts";
import { hasCounts, READ_EVERY_MS, totalsIn, withReading, type Reading } from "./rates.ts";

const WITHOUT_COUNTS: Problem = {
  type: "",
  title: "The statistics do not answer",
  status: 503,
  detail:
    "the object with the statistics does not answer: decisions go on, and are counted when it answers again",
};

/** The readings of the last half minute, while the page is shown. */
export function useReadings(isAllowed: boolean): Polled<readonly Reading[]> {
  const { ask, readings } = useSession();
  return usePoll("metrics", isAllowed ? READ_EVERY_MS : 0, async () => {
    if (!isAllowed) return { value: [], etag: undefined };
    const answer = await ask<string>("GET", "/metrics", { accept: "application/openmetrics-text" });
    if (answer.problem !== undefined) return answer;
    if (!hasCounts(answer.value)) return { problem: WITHOUT_COUNTS };
    const reading = { atMs: readClockMs(), totals: totalsIn(answer.value) };
    readings.current = withReading(readings.current, reading);
    return { value: readings.current, etag: undefined };
  });
}
