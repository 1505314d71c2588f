import { describe, expect, test } from "vitest";
import { readOverride } from "../../../core/catalog/policies-in-force.ts";
import { parsePolicy } from "../../../core/policies/parse-policy.ts";

const ALONE = { algorithm: "token-bucket", limit: 10, window: "1m" };
const SEVERAL = { rules: { calls: ALONE, tokens: { ...ALONE, unit: "tokens" } } };
const END = "2027-01-31T12:00:00Z";

/** What is wrong with an override, as its author is told. */
function errorsOf(base: Readonly<Record<string, unknown>>, override: object) {
  const read = readOverride("api", base, override);
  return "problems" in read ? read.problems : [];
}

describe("a window of the other kind is without where windows of the policy's kind begin", () => {
  const fixed = { algorithm: "fixed-window", limit: 10 };
  const day = { ...fixed, window: "1 day", timeZone: "Europe/Berlin", align: "calendar" };
  const first = { ...fixed, window: "1h", align: "first" };
  test.each([
    ["a duration", day, { window: "1h" }, { windowMs: 3_600_000, align: "epoch" }],
    ["a duration that begins with the first call", day, { window: "1d", align: "first" }, { align: "first" }],
    ["a period", first, { window: "1 day" }, { period: "day", timeZone: "UTC", align: "calendar" }],
    ["another period", day, { window: "1 week" }, { period: "week", timeZone: "Europe/Berlin" }],
    ["another duration", first, { window: "2h" }, { windowMs: 7_200_000, align: "first" }],
    ["no window", day, { limit: 5 }, { period: "day", timeZone: "Europe/Berlin" }],
  ])("%s", (_, base, change, config) => {
    for (const [table, override] of [
      [base, change],
      [{ rules: { a: base } }, { rules: { a: change } }],
    ] as const) {
      const read = readOverride("api", table, override);
      expect("problems" in read ? read : read.policy?.rules[0].config).toMatchObject(config);
    }
    const plan = parsePolicy("api", { ...base, plans: { pro: change } });
    expect("problems" in plan ? plan.problems : []).toEqual([]);
  });

  test("and has none of its own", () => {
    expect(errorsOf(day, { window: "1h", timeZone: "UTC" })).toMatchObject([{ path: ["timeZone"] }]);
  });
});

describe("a word with a wrong letter in an override is told with the nearest there is", () => {
  const all = "limit, window, burst, multiply, blocked, unlimited, startsAt, expiresAt, note";
  test.each([
    ["expiresat", "expiresAt", { limit: 5, expiresat: END }],
    ["startAt", "startsAt", { limit: 5, startAt: END }],
    ["mutiply", "multiply", { mutiply: 5 }],
    ["blokced", "blocked", { blokced: true }],
    ["unlimted", "unlimited", { unlimted: true }],
    ["notes", "note", { limit: 5, notes: "for the launch" }],
    ["brust", "burst", { brust: 5 }],
  ])("%s: %s, beside all that there are", (word, near, override) => {
    expect(errorsOf(ALONE, override)).toEqual([
      {
        path: [word],
        detail: `${word} is no figure of this rule: an override may have ${all} (did you mean ${near}?)`,
      },
    ]);
  });

  test.each([
    ["expiresat", "expiresAt", { blocked: true, expiresat: END }],
    ["notes", "note", { multiply: 2, notes: "for the launch" }],
  ])("also beside what is not a figure (%s: %s)", (word, near, override) => {
    const [error] = errorsOf(ALONE, override);
    expect(error?.detail).toContain(
      `the override says ${Object.keys(override)[0]} and ${word} (did you mean ${near}?): must be`,
    );
  });

  test.each([
    ["expiresat", "expiresAt", { rules: { calls: { limit: 5 } }, expiresat: END }],
    ["mutiply", "multiply", { mutiply: 5 }],
    ["ruels", "rules", { ruels: { calls: { limit: 5 } } }],
  ])("and beside the rules of a policy that has several (%s: %s)", (word, near, override) => {
    const [error] = errorsOf(SEVERAL, override);
    expect(error?.path).toEqual([word]);
    expect(error?.detail).toMatch(
      new RegExp(`^${word} is .*: must be given by rule.*\\(did you mean ${near}\\?\\)$`),
    );
  });

  test("in a rule of several, where there are its figures alone", () => {
    const [error] = errorsOf(SEVERAL, { rules: { calls: { limti: 5 } } });
    expect(error).toEqual({
      path: ["rules", "calls", "limti"],
      detail:
        "rules.calls.limti is no figure of this rule: an override may have limit, window, burst (did you mean limit?)",
    });
  });
});

test("a limit of an override comes before a plan's limit and the burst or carry that belongs to it", () => {
  const limits = (base: Readonly<Record<string, unknown>>, override: object) => {
    const read = readOverride("api", base, override);
    if ("problems" in read) throw new Error(JSON.stringify(read.problems));
    return [...(read.policy?.plans?.values() ?? [])].map(({ rules }) =>
      rules.map(({ capacity }) => capacity),
    );
  };
  const pro = { limit: 1_000, burst: 5_000 };
  const own = { ...ALONE, plans: { pro } };
  expect(limits(own, { limit: 7 })).toEqual([[7], [7]]);
  expect(limits(own, { burst: 70 })).toEqual([[70], [70]]);
  expect(limits(own, { window: "2m" })).toEqual([[10], [5_000]]);
  const several = { ...SEVERAL, plans: { pro: { rules: { calls: pro, tokens: pro } } } };
  expect(limits(several, { rules: { calls: { limit: 7 } } })).toEqual([
    [7, 10],
    [7, 5_000],
  ]);
  const month = {
    algorithm: "fixed-window",
    limit: 10,
    window: "1d",
    plans: { pro: { limit: 1_000, carry: 900 } },
  };
  expect(limits(month, { limit: 7 })).toEqual([[7], [7]]);
});

test("a limit of 0 closes a rule whose policy has what a limit of 0 must not have", () => {
  const base = { ...ALONE, burst: 20 };
  expect(readOverride("api", base, { limit: 0 })).toMatchObject({ fields: { ...ALONE, limit: 0 } });
  expect(errorsOf({ rules: { calls: base, tokens: base } }, { rules: { tokens: { limit: 0 } } })).toEqual([]);
  expect(errorsOf(base, { limit: 0, burst: 5 })[0]?.path).toEqual(["burst"]);
});

/** The policy under an override: its rules, as they are parsed. */
function rulesUnder(base: Readonly<Record<string, unknown>>, override: object) {
  const read = readOverride("api", base, override);
  if ("problems" in read) throw new Error(JSON.stringify(read.problems));
  const policy = parsePolicy("api", read.fields);
  if ("problems" in policy) throw new Error(JSON.stringify(policy.problems));
  return [policy, ...(policy.plans?.values() ?? [])].map(({ rules }) =>
    rules.map(({ config, capacity }) => ({ ...config, capacity })),
  );
}

const SLOTS = { algorithm: "concurrency", limit: 10, maxWaiters: 1_000 };
const WARMING = { algorithm: "smooth-warming-up", limit: 10, window: "1s", warmup: "10s", coldFactor: 200 };
const ADAPTIVE = { algorithm: "adaptive-concurrency", limit: 10, initial: 4 };

test.each([
  [SLOTS, 2, { capacity: 20, maxWaiters: 1_000 }],
  [{ ...SLOTS, maxWaiters: 2 }, 0.4, { capacity: 4, maxWaiters: 2 }],
  [WARMING, 10, { capacity: 100, coldFactor: 200 }],
  [
    { ...ADAPTIVE, adapt: "vegas", alpha: 3, beta: 6, probeMultiplier: 30 },
    2,
    { capacity: 20, initial: 8, alpha: 3, beta: 6, probeMultiplier: 30 },
  ],
  [
    { ...ADAPTIVE, queueSize: 4, longWindow: 600, floor: 2 },
    2,
    { capacity: 20, queueSize: 4, longWindow: 600, floor: 4 },
  ],
])("what is multiplied are units, and no other numbers (%j by %d)", (base, multiply, figures) => {
  expect(rulesUnder(base, { multiply })).toMatchObject([[figures]]);
});

describe("an unlimited key has the largest limits that each algorithm can count", () => {
  const MOST = 1_000_000_000;
  const RATE = { limit: 10, window: "1s" };
  test.each<[object, object]>([
    [SLOTS, { capacity: MOST, maxWaiters: 1_000 }],
    [{ ...SLOTS, limit: 0 }, { capacity: MOST }],
    [{ ...SLOTS, fair: true }, { capacity: MOST }],
    [ADAPTIVE, { capacity: MOST, initial: MOST, floor: MOST }],
    [WARMING, { limit: MOST, coldFactor: 200 }],
    [
      { algorithm: "leaky-bucket", ...RATE },
      { limit: MOST, burst: MOST + 1, undelayed: MOST + 1 },
    ],
    [
      { algorithm: "leaky-bucket", ...RATE, nodelay: true },
      { limit: MOST, undelayed: MOST + 1 },
    ],
    [{ algorithm: "token-bucket", ...RATE, burst: 7 }, { capacity: MOST }],
    [{ algorithm: "credits", limit: 10, initial: 0 }, { capacity: MOST }],
    [{ algorithm: "fixed-window", limit: 10, window: "1 month", carry: 5 }, {}],
    [{ algorithm: "sliding-log", limit: 600_000, window: "1h", minInterval: "1s" }, { capacity: 1_000_000 }],
  ])("%j", (base, figures) => {
    const [[rule] = []] = rulesUnder(base as Readonly<Record<string, unknown>>, { unlimited: true });
    expect(rule).toMatchObject(figures);
    expect(rule).not.toMatchObject({ minIntervalMs: 1_000 });
    expect(rule?.capacity).toBeGreaterThanOrEqual(1_000_000);
  });

  test("each of several rules by itself, and in each plan", () => {
    const log = { algorithm: "sliding-log", limit: 1_000_000, window: "1h" };
    const several = { rules: { log, slots: SLOTS } };
    const plans = { pro: { rules: { slots: { limit: 100 } } }, none: { rules: { log: { limit: 0 } } } };
    const largest = [{ capacity: 1_000_000 }, { capacity: MOST }];
    expect(rulesUnder({ ...several, plans }, { unlimited: true })).toMatchObject([
      largest,
      largest,
      largest,
      largest,
    ]);
  });
});
