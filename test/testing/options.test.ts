/** Options that a limiter of a test would not read: its test would count by the real clock, or under no policy. */
import { describe, expect, test } from "vitest";
import { createMemoryLimiter } from "../../package/memory.ts";
import { manualClock, memoryLimiter } from "../../package/testing.ts";

const policies = {
  login: { algorithm: "sliding-log", limit: 5, window: "15m" },
  api: { algorithm: "token-bucket", limit: 5, window: "1s" },
};
const clock = manualClock();

describe.each([
  { name: "memoryLimiter", make: (given: unknown) => memoryLimiter(given as never), word: "clock" },
  {
    name: "createMemoryLimiter",
    make: (given: unknown) => createMemoryLimiter(given as never),
    word: "time",
  },
])("$name", ({ make, word }) => {
  const other = word === "clock" ? "time" : "clock";
  test.each([
    [
      { policies, [other]: clock },
      `${other} is not an option: there are policies, policy, ${word} (did you mean ${word}?)`,
    ],
    [{ policies, polcy: "login" }, "polcy is not an option: there are policies, policy"],
    [{ policies, polcy: "login" }, "(did you mean policy?)"],
    [{ policies, policy: "lgoin" }, 'policy is "lgoin": must be one of "login", "api" (did you mean login?)'],
    [{ policies, policy: 5 }, 'policy is 5: must be one of "login", "api"'],
    [{ policies, policy: null }, 'policy is null: must be one of "login", "api"'],
    [
      { policies, [word]: 1_000 },
      `${word} is 1000: must be a clock, as manualClock() of weir-limiter/testing makes one`,
    ],
    [{ policies, [word]: Date.now }, `${word} is a function: must be a clock`],
    [{ policies, [word]: null }, `${word} is null: must be a clock`],
    [{ policies, [word]: { nowMs: Date.now } }, `${word} is an object: must be a clock`],
    [{}, "policies is missing: must be a table of policies by their names"],
    [{ policy: "login" }, "policies is missing: must be a table of policies by their names"],
    [undefined, `the options are undefined: must be an object with policies, policy, ${word}`],
  ])("refuses %o: %s", (given, said) => {
    expect(() => make(given)).toThrow(TypeError);
    expect(() => make(given)).toThrow(said);
  });

  test("takes what it knows, and takes undefined for left out", () => {
    const all = { policies, policy: "login", [word]: clock };
    for (const given of [
      all,
      { ...all, policy: undefined },
      { ...all, [word]: undefined, [other]: undefined },
    ])
      expect(() => make(given)).not.toThrow();
  });
});

test.each([
  ["x", '"x"'],
  [Number.NaN, "NaN"],
  [Infinity, "Infinity"],
  [-1, "-1"],
  [1.5, "1.5"],
  [null, "null"],
])("a clock cannot begin at %o: startMs is %s", (startMs, said) => {
  const make = () => manualClock(startMs as number);
  expect(make).toThrow(TypeError);
  expect(make).toThrow(`startMs is ${said}: must be an integer, 0 or more`);
});
