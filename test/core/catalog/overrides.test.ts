import { describe, expect, test } from "vitest";
import { readOverride } from "../../../core/catalog/policies-in-force.ts";

const ALONE = { algorithm: "token-bucket", limit: 10, window: "1m" };
const SEVERAL = { rules: { calls: ALONE, tokens: { ...ALONE, unit: "tokens" } } };
const END = "2027-01-31T12:00:00Z";

/** What is wrong with an override, as its author is told. */
function errorsOf(base: Readonly<Record<string, unknown>>, override: object) {
  const read = readOverride("api", base, override);
  return "problems" in read ? read.problems : [];
}

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
