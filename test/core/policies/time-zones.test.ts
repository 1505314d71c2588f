/** An offset from UTC has no daylight saving: it may not be written, and stored ones stay in force. */
import { describe, expect, test } from "vitest";
import { PoliciesInForce, problemsOf, readOverride } from "../../../core/catalog/policies-in-force.ts";
import { parsePolicies, parseRegions } from "../../../core/policies/parse-policies.ts";

const MONTH = { algorithm: "fixed-window", limit: 5, window: "1 month" };
const ALLOWED =
  'must be the name of a time zone of the IANA database, such as "Europe/Berlin" or "UTC": an offset has no daylight saving';

describe.each(["+02:00", "-0530", "+02"])("%s", (timeZone) => {
  const refused = `timeZone is "${timeZone}": ${ALLOWED}`;

  test("is refused in the file, in a rule and in a plan", () => {
    expect(() => parsePolicies({ a: { ...MONTH, timeZone } })).toThrow(`policy "a": ${refused}`);
    expect(() => parsePolicies({ a: { rules: { b: { ...MONTH, timeZone } } } })).toThrow(
      `policy "a": rules.b.${refused}`,
    );
    expect(() => parsePolicies({ a: { ...MONTH, plans: { pro: { timeZone } } } })).toThrow(
      `policy "a": plans.pro.${refused}`,
    );
  });

  test("is refused where a policy is written at run time", () => {
    expect(problemsOf("a", { ...MONTH, timeZone })).toEqual([{ path: ["timeZone"], detail: refused }]);
  });

  test("stays in force where the catalog has it, with its overrides", () => {
    const policies = new PoliciesInForce({
      policies: new Map(),
      tables: new Map(),
      regions: parseRegions(),
    });
    policies.apply({
      revision: 1,
      isWhole: true,
      policies: [{ name: "a", version: 1, fields: { ...MONTH, timeZone } }],
      overrides: [{ policy: "a", pattern: "b", fields: { limit: 7 } }],
      tokens: [],
    });
    expect(policies.get("a")?.rules[0].config).toMatchObject({ limit: 5, timeZone });
    expect(policies.get("a")?.overrides?.find("b", 0)?.rules[0].capacity).toBe(7);
    expect(readOverride("a", MONTH, { timeZone })).not.toHaveProperty("problems");
  });
});

test.each(["UTC", "Europe/Berlin", "Etc/GMT+2", "EST5EDT"])("%s is a name", (timeZone) => {
  expect(problemsOf("a", { ...MONTH, timeZone })).toEqual([]);
});
