import fc from "fast-check";
import { expect, test, vi } from "vitest";
import { Calendar, type Period, PERIODS } from "../../../core/algorithms/windows/calendar.ts";
import { depth } from "../../support/depth.ts";
import { namesOf } from "../../support/naive-windows.ts";

const HOUR_MS = 3_600_000;

function calendarOf(period: Period, timeZone: string): Calendar {
  const calendar = Calendar.of(period, timeZone);
  if (calendar === undefined) throw new Error(`there is no ${timeZone}`);
  return calendar;
}

/** The period around an instant as the clocks of UTC show it, and how many hours it has. */
function around(period: Period, timeZone: string, instant: string) {
  const { startMs, endMs } = calendarOf(period, timeZone).around(Date.parse(instant));
  const utc = (atMs: number) => new Date(atMs).toISOString().slice(0, 16);
  return [utc(startMs), utc(endMs), (endMs - startMs) / HOUR_MS];
}

test.each<[Period, string, string, string, string, number]>([
  // Summer time ends and begins.
  ["day", "Europe/Berlin", "2025-10-26T12:00Z", "2025-10-25T22:00", "2025-10-26T23:00", 25],
  ["day", "Europe/Berlin", "2026-03-29T12:00Z", "2026-03-28T23:00", "2026-03-29T22:00", 23],
  ["week", "Europe/Berlin", "2026-03-29T12:00Z", "2026-03-22T23:00", "2026-03-29T22:00", 7 * 24 - 1],
  ["month", "Europe/Berlin", "2026-03-29T12:00Z", "2026-02-28T23:00", "2026-03-31T22:00", 31 * 24 - 1],
  ["year", "Europe/Berlin", "2028-07-01T12:00Z", "2027-12-31T23:00", "2028-12-31T23:00", 366 * 24],
  ["month", "UTC", "2028-02-29T12:00Z", "2028-02-01T00:00", "2028-03-01T00:00", 29 * 24],
  // The hour that the clocks show twice is two hours, of 60 minutes each.
  ["hour", "Europe/Berlin", "2025-10-26T00:30Z", "2025-10-26T00:00", "2025-10-26T01:00", 1],
  ["hour", "Europe/Berlin", "2025-10-26T01:30Z", "2025-10-26T01:00", "2025-10-26T02:00", 1],
  ["hour", "Asia/Kolkata", "2026-03-29T12:00Z", "2026-03-29T11:30", "2026-03-29T12:30", 1],
  // At 2:45 the clocks are put forward to 3:45: 45 minutes of one hour, and 15 of the next.
  ["hour", "Pacific/Chatham", "1994-10-01T13:15Z", "1994-10-01T13:15", "1994-10-01T14:00", 0.75],
  ["hour", "Pacific/Chatham", "1994-10-01T14:00Z", "1994-10-01T14:00", "1994-10-01T14:15", 0.25],
  // At 3:45 they are put back to 2:45. The last 15 minutes of the hour from 2:00 come again, then all of the next.
  ["hour", "Pacific/Chatham", "2026-04-04T13:00Z", "2026-04-04T12:15", "2026-04-04T13:15", 1],
  ["hour", "Pacific/Chatham", "2026-04-04T13:59Z", "2026-04-04T13:15", "2026-04-04T14:00", 0.75],
  ["hour", "Pacific/Chatham", "2026-04-04T14:00Z", "2026-04-04T14:00", "2026-04-04T14:15", 0.25],
  ["hour", "Pacific/Chatham", "2026-04-04T14:15Z", "2026-04-04T14:15", "2026-04-04T15:15", 1],
  // By half an hour: forward at 2:00 to 2:30, back at 2:00 to 1:30.
  ["hour", "Australia/Lord_Howe", "2026-10-03T15:30Z", "2026-10-03T15:30", "2026-10-03T16:00", 0.5],
  ["hour", "Australia/Lord_Howe", "2026-04-04T14:59Z", "2026-04-04T14:00", "2026-04-04T15:00", 1],
  ["hour", "Australia/Lord_Howe", "2026-04-04T15:00Z", "2026-04-04T15:00", "2026-04-04T15:30", 0.5],
  // From 0:30 to 0:00: half an hour, and then all of it.
  ["hour", "Asia/Colombo", "1996-10-25T17:45Z", "1996-10-25T17:30", "1996-10-25T18:00", 0.5],
  ["hour", "Asia/Colombo", "1996-10-25T18:00Z", "1996-10-25T18:00", "1996-10-25T19:00", 1],
  ["week", "Asia/Kolkata", "2026-03-29T18:30Z", "2026-03-29T18:30", "2026-04-05T18:30", 7 * 24],
  // Clocks that skip midnight: the day begins at one o'clock.
  ["day", "America/Sao_Paulo", "2018-11-04T12:00Z", "2018-11-04T03:00", "2018-11-05T02:00", 23],
  // Midnight comes again: at 0:00 the clocks were put back to 23:00, and the day ends at the second midnight.
  ["day", "America/Sao_Paulo", "2018-02-18T02:30Z", "2018-02-17T02:00", "2018-02-18T03:00", 25],
  // At 0:01 the clocks were put back to 23:01. The day had begun, and goes on.
  ["day", "America/St_Johns", "2010-11-07T02:40Z", "2010-11-07T02:30", "2010-11-08T03:30", 25],
  // A day that there was not: Samoa went from the 29th to the 31st.
  ["day", "Pacific/Apia", "2011-12-30T09:59Z", "2011-12-29T10:00", "2011-12-30T10:00", 24],
  ["day", "Pacific/Apia", "2011-12-30T10:00Z", "2011-12-30T10:00", "2011-12-31T10:00", 24],
])("the %s in %s around %s is from %s to %s", (period, timeZone, instant, from, to, hours) => {
  expect(around(period, timeZone, instant)).toEqual([from, to, hours]);
});

const ZONES = [
  "UTC",
  "Europe/Berlin",
  "Europe/Dublin",
  "America/New_York",
  "America/Santiago",
  "Africa/Casablanca",
  "Asia/Kathmandu",
  "Australia/Lord_Howe",
  "Pacific/Chatham",
  "Pacific/Kiritimati",
];
const DEPTH = depth(100, 5_000);

test(`in ${DEPTH} cases a period is all instants that clocks name alike, and the next begins where it ends`, () => {
  const calendars = new Map<string, Calendar>();
  fc.assert(
    fc.property(
      fc.constantFrom(...PERIODS),
      fc.constantFrom(...ZONES),
      fc.integer({ min: 0, max: Date.UTC(2037, 0) }),
      (period, timeZone, atMs) => {
        const name = `${period} ${timeZone}`;
        const calendar = calendars.get(name) ?? calendarOf(period, timeZone);
        calendars.set(name, calendar);
        const { startMs, endMs } = calendar.around(atMs);
        expect([startMs <= atMs, atMs < endMs]).toEqual([true, true]);
        expect(endMs - startMs).toBeLessThanOrEqual(calendar.longestMs);
        const nameAt = namesOf(`1 ${period}`, timeZone);
        for (const inside of [startMs, endMs - 1]) expect(nameAt(inside)).toBe(nameAt(atMs));
        for (const outside of [startMs - 1, endMs]) expect(nameAt(outside)).not.toBe(nameAt(atMs));
        expect(calendar.around(endMs).startMs).toBe(endMs);
        expect(calendar.around(startMs - 1).endMs).toBe(startMs);
      },
    ),
    { numRuns: DEPTH },
  );
});

test(`in ${DEPTH / 10} cases many periods end where they end one after another`, () => {
  fc.assert(
    fc.property(
      fc.constantFrom(...PERIODS),
      fc.constantFrom(...ZONES),
      // Kiritimati left out the first day of 1995.
      fc.integer({ min: Date.UTC(1996, 0), max: Date.UTC(2037, 0) }),
      fc.nat(2_000),
      fc.nat(1_000),
      (period, timeZone, fromMs, most, share) => {
        const calendar = calendarOf(period, timeZone);
        const untilMs = fromMs + Math.floor((share / 700) * most * calendar.nominalMs);
        let [count, lastMs] = [0, fromMs];
        for (; count < most && calendar.around(lastMs).endMs <= untilMs; count += 1)
          lastMs = calendar.around(lastMs).endMs;
        expect(calendar.ends(fromMs, most, untilMs)).toEqual({ count, lastMs });
        if (count > 0) expect(calendar.ends(fromMs, count)).toEqual({ count, lastMs });
      },
    ),
    { numRuns: DEPTH / 10 },
  );
});

test.each(PERIODS)("a billion times a %s is reached without a step for each", (period) => {
  const calendar = calendarOf(period, "Europe/Berlin");
  const asked = vi.spyOn(Intl.DateTimeFormat.prototype, "formatToParts");
  const fromMs = Date.parse("2026-10-26T12:00Z");
  expect(calendar.ends(fromMs, 1e9).lastMs / calendar.nominalMs).toBeGreaterThan(0.99e9);
  expect(calendar.ends(fromMs, 1e9, 2 ** 52).count).toBeGreaterThan(1e5);
  expect(asked.mock.calls.length).toBeLessThan(10_000);
  asked.mockRestore();
});

test("a zone that is not there is not there, however it is written", () => {
  for (const name of ["Europe/Atlantis", "", "Berlin", "UTC+1", "../etc", "Europe/Berlin "])
    expect(Calendar.of("day", name)).toBeUndefined();
});

test("an instant that no calendar has is in a period all the same", () => {
  for (const atMs of [2 ** 52, 8.64e15, 2 ** 53]) {
    const { startMs, endMs } = calendarOf("month", "Europe/Berlin").around(atMs);
    expect([startMs <= atMs, atMs < endMs]).toEqual([true, true]);
  }
});

test("Intl is asked once a period, also while keys of the one before are looked at", () => {
  const calendar = calendarOf("day", "Europe/Berlin");
  const asked = vi.spyOn(Intl.DateTimeFormat.prototype, "formatToParts");
  const todayMs = Date.parse("2025-10-26T12:00Z");
  calendar.around(todayMs - 24 * HOUR_MS);
  calendar.around(todayMs);
  const calls = asked.mock.calls.length;
  for (let count = 0; count < 1_000; count += 1) {
    calendar.around(todayMs + count);
    calendar.around(todayMs - 24 * HOUR_MS);
  }
  expect(asked.mock.calls.length).toBe(calls);
  expect(calls).toBeGreaterThan(0);
  asked.mockRestore();
});
