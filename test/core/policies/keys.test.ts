import fc from "fast-check";
import ipaddr from "ipaddr.js";
import { expect, test } from "vitest";
import { normaliseKey } from "../../../core/catalog/keys.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import { objectName } from "../../../core/protocol/names.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

function policy(fields: Record<string, unknown>): Policy {
  const parsed = parsePolicies({ p: { algorithm: "token-bucket", limit: 1, window: 1, ...fields } }).get("p");
  if (parsed === undefined) throw new Error("no policy");
  return parsed;
}
const ADDRESSES = policy({ keyKind: "ip" });

test("text is taken byte by byte", () => {
  fc.assert(fc.property(fc.string({ unit: "binary" }), (key) => normaliseKey(policy({}), key) === key));
});

test.each([
  ["192.0.2.1", "192.0.2.1"],
  ["::ffff:192.0.2.1", "192.0.2.1"],
  ["::FFFF:c000:0201", "192.0.2.1"],
  ["2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"],
  ["2001:DB8:1:2::", "2001:db8:1:2::/64"],
  ["2001:0db8:0001:0002:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"],
  ["2001:db8:1:2::/64", "2001:db8:1:2::/64"],
  ["::1", "::/64"],
  ["::10.1.2.3", "::/64"],
  ["::a01:203", "::/64"],
])("the address %s counts as %s", (key, counted) => {
  expect(normaliseKey(ADDRESSES, key)).toBe(counted);
});

test.each([
  "192.0.2.01",
  "192.0.2.256",
  "192.0.2",
  "0x7f.0.0.1",
  "192.0.2.1/24",
  "192.0.2.1:80",
  "2001:db8::1/63",
  "2001:db8::1%eth0",
  "[2001:db8::1]",
  "::ffff:192.0.2.1/64",
  "2001:db8:::1",
  "localhost",
  " 192.0.2.1",
  "１９２.0.2.1",
])("%j is no address", (key) => {
  expect(normaliseKey(ADDRESSES, key)).toBeUndefined();
});

test("every address of a /64 counts as one key, and what is counted counts as itself", () => {
  const part = fc.integer({ min: 0, max: 0xffff }).map((number) => number.toString(16));
  const parts = fc.tuple(part, part, part, part);
  fc.assert(
    fc.property(parts, parts, parts, (network, host, otherHost) => {
      if (network.join(":") === "0:0:0:0") return;
      const one = normaliseKey(ADDRESSES, [...network, ...host].join(":"));
      expect(one).toBe(normaliseKey(ADDRESSES, [...network, ...otherHost].join(":")));
      expect(normaliseKey(ADDRESSES, String(one))).toBe(one);
    }),
  );
});

test("networks are written as they were when keys began to be stored", () => {
  // Zeros often, so that every place for `::` comes up.
  const part = fc.oneof(fc.constant(0), fc.constant(1), fc.integer({ min: 0, max: 0xffff }));
  fc.assert(
    fc.property(fc.array(part, { minLength: 8, maxLength: 8 }), fc.boolean(), (parts, isShort) => {
      const address = new ipaddr.IPv6(parts);
      const network = new ipaddr.IPv6([...parts.slice(0, 4), 0, 0, 0, 0]).toRFC5952String();
      const expected = address.isIPv4MappedAddress() ? address.toIPv4Address().toString() : `${network}/64`;
      const key = isShort ? address.toString() : address.toNormalizedString();
      expect(normaliseKey(ADDRESSES, key)).toBe(expected);
    }),
    { numRuns: depth(400, 2_000) },
  );
});

test("each key has its own object, whatever is in it; with N objects, one of N", () => {
  const perKey = policy({});
  const names = ["a", "b", "a/b", "a/key/b", "key/a", "é", "e\u0301", "p/key/a"].map((key) =>
    objectName(perKey, key),
  );
  expect(new Set(names).size).toBe(names.length);
  expect(objectName(perKey, "a")).toBe("p/key/a");
});

test("keys spread evenly over N objects, and a key's object never changes", () => {
  const shared = policy({ objects: 16 });
  const counts = new Map<string, number>();
  for (let user = 0; user < 16_000; user += 1) {
    const name = objectName(shared, `user:${user}`);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  expect(counts.size).toBe(16);
  for (const count of counts.values()) expect(Math.abs(count - 1_000)).toBeLessThan(200);
  // For ever: another answer here means that deployed keys would lose their state.
  expect(objectName(shared, "user:42")).toBe("p/shared/0");
});
