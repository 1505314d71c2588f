const DAY_MS = 86_400_000;
const RFC_3339 =
  /^(?<year>\d{4})-(?<month>\d\d)-(?<day>\d\d)T(?<hour>\d\d):\d\d:\d\d(?:\.\d+)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$/;

/**
 * Reads an instant as RFC 3339 writes it: `"2027-01-31T12:00:00Z"`, `"2027-01-31T13:00:00.5+01:00"`. `Date.parse` alone
 * takes 30 February for 2 March, and 24:00 for the next day.
 *
 * @returns milliseconds since the Unix epoch; `undefined` when it is none, as on a day that there is not
 */
export function parseInstantMs(text: string): number | undefined {
  const upper = text.toUpperCase();
  const { year, month, day, hour } = RFC_3339.exec(upper)?.groups ?? {};
  const atMs = Date.parse(upper);
  const isThere = Number(day) <= daysOf(Number(year), Number(month)) && Number(hour) < 24;
  return isThere && !Number.isNaN(atMs) ? atMs : undefined;
}

/** The days of a month, which are the same every 400 years. */
function daysOf(year: number, month: number): number {
  const like = 2_000 + (year % 400);
  return (Date.UTC(like, month) - Date.UTC(like, month - 1)) / DAY_MS;
}
