import { expect, test } from "vitest";
import { parseLog, requireKnownNames } from "../../../core/policies/parse-policies.ts";

test("without a table failures are logged, denials, keys and traces are not", () => {
  expect(parseLog(undefined)).toEqual({ denials: 0, failures: 1, keys: false, traces: false });
  expect(parseLog({ denials: 0.01 })).toEqual({ denials: 0.01, failures: 1, keys: false, traces: false });
  const settings = { denials: 1, failures: 0, keys: true, traces: true };
  expect(parseLog(settings)).toEqual(settings);
});

test.each([
  [{ denials: 2 }, "LOG: denials is 2: must be a number from 0 to 1"],
  [{ failures: -0.1 }, "LOG: failures is -0.1: must be a number from 0 to 1"],
  [{ denials: "1%" }, 'LOG: denials is "1%": must be a number from 0 to 1'],
  [{ keys: "yes" }, 'LOG: keys is "yes": must be true or false'],
  [
    { denial: 1 },
    "LOG: denial is not a field: there are denials, failures, keys, traces (did you mean denials?)",
  ],
  ["all", 'LOG: the value is "all": must be an object with the fields denials, failures, keys, traces'],
])("%j does not start: it says what is allowed", (given, detail) => {
  expect(() => parseLog(given)).toThrow(detail);
});

test("a table that was meant to be this one is refused", () => {
  expect(() => requireKnownNames({ LOGS: { denials: 1 } })).toThrow("LOGS is not a variable that is read");
  expect(() => requireKnownNames({ LOG: { denials: 1 }, LOGO: "https://example.com" })).not.toThrow();
});
