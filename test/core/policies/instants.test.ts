import fc from "fast-check";
import { expect, test } from "vitest";
import { instantText } from "../../../core/clock.ts";
import { parseInstantMs } from "../../../core/validation.ts";

const MINUTE_MS = 60_000;
const AtMs = fc
  .date({ noInvalidDate: true, min: new Date("0001-01-02T00:00:00Z"), max: new Date("9999-12-30T00:00:00Z") })
  .map((date) => date.getTime());
/** The minutes that an offset may have: less than a day either way. */
const Offset = fc.integer({ min: -1_439, max: 1_439 });

test("an instant is read as it was written, at any offset", () => {
  fc.assert(
    fc.property(AtMs, Offset, fc.boolean(), (atMs, minutes, isSmall) => {
      const [hour, minute] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
      const two = (figure: number) => String(figure).padStart(2, "0");
      const local = instantText(atMs + minutes * MINUTE_MS).slice(0, -1);
      const text = `${local}${minutes < 0 ? "-" : "+"}${two(hour)}:${two(minute)}`;
      expect(parseInstantMs(isSmall ? text.toLowerCase() : text)).toBe(atMs);
      expect(parseInstantMs(instantText(atMs))).toBe(atMs);
    }),
  );
});

test.each([
  ["2028-02-29T00:00:00Z", "2028-02-29T00:00:00.000Z"],
  ["2027-01-31T12:00:00.123456Z", "2027-01-31T12:00:00.123Z"],
  ["2027-01-31T12:00:00-00:00", "2027-01-31T12:00:00.000Z"],
])("%s is %s", (text, instant) => {
  expect(instantText(parseInstantMs(text) ?? Number.NaN)).toBe(instant);
});

test.each([
  "2027-02-30T00:00:00Z",
  "2027-02-29T00:00:00Z",
  "2027-04-31T00:00:00+02:00",
  "2027-13-01T00:00:00Z",
  "2027-00-01T00:00:00Z",
  "2027-01-00T00:00:00Z",
  "2027-01-31T24:00:00Z",
  "2027-01-31T12:60:00Z",
  "2027-01-31T12:00:61Z",
  "2027-01-31T12:00:00+24:00",
  "2027-01-31T12:00:00+01:60",
  "2027-01-31T12:00:00",
  "2027-01-31T12:00Z",
  "2027-01-31 12:00:00Z",
  "2027-01-31",
  " 2027-01-31T12:00:00Z",
  "2027-01-31T12:00:00.Z",
  "tomorrow",
  "",
])("%j is no instant", (text) => {
  expect(parseInstantMs(text)).toBeUndefined();
});
