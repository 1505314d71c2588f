/** Policies, overrides and tokens in the OpenAPI document: what the parser takes, by the same fields. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { algorithms } from "../../../core/policies/algorithms.ts";
import { parsePolicy } from "../../../core/policies/parse-policy.ts";
import { OVERRIDE_FIELDS, POLICY_FIELDS } from "../../../core/policies/policy-fields.ts";
import { openApiDocument } from "../../../worker/api/openapi.ts";
import { listPolicies } from "../../../worker/calls/keys.ts";
import { specimens } from "../../support/algorithms.ts";
import { matches, validatorOf } from "../../support/json-schema.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const document = JSON.parse(JSON.stringify(openApiDocument())) as {
  readonly components: { readonly schemas: Record<string, Schema> };
};
interface Schema {
  readonly properties?: Record<string, Schema>;
  readonly required?: readonly string[];
  readonly additionalProperties?: unknown;
  readonly enum?: readonly string[];
  readonly format?: string;
}
const { schemas } = document.components;
const allows = (name: string, value: unknown) =>
  matches(document, { $ref: `#/components/schemas/${name}` }, value).length === 0;
const BUCKET = { algorithm: "token-bucket", limit: 10, window: "1s" };

test("a policy has the fields of its algorithm and of every policy, and no other", () => {
  const names = Object.keys(schemas["PolicyOfOneRule"]?.properties ?? {});
  expect(names).toEqual(expect.arrayContaining(Object.keys(POLICY_FIELDS)));
  for (const { fields } of algorithms.values())
    expect(names).toEqual(expect.arrayContaining(Object.keys(fields)));
  expect(schemas["PolicyOfOneRule"]?.properties?.["algorithm"]?.enum).toEqual([...algorithms.keys()]);
  expect(Object.keys(schemas["PolicyOfRules"]?.properties ?? {})).toEqual(
    expect.arrayContaining(Object.keys(POLICY_FIELDS)),
  );
  for (const name of ["PolicyOfOneRule", "PolicyOfRules", "RuleFields", "OverrideRequest", "TokenRequest"])
    expect([name, schemas[name]?.additionalProperties]).toEqual([name, false]);
});

describe.each([...algorithms.keys()])("%s", (algorithm) => {
  test("what the parser takes is allowed", () => {
    const fields = algorithms.get(algorithm)?.fields ?? {};
    const check = validatorOf(document, { $ref: "#/components/schemas/PolicyFields" });
    // Specimens have durations as numbers.
    const asWritten = (field: string, value: unknown) =>
      ["duration", "duration?", "period"].includes(String(fields[field])) && typeof value === "number"
        ? `${value}ms`
        : value;
    const Fields = specimens[algorithm]?.fields ?? fc.constant({});
    fc.assert(
      fc.property(Fields, (specimen) => {
        const written = Object.entries(specimen).map(([field, value]) => [field, asWritten(field, value)]);
        const policy = { algorithm, ...Object.fromEntries(written) };
        expect(parsePolicy("api", policy)).not.toHaveProperty("problems");
        expect(check(policy)).toEqual([]);
        expect(check({ rules: { a: policy } })).toEqual([]);
      }),
    );
  });
});

/** Fields whose effect a rule is listed with under other names. */
const LISTED_AS: Readonly<Record<string, string>> = {
  delay: "undelayed",
  nodelay: "undelayed",
  maxBurst: "burst",
  maxDelay: "burst",
};

describe.each([...algorithms.keys()])("a listed rule of %s", (algorithm) => {
  const { properties = {} } = schemas["PolicyRule"] ?? {};
  const kinds = algorithms.get(algorithm)?.fields ?? {};

  test("has each field of the algorithm in the document", () => {
    const named = Object.entries(kinds).map(([field, kind]) => {
      const isTime = typeof kind === "string" && /^(duration|period)/.test(kind);
      return LISTED_AS[field] ?? (isTime ? `${field}Ms` : field);
    });
    expect(Object.keys(properties)).toEqual(expect.arrayContaining(["name", "unit", "capacity", ...named]));
  });

  test("has nothing that the document does not name, and no other kinds of values", () => {
    const check = validatorOf(document, { $ref: "#/components/schemas/PolicyRule" });
    fc.assert(
      fc.property(specimens[algorithm]?.fields ?? fc.constant({}), (specimen) => {
        const policies = parsePolicies({ api: { algorithm, ...specimen } });
        const [listed] = listPolicies({
          client: { policies: { named: policies } },
          principal: {},
        } as never).policies;
        const [rule = {}] = listed?.rules ?? [];
        expect(Object.keys(properties)).toEqual(expect.arrayContaining(Object.keys(rule)));
        expect(check(rule)).toEqual([]);
      }),
    );
  });
});

test("a listed rule with a penalty has it in the document", () => {
  const { properties = {} } = schemas["PolicyRule"] ?? {};
  expect(Object.keys(properties)).toEqual(expect.arrayContaining(["blockForMs", "maxBlockMs"]));
});

test.each([
  [{ ...BUCKET, onFailure: { limit: 2, window: "1s" }, notify: [0.8, 1], retryJitter: 0.1 }, true],
  [{ ...BUCKET, onFailure: "open", headers: ["draft-11", "x-ratelimit"], objects: 16, denialTtl: 0 }, true],
  [{ ...BUCKET, reservation: { ttl: "2s" }, objectsBefore: [4, 8], priorities: ["high", "normal"] }, true],
  [{ ...BUCKET, shed: { by: "reports", after: "30s" }, reserve: { critical: "20%" }, blockFor: "1m" }, true],
  [{ ...BUCKET, fair: true, weights: { "gold:*": 4 }, denialTtl: "5s", shadow: true }, true],
  [{ ...BUCKET, plans: { pro: { limit: 100, burst: 500 } }, limitInCall: { max: 1_000 } }, true],
  [{ rules: { a: BUCKET }, plans: { pro: { rules: { a: { limit: 5 } } } } }, true],
  [{ ...BUCKET, algorithm: "token-buket" }, false],
  [{ limit: 10, window: "1s" }, false],
  [{ ...BUCKET, limits: 5 }, false],
  [{ ...BUCKET, window: 60 }, false],
  [{ ...BUCKET, onFailure: "allow" }, false],
  [{ ...BUCKET, onFailure: { limit: 2 } }, false],
  [{ rules: { a: { limit: 5 } } }, false],
])("%j: the document and the parser agree", (policy, isAllowed) => {
  expect(!("problems" in parsePolicy("api", policy))).toBe(isAllowed);
  expect(allows("PolicyFields", policy)).toBe(isAllowed);
});

test("an override has figures and its own fields, with instants, and no other", () => {
  for (const override of [
    { limit: 20 },
    { limit: 20, burst: 40, note: "asked for more", expiresAt: "2027-01-31T12:00:00Z" },
    { rules: { tokens: { limit: 5, window: "1h" } } },
    { blocked: true, startsAt: "2027-01-31T12:00:00Z" },
  ]) {
    expect(allows("OverrideRequest", override)).toBe(true);
    expect(allows("Override", { policy: "api", pattern: "a:*", version: 3, ...override })).toBe(true);
  }
  for (const override of [
    { limit: 20, startAt: "2027-01-31T12:00:00Z" },
    { limit: "20" },
    { algorithm: "gcra" },
  ])
    expect(allows("OverrideRequest", override)).toBe(false);
  const { properties = {} } = schemas["OverrideRequest"] ?? {};
  expect(Object.keys(properties)).toEqual(expect.arrayContaining(Object.keys(OVERRIDE_FIELDS)));
  for (const field of ["startsAt", "expiresAt"]) expect(properties[field]?.format).toBe("date-time");
});

test("a token has the bounds that the parser has", () => {
  const token = { name: "ci", scopes: ["limit"] };
  expect([allows("TokenRequest", token), allows("TokenRequest", { ...token, scope: "limit" })]).toEqual([
    true,
    false,
  ]);
  expect(allows("TokenRequest", { ...token, scopes: [] })).toBe(false);
});
