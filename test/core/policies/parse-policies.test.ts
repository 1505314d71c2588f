import { expect, test } from "vitest";
import type { AnyAlgorithm } from "../../../core/algorithms/algorithm.ts";
import { algorithms } from "../../../core/algorithms/registry.ts";
import { tokenBucket } from "../../../core/algorithms/token-bucket.ts";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";

const BUCKET = { algorithm: "token-bucket", limit: 5, window: "1s" };

test("a policy says what it says, and the rest has defaults", () => {
  const policy = parsePolicies({ api: BUCKET }).get("api");
  expect(policy).toMatchObject({
    name: "api",
    onFailure: "closed",
    deadlineMs: 500,
    objects: "per-key",
    reservation: { leastMs: 1_000, mostMs: 8_000 },
    localDecisions: { admits: true, denies: true },
    shadow: false,
    keyKind: "text",
  });
  expect(policy?.rules).toMatchObject([
    { name: "api", capacity: 5, config: { limit: 5, windowMs: 1_000, burst: 5 } },
  ]);
});

test.each([
  [250, 250],
  ["250ms", 250],
  ["10s", 10_000],
  ["15m", 900_000],
  ["1h", 3_600_000],
  ["30d", 2_592_000_000],
])("a window of %j is %d ms", (window, windowMs) => {
  expect(parsePolicies({ a: { ...BUCKET, window } }).get("a")?.rules[0].quota.windowMs).toBe(windowMs);
});

test("reservations can be off, automatic, or have a time to live", () => {
  const lifetimes = (reservation: unknown) =>
    parsePolicies({ a: { ...BUCKET, reservation } }).get("a")?.reservation;
  expect(["off", "auto", { ttl: "2s" }, { ttl: 5 }, { ttl: "1m" }].map(lifetimes)).toEqual([
    { leastMs: 0, mostMs: 0 },
    { leastMs: 1_000, mostMs: 8_000 },
    { leastMs: 2_000, mostMs: 2_000 },
    { leastMs: 5, mostMs: 5 },
    { leastMs: 8_000, mostMs: 8_000 },
  ]);
});

test("an isolate decides only what it can without knowing when units were taken, or what a denial changes", () => {
  const localDecisions = (fields: object) =>
    parsePolicies({ a: { limit: 5, window: "1s", ...fields } }).get("a")?.localDecisions;
  const both = { admits: true, denies: true };
  const none = { admits: false, denies: false };
  expect(localDecisions({ algorithm: "token-bucket" })).toEqual(both);
  expect(localDecisions({ algorithm: "sliding-log" })).toEqual(both);
  expect(localDecisions({ algorithm: "token-bucket", reservation: "off" })).toEqual(none);
  expect(localDecisions({ algorithm: "sliding-log", minInterval: 5 })).toEqual({
    admits: false,
    denies: true,
  });
  expect(localDecisions({ algorithm: "sliding-log", countDenied: true })).toEqual(none);
  const slots = { algorithm: "concurrency", limit: 5 };
  const rate = { algorithm: "token-bucket", limit: 5, window: "1s" };
  const elsewhereOf = (rules: object) => parsePolicies({ a: { rules } }).get("a")?.localDecisions;
  expect(elsewhereOf({ slots, rate })).toEqual(none);
  expect(elsewhereOf({ rate, other: { ...rate, algorithm: "sliding-log", minInterval: 1 } })).toEqual({
    admits: false,
    denies: true,
  });
});

test("rules have names, units and algorithms of their own, and share what the policy says", () => {
  const rules = {
    constructor: BUCKET,
    tokens: { algorithm: "sliding-log", limit: 9, window: "1m", unit: "tokens" },
    slots: { algorithm: "concurrency", limit: 2, ttl: "10s", maxWait: "5s" },
    others: { algorithm: "concurrency", limit: 3, ttl: "20s", maxTtl: "30s", maxWaiters: 7 },
  };
  const policy = parsePolicies({ a: { rules, onFailure: "open" } }).get("a");
  expect(policy).toMatchObject({ name: "a", onFailure: "open" });
  expect(policy?.rules.map(({ name, unit, capacity }) => [name, unit, capacity])).toEqual([
    ["constructor", "requests", 5],
    ["tokens", "tokens", 9],
    ["slots", "concurrent-requests", 2],
    ["others", "concurrent-requests", 3],
  ]);
  // One lease of several rules keeps to the strictest terms.
  expect(policy?.lease).toEqual({ ttlMs: 10_000, maxTtlMs: 30_000, maxWaitMs: 5_000, maxWaiters: 7 });
  expect(parsePolicies({ a: BUCKET }).get("a")?.lease).toBeUndefined();
});

test("policies may come as JSON text", () => {
  expect([...parsePolicies(JSON.stringify({ a: BUCKET })).keys()]).toEqual(["a"]);
});

test.each([
  ["no policies", {}, "POLICIES must be a table"],
  ["nothing", undefined, "POLICIES must be a table"],
  ["a list", [BUCKET], "POLICIES must be a table"],
  ["text that is not JSON", "{", "(it is text that is not JSON: SyntaxError"],
  ["a name with a slash", { "a/b": BUCKET }, 'policy "a/b": its name is "a/b": must be 1 to 64 letters'],
  ["a name of many letters", { ["a".repeat(65)]: BUCKET }, "must be 1 to 64 letters"],
  ["__proto__", JSON.parse(`{"__proto__":${JSON.stringify(BUCKET)}}`), 'policy "__proto__": its name'],
  ["no algorithm", { a: { limit: 1 } }, 'policy "a": algorithm is missing: must be one of "token-bucket"'],
  [
    "another algorithm",
    { a: { ...BUCKET, algorithm: "gcra" } },
    'algorithm is "gcra": must be one of "token-bucket"',
  ],
  ["no table", { a: 3 }, 'policy "a": the value is 3: must be a table with an algorithm or with rules'],
  [
    "no limit",
    { a: { algorithm: "token-bucket", window: 1 } },
    "limit is missing: must be an integer from 1 to 1000000000",
  ],
  ["a limit of 0", { a: { ...BUCKET, limit: 0 } }, "limit is 0: must be an integer from 1"],
  ["a fraction", { a: { ...BUCKET, limit: 1.5 } }, "limit is 1.5: must be an integer"],
  ["text for a limit", { a: { ...BUCKET, limit: "5" } }, 'limit is "5": must be an integer'],
  ["NaN", { a: { ...BUCKET, limit: Number.NaN } }, "limit is NaN: must be an integer"],
  ["a window of 0", { a: { ...BUCKET, window: 0 } }, "window is 0: must be a duration of 1 ms or more"],
  ["a window in weeks", { a: { ...BUCKET, window: "2w" } }, 'window is "2w": must be a duration'],
  ["a burst of -1", { a: { ...BUCKET, burst: -1 } }, "burst is -1: must be an integer"],
  [
    "a misspelt field",
    { a: { ...BUCKET, brust: 7 } },
    'policy "a": brust is not a field: there are algorithm, ',
  ],
  [
    "onFailure",
    { a: { ...BUCKET, onFailure: "maybe" } },
    'onFailure is "maybe": must be one of "closed", "open", "local"',
  ],
  [
    "deadlineMs",
    { a: { ...BUCKET, deadlineMs: "1s" } },
    'deadlineMs is "1s": must be an integer from 1 to 60000',
  ],
  [
    "objects",
    { a: { ...BUCKET, objects: "many" } },
    'objects is "many": must be "per-key" or an integer from 1',
  ],
  ["reservation", { a: { ...BUCKET, reservation: { ttl: "2h" } } }, "reservation is an object: must be"],
  ["shadow", { a: { ...BUCKET, shadow: "yes" } }, 'shadow is "yes": must be true or false'],
  ["keyKind", { a: { ...BUCKET, keyKind: "cidr" } }, 'keyKind is "cidr": must be one of "text", "ip"'],
  [
    "rules that are none",
    { a: { rules: {} } },
    'policy "a": rules is an object: must be 1 to 16 tables, one a rule',
  ],
  ["rules that are a list", { a: { rules: [BUCKET] } }, "rules is an array of 1: must be 1 to 16 tables"],
  [
    "17 rules",
    { a: { rules: Object.fromEntries(Array.from({ length: 17 }, (_, index) => [`r${index}`, BUCKET])) } },
    "must be 1 to 16 tables",
  ],
  [
    "a field beside rules",
    { a: { limit: 3, rules: { b: BUCKET } } },
    'policy "a": limit is beside rules: must be in one of the rules, or be one of onFailure, ',
  ],
  [
    "a policy's field in a rule",
    { a: { rules: { b: { ...BUCKET, shadow: true } } } },
    "shadow is not a field: there are algorithm, unit, limit, window, burst",
  ],
  [
    "a rule's limit",
    { a: { rules: { b: BUCKET, c: { ...BUCKET, limit: 0 } } } },
    'policy "a": rules.c.limit is 0: must be an integer from 1',
  ],
  [
    "a rule's algorithm",
    { a: { rules: { b: {} } } },
    'rules.b.algorithm is missing: must be one of "token-bucket", "sliding-log", "concurrency"',
  ],
  [
    "a rule's name",
    { a: { rules: { "b c": BUCKET } } },
    'the name of a rule is "b c": must be 1 to 64 letters',
  ],
  ["a unit", { a: { ...BUCKET, unit: "" } }, 'unit is "": must be 1 to 64 letters'],
  [
    "a log of too many",
    { a: { algorithm: "sliding-log", limit: 1_000_001, window: "1h" } },
    "limit is 1000001: must be at most 1000000",
  ],
  [
    "countDenied",
    { a: { algorithm: "sliding-log", limit: 1, window: 1, countDenied: 1 } },
    "countDenied is 1: must be true or false",
  ],
  ["a lease's ttl", { a: { algorithm: "concurrency", limit: 1, ttl: 0 } }, "ttl is 0: must be a duration"],
  [
    "a lease's maxTtl",
    { a: { algorithm: "concurrency", limit: 1, ttl: "2m", maxTtl: "1m" } },
    "maxTtl is 60000: must be at least the ttl of 120000 ms",
  ],
  ["a pool", { a: { ...BUCKET, pool: "memcached" } }, 'pool is "memcached": must be one of "redis"'],
  [
    "local without a pool",
    { a: { ...BUCKET, onFailure: "local" } },
    'onFailure is "local": must be left out, or with pool = "redis"',
  ],
  [
    "a share without a pool",
    { a: { ...BUCKET, localShare: 0.5 } },
    'localShare is 0.5: must be left out, or with pool = "redis"',
  ],
  [
    "a share that nothing uses",
    { a: { ...BUCKET, pool: "redis", localShare: 0.5 } },
    'localShare is 0.5: must be left out, or with onFailure = "local"',
  ],
  [
    "a share above 1",
    { a: { ...BUCKET, pool: "redis", onFailure: "local", localShare: 1.5 } },
    "localShare is 1.5: must be a number above 0 and at most 1",
  ],
  [
    "an inexact bucket",
    { a: { ...BUCKET, limit: 1e9, window: "30d" } },
    "limit is 1000000000: must be at most 3474",
  ],
])("%s is refused, and the error says what is allowed", (_, policies, message) => {
  expect(() => parsePolicies(policies)).toThrow(message);
});

test("every bad policy and field is named at once", () => {
  const bad = { a: { ...BUCKET, limit: 0, window: 0 }, b: BUCKET, c: { ...BUCKET, shadow: 1 } };
  expect(() => parsePolicies(bad)).toThrow(
    /policy "a": limit is 0.*\n.*policy "a": window is 0.*\n.*policy "c": shadow is 1/,
  );
});

test("an algorithm that the script of pools does not know is refused with a pool, and is fine without", () => {
  const { isPoolable: _, ...unknown } = tokenBucket;
  const registry = algorithms as Map<string, AnyAlgorithm>;
  registry.set("toy", { ...unknown, name: "toy" });
  try {
    const fields = { algorithm: "toy", limit: 1, window: "1s" };
    expect(parsePolicies({ a: fields }).get("a")?.rules[0].algorithm.name).toBe("toy");
    expect(() => parsePolicies({ a: { ...fields, pool: "redis" } })).toThrow(
      'policy "a": pool is "redis": must be left out with algorithm "toy"',
    );
  } finally {
    registry.delete("toy");
  }
});

test.each(["constructor", "prototype"])("a unit that parsers leave out of a cost is refused: %s", (unit) => {
  const fields = { algorithm: "token-bucket", limit: 1, window: "1s", unit };
  expect(() => parsePolicies({ a: fields })).toThrow(
    `unit is "${unit}": must be 1 to 64 letters, digits, - or _, beginning with a letter or digit, but not`,
  );
});
