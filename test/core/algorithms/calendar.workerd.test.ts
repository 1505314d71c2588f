import { expect, test } from "vitest";
import { Calendar } from "../../../core/algorithms/windows/calendar.ts";

/** The runtime brings the rules of the time zones with it: the same as the ones that tests in Node see. */
test.each([
  ["day", "Europe/Berlin", "2025-10-26T12:00Z", "2025-10-25T22:00Z", "2025-10-26T23:00Z"],
  ["day", "Europe/Berlin", "2026-03-29T12:00Z", "2026-03-28T23:00Z", "2026-03-29T22:00Z"],
  ["month", "America/New_York", "2026-03-29T12:00Z", "2026-03-01T05:00Z", "2026-04-01T04:00Z"],
  ["hour", "Asia/Kolkata", "2026-03-29T12:00Z", "2026-03-29T11:30Z", "2026-03-29T12:30Z"],
  ["year", "UTC", "2028-03-29T12:00Z", "2028-01-01T00:00Z", "2029-01-01T00:00Z"],
] as const)(
  "inside workerd the %s in %s around %s is from %s to %s",
  (period, timeZone, instant, from, to) => {
    expect(Calendar.of(period, timeZone)?.around(Date.parse(instant))).toMatchObject({
      startMs: Date.parse(from),
      endMs: Date.parse(to),
    });
  },
);

test("inside workerd a zone that is not there is not there", () => {
  expect(Calendar.of("day", "Europe/Atlantis")).toBeUndefined();
});
