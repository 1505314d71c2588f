/** The errors for what is not known name what was meant, also where others call it otherwise. */
import { expect, test } from "vitest";
import { algorithms } from "../../../core/policies/algorithms.ts";
import { parsePolicies, requireKnownNames } from "../../../core/policies/parse-policies.ts";
import { POLICY_FIELDS } from "../../../core/policies/policy-fields.ts";

const SLOTS = { algorithm: "concurrency", limit: 2 };
const BUCKET = { algorithm: "token-bucket", limit: 2, window: "1s" };

/** The error for a policy. */
function errorOf(policy: object): string {
  try {
    parsePolicies({ api: policy });
  } catch (error) {
    return (error as Error).message;
  }
  throw new Error("it was accepted");
}

test.each([
  [{ ...SLOTS, queue: true }, "queue is not a field", "(did you mean maxWait and maxWaiters?)"],
  [{ ...SLOTS, maxQueue: 5 }, "maxQueue is not a field", "(did you mean maxWaiters?)"],
  [{ ...BUCKET, max_queue_size: 5 }, "max_queue_size is not a field", "(did you mean maxWaiters?)"],
  [{ ...BUCKET, capacity: 5 }, "capacity is not a field", "(did you mean burst?)"],
  [{ ...BUCKET, limt: 5 }, "limt is not a field", "(did you mean limit?)"],
  [{ ...BUCKET, shadw: true }, "shadw is not a field", "(did you mean shadow?)"],
  [{ rules: { a: BUCKET }, maxQueue: 5 }, "maxQueue is beside rules", "(did you mean maxWaiters?)"],
  [{ ...BUCKET, algorithm: "semaphore" }, 'algorithm is "semaphore"', "(did you mean concurrency?)"],
  [{ ...BUCKET, algorithm: "queue" }, 'algorithm is "queue"', "(did you mean concurrency with maxWait"],
  [
    { ...BUCKET, algorithm: "sliding-window" },
    'algorithm is "sliding-window"',
    "(did you mean sliding-log, or",
  ],
  [
    { ...BUCKET, algorithm: "SlidingWindow" },
    'algorithm is "SlidingWindow"',
    "(did you mean sliding-log, or",
  ],
  [{ ...BUCKET, algorithm: "tokenbucket" }, 'algorithm is "tokenbucket"', "(did you mean token-bucket?)"],
])("%o: %s %s", (policy, said, hint) => {
  const message = errorOf(policy);
  expect(message).toContain(said);
  expect(message).toContain(hint);
});

test.each([
  ["allow", "open"],
  ["fail-open", "open"],
  ["deny", "closed"],
  ["opne", "open"],
])("onFailure = %o is meant to be %s", (onFailure, meant) => {
  expect(errorOf({ ...BUCKET, onFailure })).toContain(`(did you mean ${meant}?)`);
});

test.each([
  ["15 min", '"15m"'],
  ["15 minutes", '"15m"'],
  ["1.5 hours", '"90m"'],
  ["0.5s", '"500ms"'],
  ["2 Days", '"2d"'],
  ["250 millis", '"250ms"'],
])("a window of %o is meant to be %s", (window, meant) => {
  expect(errorOf({ ...BUCKET, window })).toContain(`(did you mean ${meant}?)`);
});

test.each(["1 month", "0 min", "soon", "-5 min", "1e3s", "0.0001s"])(
  "a window of %o may be anything",
  (window) => {
    expect(errorOf({ ...BUCKET, window })).not.toMatch(/did you mean|might be/);
  },
);

test("a number without its unit may be seconds or milliseconds, as text too", () => {
  for (const window of [60, "60"])
    expect(errorOf({ ...BUCKET, window })).toContain('(60 might be "60s" or "60ms")');
});

test("a duration is only meant where it is allowed", () => {
  expect(errorOf({ ...BUCKET, maxWait: "900 days" })).not.toContain("did you mean");
});

test.each([...algorithms.keys()])(
  "%s: an unknown field lists its own fields, and where the others are",
  (algorithm) => {
    const message = errorOf({ algorithm, zzzzz: 1 });
    expect(message).toContain("zzzzz is not a field: there are algorithm, unit,");
    expect(message).toContain(
      "and those of every policy, which docs/policies.md of the package weir-limiter lists",
    );
    const line = message.split("\n").find((each) => each.includes("zzzzz")) ?? "";
    expect(Object.keys(POLICY_FIELDS).filter((field) => line.includes(`, ${field},`)).length).toBeLessThan(3);
  },
);

test("a table that is meant to be POLICIES is refused, and text of such a name is anybody's", () => {
  for (const name of ["POLICY", "policy", "Policy", "POLICYS", "policies"])
    expect(() => requireKnownNames({ POLICIES: {}, [name]: { api: BUCKET } })).toThrow(
      `${name} is not a variable that is read (did you mean POLICIES?)`,
    );
  expect(() => requireKnownNames({ POLICY: "strict", LEGACY: { a: 1 } })).not.toThrow();
});

// An object that came as JSON threw, and the catalog did not answer.
test("a duration that cannot be made a text is refused by name", () => {
  const window = JSON.parse('{"toString":"a","valueOf":1}') as unknown;
  expect(errorOf({ ...BUCKET, window })).toContain("window is an object: must be");
});
