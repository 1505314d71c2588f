import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import { BEFORE_ALLOWED } from "../../../core/policies/policy-fields.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import { objectNames, sharedObjects } from "../../../core/protocol/names.ts";

const parse = (fields: object) =>
  parsePolicies({ a: { algorithm: "token-bucket", limit: 1, window: "1s", ...fields } }).get("a") as Policy;

test("a policy may say where its keys were before, once or in a list", () => {
  expect(parse({})).not.toHaveProperty("objectsBefore");
  expect(parse({ objects: 32, objectsBefore: 16 }).objectsBefore).toEqual([16]);
  expect(parse({ objects: 32, objectsBefore: "per-key" }).objectsBefore).toEqual(["per-key"]);
  expect(parse({ objectsBefore: [4, 8, 65_536] }).objectsBefore).toEqual([4, 8, 65_536]);
});

test.each([
  [{ objects: 2, objectsBefore: 0 }, `objectsBefore is 0: must be ${BEFORE_ALLOWED}`],
  [{ objects: 2, objectsBefore: 65_537 }, `objectsBefore is 65537: must be ${BEFORE_ALLOWED}`],
  [{ objects: 2, objectsBefore: "4" }, `objectsBefore is "4": must be ${BEFORE_ALLOWED}`],
  [{ objects: 2, objectsBefore: [] }, `objectsBefore is an array of 0: must be ${BEFORE_ALLOWED}`],
  [{ objects: 2, objectsBefore: [3, 3] }, `objectsBefore is an array of 2: must be ${BEFORE_ALLOWED}`],
  [{ objects: 2, objectsBefore: [3, 4, 5, 6] }, `objectsBefore is an array of 4: must be ${BEFORE_ALLOWED}`],
  [{ objects: 2, objectsBefore: 2 }, `objectsBefore is 2: must be ${BEFORE_ALLOWED}`],
  [{ objectsBefore: ["per-key", 2] }, `objectsBefore is an array of 2: must be ${BEFORE_ALLOWED}`],
  [
    { objects: 2, objectsBefore: 4, pool: "redis" },
    "objectsBefore is 4: must be left out, or without a pool",
  ],
])("%j is refused", (fields, said) => {
  expect(() => parse(fields)).toThrow(said);
});

test("a key may be in one object by each layout, today's first, and in one only where they agree", () => {
  const policy = parse({ objects: 32, objectsBefore: [16, "per-key"] });
  // For ever: other names would be other objects.
  expect(objectNames(policy, "user:42")).toEqual(["a/shared/0", "a/key/user:42"]);
  expect(objectNames(policy, "user:4")).toEqual(["a/shared/18", "a/shared/2", "a/key/user:4"]);
  expect(sharedObjects(policy)).toBe(32);
  expect(sharedObjects(parse({ objects: 4, objectsBefore: 16 }))).toBe(16);
  const doubled = parse({ objects: 32, objectsBefore: 16 });
  const stay = Array.from({ length: 1_000 }, (_, key) => objectNames(doubled, `key ${key}`).length === 1);
  expect(Math.abs(stay.filter(Boolean).length - 500)).toBeLessThan(80);
});
