/** An error for unknown fields names all of them, and lists no field that the next try would refuse. */
import { expect, test } from "vitest";
import { algorithms } from "../../../core/policies/algorithms.ts";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";

const FIGURES = { limit: 100, window: "1s", warmup: "1s" };
/** What every algorithm is tried with, beyond its own fields. */
const TRIED: Readonly<Record<string, object>> = {
  unit: { unit: "tokens" },
  blockFor: { blockFor: "1m" },
  maxBlock: { blockFor: "1m", maxBlock: "1h" },
  fair: { fair: true },
  weights: { fair: true, weights: { "gold:*": 4 } },
};

function problemsOf(policy: object): readonly string[] {
  try {
    parsePolicies({ api: policy });
    return [];
  } catch (error) {
    return (error as Error).message.split("\n").slice(1);
  }
}

/** The least fields of the algorithm. */
function leastOf(algorithm: string): object {
  const own = algorithms.get(algorithm)?.fields ?? {};
  return { algorithm, ...Object.fromEntries(Object.entries(FIGURES).filter(([field]) => field in own)) };
}

/** The fields that the error for an unknown one lists. */
function listed(policy: object): readonly string[] {
  const [line = ""] = problemsOf(policy);
  return (/there are (?<fields>[^;(]*?)(?:, and those|$)/.exec(line)?.groups?.["fields"] ?? "").split(", ");
}

test.each([...algorithms.keys()])(
  "%s: an unknown field lists exactly the fields that are taken",
  (algorithm) => {
    const least = leastOf(algorithm);
    expect(problemsOf(least)).toEqual([]);
    const taken = Object.keys(TRIED).filter(
      (field) => problemsOf({ ...least, ...TRIED[field] }).length === 0,
    );
    const own = Object.keys(algorithms.get(algorithm)?.fields ?? {});
    const wanted = ["algorithm", ...own, ...taken].toSorted();
    expect(listed({ ...least, zzzzz: 1 }).toSorted()).toEqual(wanted);
    expect(listed({ rules: { a: { ...least, zzzzz: 1 } } }).toSorted()).toEqual(wanted);
  },
);

test("a hint names no field that the algorithm refuses", () => {
  const [line] = problemsOf({ algorithm: "concurrency", limit: 2, blokFor: "1m" });
  expect(line).toContain("blokFor is not a field");
  expect(line).not.toContain("did you mean");
});

test("all unknown fields are named at once, beside the other problems", () => {
  const bad = { algorithm: "token-bucket", limit: -1, window: "1s", zzzzz: 1, shadw: true };
  expect(problemsOf(bad)).toEqual([
    expect.stringMatching(/^policy "api": limit is -1/),
    expect.stringMatching(/^policy "api": zzzzz is not a field: there are/),
    expect.stringMatching(/^policy "api": shadw is not a field: .*did you mean shadow/),
  ]);
  expect(problemsOf({ rules: { a: bad } })).toEqual([
    expect.stringMatching(/rules.a.limit is -1/),
    expect.stringMatching(/rules.a.zzzzz is not a field/),
    expect.stringMatching(/rules.a.shadw is not a field/),
  ]);
});
