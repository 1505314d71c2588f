import { parse } from "smol-toml";
import { expect, test } from "vitest";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { describe, meant, nearest } from "../../core/violations.ts";

test.each([
  ["dney", ["deny"], "deny"],
  ["POLICYS", ["POLICIES", "REGIONS"], "POLICIES"],
  ["rule", ["algorithm", "rules"], "rules"],
  ["apii", ["login", "api", "apis"], "api"],
  ["API", ["api"], "api"],
  ["token_bucket", ["sliding-log", "token-bucket"], "token-bucket"],
  ["winodw", ["limit", "window"], "window"],
  ["x", ["deny"], undefined],
  ["HOME", ["POLICIES", "STATE_DIR"], undefined],
  ["tenant", ["limit", "window", "burst"], undefined],
  ["", ["a"], "a"],
])("%j among %j was meant to be %j", (given, known, expected) => {
  expect(nearest(given, known)).toBe(expected);
});

test("a word longer than an error quotes is not measured", () => {
  expect(meant("a".repeat(81), ["a".repeat(81)])).toBe("");
  expect(meant("polcy", ["policy", "key"])).toBe(" (did you mean policy?)");
});

test("a date of TOML is called a date", () => {
  const { limit } = parse("limit = 2026-01-01");
  expect(describe(limit)).toBe("a date");
  expect(() => parsePolicies({ a: { algorithm: "token-bucket", limit, window: "1s" } })).toThrow(
    "limit is a date: must be an integer",
  );
});
