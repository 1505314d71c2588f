/** The policies of a wrangler.toml, in tests of an application. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { memoryLimiter, tomlPolicies } from "../../package/testing.ts";
import { readWranglerToml } from "../../scripts/project.ts";

const FILE = join(import.meta.dirname, "../../wrangler.toml");

test("they are those that wrangler reads, at the top and in an environment", () => {
  const text = readFileSync(FILE, "utf8");
  for (const environment of [undefined, "staging"]) {
    const policies = tomlPolicies(text, environment);
    expect(policies).toEqual(readWranglerToml(environment, FILE).policies);
    expect(parsePolicies(policies).size).toBeGreaterThan(0);
  }
});

test("a limiter in memory decides by them", async () => {
  const text = '[vars.POLICIES.login]\nalgorithm = "sliding-log"\nlimit = 1\nwindow = "15m"\n';
  const limiter = memoryLimiter({ policies: tomlPolicies(text), policy: "login" });
  expect((await limiter.limit({ key: "ann" })).success).toBe(true);
  expect((await limiter.limit({ key: "ann" })).success).toBe(false);
});

test.each([
  ["= 3", undefined, /^the text is no TOML: /],
  ['name = "weir"', undefined, /^POLICIES is missing: must be tables \[vars\.POLICIES\.<name>\]$/],
  ["[vars]\nPOLICIES = 3", undefined, /^POLICIES is 3: must be tables/],
  [
    "[env.staging]\n",
    "stagin",
    /^environment is "stagin": must be one of "staging" \(did you mean staging\?\)$/,
  ],
  [
    "[vars.POLICIES.a]\n",
    "staging",
    /^environment is "staging": must be left out, as the file has no environments$/,
  ],
  ["[vars.POLICIES.a]\n[env.staging]\n", "staging", /^POLICIES is missing/],
  [3 as unknown as string, undefined, /^text is 3: must be the text of a wrangler.toml$/],
])("%j in the environment %s is refused", (text, environment, said) => {
  expect(() => tomlPolicies(text, environment)).toThrow(said);
});
