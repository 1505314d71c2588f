import * as fc from "fast-check";
import { describe, expect, test, vi } from "vitest";
import { normaliseKey } from "../../../core/catalog/keys.ts";
import {
  ipAddressIn,
  matchesParts,
  MAX_BEGINNING_LENGTHS,
  MAX_END_LENGTHS,
  OverrideIndex,
  parsePattern,
  type Pattern,
} from "../../../core/catalog/patterns.ts";
import { depth } from "../../support/depth.ts";

const TEXT = { keyKind: "text" } as const;
const IP = { keyKind: "ip" } as const;

function read(policy: typeof TEXT | typeof IP, text: string): Pattern {
  const pattern = parsePattern(policy, text);
  if (pattern === undefined) throw new Error(`${text} is no pattern`);
  return pattern;
}

/** What the pattern means, by a regular expression. */
function means(pattern: string): RegExp {
  const parts = pattern.split("*").map((part) => part.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`));
  return new RegExp(`^${parts.join("[^]*")}$`);
}

/** The rule in the documentation, in the slow way: a key, then the longest beginning, then the most text. */
function mostSpecific(patterns: readonly string[], key: string): string | undefined {
  if (patterns.includes(key)) return key;
  const matching = patterns.filter((pattern) => means(pattern).test(key));
  const order = (a: string, b: string) =>
    b.indexOf("*") - a.indexOf("*") ||
    b.replaceAll("*", "").length - a.replaceAll("*", "").length ||
    (a < b ? -1 : 1);
  return matching.toSorted(order)[0];
}

const letters = (most: number) => fc.string({ unit: fc.constantFrom("a", "b", ":"), maxLength: most });
const glob = fc
  .array(letters(3), { minLength: 1, maxLength: 4 })
  .map((parts) => parts.join("*"))
  .filter((text) => text !== "");

describe("an index of overrides", () => {
  test("finds what the slow rule finds, of all and of those that count, after any additions and removals", () => {
    const change = fc.record({ pattern: glob, isRemoval: fc.boolean() });
    fc.assert(
      fc.property(
        fc.array(change, { maxLength: 30 }),
        fc.array(letters(8), { maxLength: 20 }),
        (changes, keys) => {
          const index = new OverrideIndex<string>();
          const there = new Set<string>();
          for (const { pattern: given, isRemoval } of changes) {
            const pattern = read(TEXT, given);
            if (isRemoval) index.delete(pattern);
            else index.set(pattern, pattern.text);
            if (isRemoval) there.delete(pattern.text);
            else there.add(pattern.text);
          }
          expect(index.size).toBe(there.size);
          const counts = (pattern: string) => pattern.length % 2 === 0;
          for (const key of keys) {
            expect(index.find(key)).toBe(mostSpecific([...there], key));
            expect(index.find(key, counts)).toBe(mostSpecific([...there].filter(counts), key));
          }
        },
      ),
      { numRuns: depth(400, 2_000) },
    );
  });

  test("looks for each beginning and each end of a key once, and no more often than both have lengths", () => {
    const index = new OverrideIndex<string>();
    const key = "a".repeat(256) + "b".repeat(256);
    for (let length = 0; length < MAX_BEGINNING_LENGTHS; length += 1)
      for (const end of [length % MAX_END_LENGTHS, MAX_END_LENGTHS - 1]) {
        const pattern = read(TEXT, `${"a".repeat(length)}*${"b".repeat(end)}`);
        index.set(pattern, pattern.text);
      }
    const slices = vi.spyOn(String.prototype, "slice");
    const lookups = vi.spyOn(Map.prototype, "get");
    const never = index.find(key, () => false);
    const [cuts, looks] = [slices.mock.calls.length, lookups.mock.calls.length];
    vi.restoreAllMocks();
    expect(never).toBeUndefined();
    expect(cuts).toBeLessThanOrEqual(MAX_BEGINNING_LENGTHS + MAX_END_LENGTHS);
    expect(looks).toBeLessThanOrEqual(MAX_BEGINNING_LENGTHS * (MAX_END_LENGTHS + 1) + 1);
  });

  test("of ranges the narrowest wins, and an address before all", () => {
    const index = new OverrideIndex<string>();
    for (const text of [
      "192.0.2.0/24",
      "192.0.0.0/16",
      "192.0.2.7",
      "0.0.0.0/0",
      "2001:db8::/32",
      "2001:db8:1::/48",
    ]) {
      const pattern = read(IP, text);
      index.set(pattern, text);
    }
    const find = (address: string) => index.find(normaliseKey(IP, address) ?? "");
    expect(find("192.0.2.7")).toBe("192.0.2.7");
    expect(find("192.0.2.8")).toBe("192.0.2.0/24");
    expect(find("192.0.3.8")).toBe("192.0.0.0/16");
    expect(find("10.0.0.1")).toBe("0.0.0.0/0");
    expect(find("2001:db8:1:2::9")).toBe("2001:db8:1::/48");
    expect(find("2001:db8:2::9")).toBe("2001:db8::/32");
    expect(find("2001:db9::9")).toBeUndefined();
  });

  test("10,000 of one beginning, or of one end, are as quick to look through as one", () => {
    // Each lookup asks a map for each length of a beginning and of an end that there is, and there are few.
    const index = new OverrideIndex<number>();
    for (let each = 0; each < 10_000; each += 1) {
      index.set(read(TEXT, `customer:${each}`), each);
      index.set(read(TEXT, `*:${each}`), -each);
      index.set(read(TEXT, `team:${each}:*`), each);
    }
    expect(index.size).toBe(30_000);
    expect(index.find("customer:9999")).toBe(9_999);
    expect(index.find("any:77")).toBe(-77);
    expect(index.find("team:4:anybody")).toBe(4);
    expect(index.find("team")).toBeUndefined();
  });
});

describe("a pattern", () => {
  test("matches what its regular expression matches", () => {
    fc.assert(
      fc.property(glob, letters(12), (pattern, key) => {
        fc.pre(pattern.includes("*"));
        expect(matchesParts(pattern.split("*"), key)).toBe(means(pattern).test(key));
      }),
      { numRuns: depth(1_000, 5_000) },
    );
  });

  test.each([
    ["2001:db8::1", "2001:db8::/64"],
    ["2001:DB8:0:0::/64", "2001:db8::/64"],
    ["2001:db8:1:2:3::/32", "2001:db8::/32"],
    ["::ffff:192.0.2.1", "192.0.2.1"],
    ["192.0.2.77/24", "192.0.2.0/24"],
    ["192.0.2.77/32", "192.0.2.77"],
    ["0.0.0.0/0", "0.0.0.0/0"],
    ["::/0", "::/0"],
  ])("of addresses: %s is %s", (given, text) => {
    expect(parsePattern(IP, given)?.text).toBe(text);
  });

  test.each([
    "*",
    "192.0.2.0/33",
    "2001:db8::/65",
    "2001:db8::1/128",
    "192.0.2.0/",
    "hello",
    "",
    "192.0.2.*",
  ])("of addresses: %j is none", (given) => {
    expect(parsePattern(IP, given)).toBeUndefined();
  });

  test("of text has 1 to 512 bytes, and two wildcards side by side are one", () => {
    expect(parsePattern(TEXT, "")).toBeUndefined();
    expect(parsePattern(TEXT, "é".repeat(257))).toBeUndefined();
    expect(parsePattern(TEXT, "\uD800")).toBeUndefined();
    expect(parsePattern(TEXT, "a***b")?.text).toBe("a*b");
    expect(parsePattern(TEXT, "*")).toEqual({ kind: "glob", text: "*", parts: ["", ""] });
  });

  test("canonical addresses are numbers, in the order of their bits", () => {
    expect(ipAddressIn("192.0.2.1")).toEqual({ family: 4, value: 0xc0000201n });
    expect(ipAddressIn("2001:db8:1:2::/64")).toEqual({ family: 6, value: 0x20010db800010002n });
    expect(ipAddressIn("::/64")).toEqual({ family: 6, value: 0n });
    expect(ipAddressIn("customer:7")).toBeUndefined();
  });
});
