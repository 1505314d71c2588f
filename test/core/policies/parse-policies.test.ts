import { expect, test } from "vitest";
import type { AnyAlgorithm } from "../../../core/algorithms/algorithm.ts";
import { tokenBucket } from "../../../core/algorithms/token-bucket.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";

const HEADERS =
  '"draft-11", "draft-7", "x-ratelimit", "x-ratelimit-delta", or a list of one of the first two and one of the last two';
const JITTER = 'a number above 0 and at most 1, or a duration of at most 1 day such as "5s"';
const DENIAL_TTL =
  '"0s", or a duration of 1 ms or more with its unit, such as "250ms" "10s" "15m" "1h" "30d", at most 1h';
const BUCKET = { algorithm: "token-bucket", limit: 5, window: "1s" };
const FIXED = { algorithm: "fixed-window", limit: 5, window: "1 month" };

test("a policy says what it says, and the rest has defaults", () => {
  const policy = parsePolicies({ api: BUCKET }).get("api");
  expect(policy).toMatchObject({
    name: "api",
    onFailure: "closed",
    deadlineMs: 1_000,
    objects: "per-key",
    reservation: { leastMs: 1_000, mostMs: 8_000 },
    localDecisions: { admits: true, denies: true },
    shadow: false,
    headers: ["draft-11"],
    keyKind: "text",
  });
  expect(policy?.rules).toMatchObject([
    { name: "api", capacity: 5, config: { limit: 5, windowMs: 1_000, burst: 5 } },
  ]);
});

test.each([
  ["250ms", 250],
  ["10s", 10_000],
  ["15m", 900_000],
  ["1h", 3_600_000],
  ["30d", 2_592_000_000],
])("a window of %j is %d ms", (window, windowMs) => {
  expect(parsePolicies({ a: { ...BUCKET, window } }).get("a")?.rules[0].quota.windowMs).toBe(windowMs);
});

test("retryJitter is a part of the wait, or a duration, and off by default", () => {
  const jitter = (fields: object) => parsePolicies({ a: { ...BUCKET, ...fields } }).get("a")?.retryJitter;
  expect(jitter({})).toBe(undefined);
  expect(jitter({ retryJitter: 1 })).toEqual({ share: 1 });
  expect(jitter({ retryJitter: 0.1 })).toEqual({ share: 0.1 });
  expect(jitter({ retryJitter: "1d" })).toEqual({ mostMs: 86_400_000 });
});

test("denialTtl is a duration that may be 0, and 10 s by default", () => {
  const denialTtlMs = (fields: object) =>
    parsePolicies({ a: { ...BUCKET, ...fields } }).get("a")?.denialTtlMs;
  expect(denialTtlMs({})).toBe(10_000);
  expect(["0s", "0 ms", 0].map((denialTtl) => denialTtlMs({ denialTtl }))).toEqual([0, 0, 0]);
  expect(["250ms", "1h"].map((denialTtl) => denialTtlMs({ denialTtl }))).toEqual([250, 3_600_000]);
});

test.each([
  ["1 hour", 3_600_000, "calendar"],
  ["1 day", 86_400_000, "calendar"],
  ["1 week", 604_800_000, "calendar"],
  ["1 month", 2_592_000_000, "calendar"],
  ["1 year", 31_536_000_000, "calendar"],
  ["1 d", 86_400_000, "epoch"],
  ["30d", 2_592_000_000, "epoch"],
  ["250ms", 250, "epoch"],
])("a fixed window of %j has about %d ms, by the %s", (window, windowMs, align) => {
  const [rule] = parsePolicies({ a: { ...FIXED, window } }).get("a")?.rules ?? [];
  expect(rule?.quota.windowMs).toBe(windowMs);
  expect(rule?.config).toMatchObject({ align, jitterMs: 0 });
});

test("reservations can be off, automatic, or have a time to live", () => {
  const lifetimes = (reservation: unknown) =>
    parsePolicies({ a: { ...BUCKET, reservation } }).get("a")?.reservation;
  expect(["off", "auto", { ttl: "2s" }, { ttl: "5ms" }, { ttl: "1m" }].map(lifetimes)).toEqual([
    { leastMs: 0, mostMs: 0 },
    { leastMs: 1_000, mostMs: 8_000 },
    { leastMs: 2_000, mostMs: 2_000 },
    { leastMs: 5, mostMs: 5 },
    { leastMs: 8_000, mostMs: 8_000 },
  ]);
  expect([{ clients: false }, { clients: true }, { ttl: "2s", clients: false }].map(lifetimes)).toEqual([
    { leastMs: 1_000, mostMs: 8_000, clients: false },
    { leastMs: 1_000, mostMs: 8_000 },
    { leastMs: 2_000, mostMs: 2_000, clients: false },
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
  expect(localDecisions({ algorithm: "fixed-window", align: "first" })).toEqual(both);
  expect(localDecisions({ algorithm: "sliding-window-counter" })).toEqual(both);
  expect(localDecisions({ algorithm: "sliding-log", minInterval: "5ms" })).toEqual({
    admits: false,
    denies: true,
  });
  expect(localDecisions({ algorithm: "sliding-log", countDenied: true })).toEqual(none);
  const slots = { algorithm: "concurrency", limit: 5 };
  const rate = { algorithm: "token-bucket", limit: 5, window: "1s" };
  const elsewhereOf = (rules: object) => parsePolicies({ a: { rules } }).get("a")?.localDecisions;
  expect(elsewhereOf({ slots, rate })).toEqual(none);
  expect(elsewhereOf({ rate, other: { ...rate, algorithm: "sliding-log", minInterval: "1ms" } })).toEqual({
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

test("any policy says how callers may wait; where units are leased, its rules say so", () => {
  const slots = { algorithm: "concurrency", limit: 2, maxWait: "5s", maxWaiters: 7 };
  const waitingOf = (fields: object) => parsePolicies({ a: fields }).get("a")?.waiting;
  expect(waitingOf(BUCKET)).toEqual({ maxWaitMs: 30_000, maxWaiters: 1_000 });
  expect(waitingOf({ ...BUCKET, maxWait: "10m", maxWaiters: 3 })).toEqual({
    maxWaitMs: 600_000,
    maxWaiters: 3,
  });
  expect(waitingOf({ rules: { a: BUCKET, b: BUCKET }, maxWait: "9ms" })).toEqual({
    maxWaitMs: 9,
    maxWaiters: 1_000,
  });
  expect(waitingOf(slots)).toEqual({ maxWaitMs: 5_000, maxWaiters: 7 });
  expect(waitingOf({ rules: { a: BUCKET, b: slots } })).toEqual({ maxWaitMs: 5_000, maxWaiters: 7 });
  // The regions of a pool have queues for leases only.
  expect(waitingOf({ ...BUCKET, pool: "redis" })).toEqual({ maxWaitMs: 0, maxWaiters: 0 });
  expect(waitingOf({ ...slots, pool: "redis" })).toEqual({ maxWaitMs: 5_000, maxWaiters: 7 });
});

test.each([
  [{ ...BUCKET, maxWait: "11m" }, 'maxWait is "11m": must be'],
  [{ ...BUCKET, maxWait: "11m" }, "at most 10m"],
  [{ ...BUCKET, maxWaiters: 1_001 }, "maxWaiters is 1001: must be an integer from 1 to 1000"],
  [{ ...BUCKET, maxWait: "5s", pool: "redis" }, "maxWait is 5000: must be left out with a pool"],
  [
    { rules: { a: { algorithm: "concurrency", limit: 2 } }, maxWaiters: 5 },
    "maxWaiters is 5: must be left out: it stands in the rules that lease units",
  ],
])("%j is refused, and told what is allowed", (fields, told) => {
  expect(() => parsePolicies({ a: fields })).toThrow(told);
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
    { a: { ...BUCKET, algorithm: "abacus" } },
    'algorithm is "abacus": must be one of "token-bucket"',
  ],
  ["no table", { a: 3 }, 'policy "a": the value is 3: must be a table with an algorithm or with rules'],
  [
    "no limit",
    { a: { algorithm: "token-bucket", window: 1 } },
    "limit is missing: must be an integer from 0 to 1000000000",
  ],
  ["a limit of -1", { a: { ...BUCKET, limit: -1 } }, "limit is -1: must be an integer from 0"],
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
    'onFailure is "maybe": must be "closed", "open", "local", or a table { limit = 20, window = "1s" }',
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
  ["reservation", { a: { ...BUCKET, reservation: {} } }, "reservation is an object: must be"],
  ["reservation", { a: { ...BUCKET, reservation: { clients: "no" } } }, "reservation is an object: must be"],
  ["reservation", { a: { ...BUCKET, reservation: { client: false } } }, "reservation is an object: must be"],
  ["shadow", { a: { ...BUCKET, shadow: "yes" } }, 'shadow is "yes": must be true or false'],
  ["denialTtl", { a: { ...BUCKET, denialTtl: "2h" } }, `denialTtl is "2h": must be ${DENIAL_TTL}`],
  ["denialTtl", { a: { ...BUCKET, denialTtl: "off" } }, `denialTtl is "off": must be ${DENIAL_TTL}`],
  ["retryJitter", { a: { ...BUCKET, retryJitter: 0 } }, `retryJitter is 0: must be ${JITTER}`],
  ["retryJitter", { a: { ...BUCKET, retryJitter: 1.5 } }, `retryJitter is 1.5: must be ${JITTER}`],
  ["retryJitter", { a: { ...BUCKET, retryJitter: "25h" } }, `retryJitter is "25h": must be ${JITTER}`],
  ["retryJitter", { a: { ...BUCKET, retryJitter: "10%" } }, `retryJitter is "10%": must be ${JITTER}`],
  ["headers", { a: { ...BUCKET, headers: "draft-8" } }, `headers is "draft-8": must be ${HEADERS}`],
  ["headers", { a: { ...BUCKET, headers: [] } }, `headers is an array of 0: must be ${HEADERS}`],
  ["headers", { a: { ...BUCKET, headers: ["draft-7", "draft-11"] } }, "headers is an array of 2: must be"],
  ["headers", { a: { ...BUCKET, headers: ["draft-7", "draft-7"] } }, "headers is an array of 2: must be"],
  [
    "headers",
    { a: { ...BUCKET, headers: ["x-ratelimit", "x-ratelimit-delta"] } },
    "headers is an array of 2",
  ],
  ["headers", { a: { ...BUCKET, headers: ["x-ratelimit", 7] } }, "headers is an array of 2: must be"],
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
    'policy "a": limit is beside rules: must be in one of the rules, or a field of every policy',
  ],
  [
    "a penalty for leases",
    { a: { algorithm: "concurrency", limit: 1, blockFor: "1m" } },
    'blockFor is "1m": must be left out with algorithm "concurrency"',
  ],
  [
    "a longest block without a block",
    { a: { ...BUCKET, maxBlock: "1m" } },
    'maxBlock is "1m": must be left out, or with blockFor',
  ],
  [
    "a longest block that is shorter",
    { a: { ...BUCKET, blockFor: "1h", maxBlock: "1m" } },
    'maxBlock is "1m": must be at least the blockFor of 1h and at most 2147483647ms',
  ],
  [
    "a penalty in a pool",
    { a: { ...BUCKET, blockFor: "1h", pool: "redis" } },
    'pool is "redis": must be left out with blockFor',
  ],
  [
    "a policy's field in a rule",
    { a: { rules: { b: { ...BUCKET, shadow: true } } } },
    "shadow is not a field: there are algorithm, unit, limit, window, burst, blockFor, maxBlock",
  ],
  [
    "a rule's limit",
    { a: { rules: { b: BUCKET, c: { ...BUCKET, limit: -1 } } } },
    'policy "a": rules.c.limit is -1: must be an integer from 0',
  ],
  [
    "a rule's algorithm",
    { a: { rules: { b: {} } } },
    'rules.b.algorithm is missing: must be one of "token-bucket", "sliding-log", "concurrency", ',
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
  [
    "a window without a unit",
    { a: { ...BUCKET, window: 60 } },
    'window is 60: must be a duration of 1 ms or more with its unit, such as "250ms" "10s" "15m" "1h" "30d" ' +
      '(60 might be "60s" or "60ms")',
  ],
  [
    "a lease's ttl without a unit",
    { a: { algorithm: "concurrency", limit: 1, ttl: 60 } },
    '(60 might be "60s" or "60ms")',
  ],
  [
    "a window in fortnights",
    { a: { ...FIXED, window: "1 fortnight" } },
    'window is "1 fortnight": must be a duration of 1 ms or more with its unit, such as "250ms" ' +
      '"10s" "15m" "1h" "30d", or of the calendar "1 hour" "1 day" "1 week" "1 month" "1 year"',
  ],
  ["two months", { a: { ...FIXED, window: "2 months" } }, 'window is "2 months": must be a duration'],
  ["a month of a bucket", { a: { ...BUCKET, window: "1 month" } }, 'window is "1 month": must be a duration'],
  [
    "a time zone that is none",
    { a: { ...FIXED, timeZone: "Europe/Atlantis" } },
    'timeZone is "Europe/Atlantis": must be the name of a time zone of the IANA database, such as "Europe/Berlin"',
  ],
  ["no time zone", { a: { ...FIXED, timeZone: "" } }, 'timeZone is "": must be text that is not empty'],
  [
    "a time zone of a duration",
    { a: { ...FIXED, window: "1d", timeZone: "Europe/Berlin" } },
    'timeZone is "Europe/Berlin": must be left out, or with a window of "1 hour", "1 day"',
  ],
  [
    "an alignment that is none",
    { a: { ...FIXED, align: "monday" } },
    'align is "monday": must be one of "epoch", "calendar", "first"',
  ],
  [
    "a duration in the calendar",
    { a: { ...FIXED, window: "1d", align: "calendar" } },
    'align is "calendar": must be "epoch", "first" or left out, or with a window of "1 hour", "1 day"',
  ],
  [
    "a month since the first request",
    { a: { ...FIXED, align: "first" } },
    'align is "first": must be "calendar" or left out, or with a duration as window',
  ],
  [
    "a jitter over half a window",
    { a: { ...FIXED, window: "1m", jitter: "31s" } },
    'jitter is "31s": must be at most half of the window: 30s',
  ],
  [
    "a window in a pool",
    { a: { ...FIXED, pool: "redis" } },
    'pool is "redis": must be left out with algorithm "fixed-window"',
  ],
  [
    "a counter of too many",
    { a: { ...BUCKET, algorithm: "sliding-window-counter", limit: 1e9, window: "30d" } },
    "limit is 1000000000: must be at most 3474999 with a window of 30d",
  ],
  [
    "a counter in a pool",
    { a: { ...BUCKET, algorithm: "sliding-window-counter", pool: "redis" } },
    'pool is "redis": must be left out with algorithm "sliding-window-counter"',
  ],
  ["a lease's ttl", { a: { algorithm: "concurrency", limit: 1, ttl: 0 } }, "ttl is 0: must be a duration"],
  [
    "a lease's maxTtl",
    { a: { algorithm: "concurrency", limit: 1, ttl: "2m", maxTtl: "1m" } },
    'maxTtl is "1m": must be at least the ttl of 2m',
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
  const bad = { a: { ...BUCKET, limit: -1, window: 0 }, b: BUCKET, c: { ...BUCKET, shadow: 1 } };
  expect(() => parsePolicies(bad)).toThrow(
    /policy "a": limit is -1.*\n.*policy "a": window is 0.*\n.*policy "c": shadow is 1/,
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
