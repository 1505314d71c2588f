import fc from "fast-check";
import { expect, test } from "vitest";
import { normaliseKey } from "../../../core/catalog/keys.ts";
import { isWithinPrefix } from "../../../core/catalog/patterns.ts";
import { depth } from "../../support/depth.ts";

const parts = fc.array(fc.constantFrom(0, 1, 10, 19, 128, 255), { minLength: 4, maxLength: 4 });
const groups = fc.array(fc.constantFrom(0, 1, 0xdb8, 0x2001), { minLength: 4, maxLength: 4 });

/** An address with these parts whose bits after the first `bits` are those of another one. */
function within(one: readonly number[], other: readonly number[], bits: number, each: number): number[] {
  return one.map((part, index) => {
    const kept = Math.max(0, Math.min(each, bits - index * each));
    const mask = 2 ** (each - kept) - 1;
    return (part & ~mask) | ((other[index] ?? 0) & mask);
  });
}

test.each([
  ["IPv4", parts, 8, (each: readonly number[]) => each.join(".")],
  ["IPv6", groups, 16, (each: readonly number[]) => `${each.map((part) => part.toString(16)).join(":")}::`],
] as const)("a range of %s that is within a prefix has no address without it", (_, address, each, textOf) => {
  let found = 0;
  fc.assert(
    fc.property(address, address, fc.nat(4 * each), fc.nat(12), (one, other, bits, length) => {
      const key = normaliseKey({ keyKind: "ip" }, textOf(one)) ?? "";
      const prefix = key.slice(0, length);
      if (!isWithinPrefix(`${textOf(one)}/${bits}`, prefix)) return;
      found += 1;
      const inside = normaliseKey({ keyKind: "ip" }, textOf(within(one, other, bits, each)));
      expect(inside?.startsWith(prefix), `${inside} of ${textOf(one)}/${bits}`).toBe(true);
    }),
    { numRuns: depth(1_000, 5_000) },
  );
  expect(found).toBeGreaterThan(300);
});

test("a pattern of text is within the prefix that it begins with", () => {
  expect(isWithinPrefix("tenant-a:*", "tenant-a:")).toBe(true);
  expect(isWithinPrefix("tenant-a:7", "tenant-a:")).toBe(true);
  for (const pattern of ["tenant-*", "*", "tenant-a", ""])
    expect(isWithinPrefix(pattern, "tenant-a:"), pattern).toBe(false);
});
