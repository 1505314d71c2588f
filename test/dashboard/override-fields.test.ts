import { expect, test } from "vitest";
import type { Override } from "../../dashboard/answers.ts";
import { effectOf, enteredIn, fieldsOf, limitsOf } from "../../dashboard/override-fields.ts";

const override = (fields: object): Override => ({ policy: "llm", pattern: "big:*", version: 3, ...fields });

test.each([
  { limit: 5, burst: 6 },
  { window: "90s", countDenied: true },
  { rules: { tokens: { limit: 5_000 }, requests: { window: "1h", limit: 0.5 } } },
])("the form of an override makes the override again: %j", (fields) => {
  expect(
    limitsOf(
      enteredIn(
        override({
          ...fields,
          startsAt: "2026-12-01T00:00:00Z",
          expiresAt: "2027-01-01T00:00:00Z",
          note: "n",
        }),
      ),
    ),
  ).toEqual(fields);
});

test("an empty field is as the policy has it, and text that is no number is left to the limiter to refuse", () => {
  expect(limitsOf({ "/limit": " ", "/burst": " 7 ", "/window": "60" })).toEqual({ burst: 7, window: 60 });
  expect(limitsOf({ "/limit": "many" })).toEqual({ limit: "many" });
});

test("the form has the fields of each rule's algorithm with the policy's values, and those of the override", () => {
  const bucket = { algorithm: "token-bucket", unit: "requests", capacity: 30, limit: 20, windowMs: 60_000 };
  expect(fieldsOf("api", [{ name: "api", ...bucket }], { "/burst": "9" })).toEqual([
    [
      "",
      [
        { name: "limit", pointer: "/limit", now: "20" },
        { name: "window", pointer: "/window", now: "1m" },
        { name: "burst", pointer: "/burst", now: "" },
      ],
    ],
  ]);
  const rules = [
    { name: "requests", ...bucket },
    { name: "tokens", ...bucket },
  ];
  const found = fieldsOf("llm", rules, {});
  expect(found.map(([rule, fields]) => [rule, fields.map(({ pointer }) => pointer)])).toEqual([
    ["requests", ["/rules/requests/limit", "/rules/requests/window"]],
    ["tokens", ["/rules/tokens/limit", "/rules/tokens/window"]],
  ]);
});

test("an override has one effect", () => {
  const effects = [{ blocked: true }, { unlimited: true }, { multiply: 3 }, { limit: 3 }];
  expect(effects.map((fields) => effectOf(override(fields)))).toEqual([
    "blocked",
    "unlimited",
    "multiply",
    "limits",
  ]);
});
