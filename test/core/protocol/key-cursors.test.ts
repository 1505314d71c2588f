import fc from "fast-check";
import { expect, test } from "vitest";
import { keyCursor, readKeyCursor } from "../../../core/protocol/names.ts";

const MAX = 65_536;
const keys = fc.string({ unit: "binary", minLength: 1, maxLength: 128 });
const places = fc.record({ object: fc.nat(MAX - 1), after: keys }, { requiredKeys: ["object"] });

test("a cursor is read as the place that it was made of, whatever the key is", () => {
  fc.assert(
    fc.property(places, (place) => {
      expect(readKeyCursor(keyCursor(place), MAX)).toEqual(place);
    }),
  );
});

test("a cursor of an object that the policy does not have is none", () => {
  expect(readKeyCursor(keyCursor({ object: 4, after: "a" }), 4)).toBe(undefined);
  expect(readKeyCursor(keyCursor({ object: 3, after: "a" }), 4)).toEqual({ object: 3, after: "a" });
});

test.each([
  "",
  "a",
  "=",
  "MA==",
  "M A",
  "-",
  keyCursor({ object: -1 }),
  keyCursor({ object: 1.5 }),
  keyCursor({ object: Infinity }),
  keyCursor({ object: 100_000 }),
  keyCursor({ object: 1, after: "" }),
  keyCursor({ object: 1, after: "x".repeat(600) }),
  // "01", "1/\xff" in bytes that are no UTF-8, and "1 /a".
  "MDE",
  "MS__",
  "MSAvYQ",
])("%j is no cursor", (cursor) => {
  expect(readKeyCursor(cursor, MAX)).toBe(undefined);
});
