import fc from "fast-check";
import { expect, test } from "vitest";
import { hashOf, placeOf } from "../../dashboard/places.ts";

const name = fc.string({ unit: "grapheme", minLength: 1, maxLength: 40 }).map((text) => text.toWellFormed());
const place = fc.oneof(
  fc.record({ at: fc.constant("policy" as const), policy: name }),
  fc.record({ at: fc.constant("key" as const), policy: name, key: name }),
  fc.record({ at: fc.constant("try" as const), policy: name, key: name }),
  fc.constantFrom({ at: "overview" } as const, { at: "catalog" } as const),
);

test("every place comes back from its address, whatever is in a key", () => {
  fc.assert(
    fc.property(place, (each) => {
      expect(placeOf(hashOf(each))).toEqual(each);
    }),
  );
  const odd = { at: "key", policy: "api", key: "../a/b?c#d%2F" } as const;
  expect(placeOf(hashOf(odd))).toEqual(odd);
});

test("what says no place is the overview, and a broken escape stands for itself", () => {
  for (const hash of ["", "#", "#/", "#/nowhere", "#/key/api", "#/policy"])
    expect(placeOf(hash)).toEqual({ at: "overview" });
  expect(placeOf("#/policy/%E0%A4%A")).toEqual({ at: "policy", policy: "%E0%A4%A" });
});
