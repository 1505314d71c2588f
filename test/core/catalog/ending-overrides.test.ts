/** An override begins and ends by itself at its instants, whenever the catalog says so. Time is an argument. */
import { expect, test } from "vitest";
import { PoliciesInForce } from "../../../core/catalog/policies-in-force.ts";
import { parseDeployment } from "../../../core/policies/parse-policies.ts";
import { later, type Policy, type PolicyRevision } from "../../../core/policies/policy.ts";

const NOW_MS = 1_760_000_000_000;
const VERSION = 7;
const TABLE = { algorithm: "token-bucket", limit: 100, window: "1s" };
const deployed = parseDeployment({ policies: { api: TABLE } });

/** How a key is decided: by how many requests, by which override, and in which version. */
interface Found {
  readonly limit: number | undefined;
  readonly pattern: string | undefined;
  readonly inForce: PolicyRevision | undefined;
}

const at = (inMs: number) => new Date(NOW_MS + inMs).toISOString();

/** A policy whose overrides end, and begin, so many milliseconds from `NOW_MS`; absent: not by themselves. */
function finding(
  overrides: Record<string, [fields: object, endsInMs?: number | undefined, startsInMs?: number]>,
  hasCandidate = false,
) {
  const policies = new PoliciesInForce(deployed);
  const candidate = { version: 3, fields: { ...TABLE, limit: 50 } };
  policies.apply({
    revision: 1,
    isWhole: true,
    policies: [{ name: "api", version: VERSION, ...(hasCandidate && { candidate }) }],
    overrides: Object.entries(overrides).map(([pattern, [fields, endsInMs, startsInMs]]) => ({
      policy: "api",
      pattern,
      fields: {
        ...fields,
        ...(endsInMs !== undefined && { expiresAt: at(endsInMs) }),
        ...(startsInMs !== undefined && { startsAt: at(startsInMs) }),
      },
    })),
    tokens: [],
  });
  const policy = policies.named.get("api") as Policy;
  return (key: string, afterMs: number, aheadMs?: number) =>
    policy.overrides?.find(key, NOW_MS + afterMs, aheadMs) ?? policy;
}

function said({ rules, override, inForce }: Policy): Found {
  return { limit: rules[0].capacity, pattern: override?.pattern, inForce };
}

const plain: Found = { limit: 100, pattern: undefined, inForce: { version: VERSION } };

test("an override is there until its instant and not at it, and never falls back behind that", () => {
  const find = finding({ a: [{ limit: 10 }, 1_000], b: [{ blocked: true }, 2_000] });
  expect(said(find("a", 999))).toMatchObject({ limit: 10, pattern: "a" });
  expect(said(find("a", 1_000))).toEqual({
    ...plain,
    inForce: { version: VERSION, sinceMs: NOW_MS + 1_000 },
  });
  expect(find("b", 1_999).override).toMatchObject({ effect: "blocked", endsAtMs: NOW_MS + 2_000 });
  expect(said(find("b", 2_000))).toMatchObject({ limit: 100, pattern: undefined });
  expect(said(find("c", 5_000))).toEqual(plain);
});

test("an override is not there before its instant, and at it is later than what was there", () => {
  const find = finding({ a: [{ limit: 10 }, 2_000, 1_000], b: [{ blocked: true }, undefined, 1_000] });
  expect(said(find("a", 999))).toEqual(plain);
  const begun = find("a", 1_000);
  expect(said(begun)).toMatchObject({ limit: 10, pattern: "a", inForce: { sinceMs: NOW_MS + 1_000 } });
  expect(find("a", 1_999)).toBe(begun);
  expect(said(find("a", 2_000))).toEqual({
    ...plain,
    inForce: { version: VERSION, sinceMs: NOW_MS + 2_000 },
  });
  expect(said(find("b", 999))).toEqual(plain);
  expect(find("b", 1_000).override).toEqual({ pattern: "b", effect: "blocked" });
});

test("while it has not begun the next less specific one applies, whether that has begun or not", () => {
  const find = finding({
    "team:a:1": [{ limit: 10 }, 5_000, 3_000],
    "team:a:*": [{ limit: 20 }, 2_000, 1_000],
    "team:*": [{ limit: 30 }, undefined, 4_000],
  });
  const found = [0, 1_000, 2_000, 3_000, 4_000, 5_000].map((afterMs) => find("team:a:1", afterMs));
  expect(found.map(({ override }) => override?.pattern)).toEqual([
    undefined,
    "team:a:*",
    undefined,
    "team:a:1",
    "team:a:1",
    "team:*",
  ]);
  const sinceMs = found.map(({ inForce }) => inForce?.sinceMs);
  expect(sinceMs.map((since) => since && since - NOW_MS)).toEqual([
    undefined,
    1_000,
    2_000,
    3_000,
    3_000,
    5_000,
  ]);
});

test("who looks ahead finds what begins within that time, however short it is, and nothing that has ended", () => {
  const find = finding({ a: [{ limit: 10 }, 5_001, 5_000], "*": [{ limit: 20 }, 3_000, 2_000] });
  const patterns = [0, 2_000, 3_000].map((afterMs) =>
    [undefined, 2_000, 5_000].map((aheadMs) => find("a", afterMs, aheadMs).override?.pattern),
  );
  expect(patterns).toEqual([
    [undefined, "*", "a"],
    ["*", "*", "a"],
    [undefined, "a", "a"],
  ]);
});

test("the next less specific one applies then, and the policy when all have ended", () => {
  const find = finding({
    "team:a:1": [{ limit: 10 }, 3_000],
    "team:a:*": [{ unlimited: true }, 1_000],
    "team:*:1": [{ limit: 30 }, 4_000],
    "team:*": [{ limit: 40 }],
    "*:1": [{ limit: 50 }],
  });
  const patterns = (key: string) =>
    [0, 1_000, 3_000, 4_000].map((afterMs) => find(key, afterMs).override?.pattern);
  expect(patterns("team:a:1")).toEqual(["team:a:1", "team:a:1", "team:*:1", "team:*"]);
  expect(patterns("team:a:2")).toEqual(["team:a:*", "team:*", "team:*", "team:*"]);
  expect(patterns("team:b:1")).toEqual(["team:*:1", "team:*:1", "team:*:1", "team:*"]);
  expect(patterns("team")).toEqual(Array<undefined>(4).fill(undefined));
});

test("each state of a key is later than the one before, by which an object takes it over", () => {
  const find = finding({
    a: [{ limit: 10 }, 2_000, 1_000],
    "a*": [{ limit: 20 }, 4_000],
    "*": [{ limit: 30 }, 3_000, 1_500],
  });
  const states = [0, 1_000, 2_000, 4_000].map((afterMs) => find("a", afterMs).inForce);
  const since = [undefined, NOW_MS + 1_000, NOW_MS + 2_000, NOW_MS + 4_000];
  expect(states.map((each) => each?.sinceMs)).toEqual(since);
  for (const [index, each] of states.entries())
    for (const other of states.slice(index + 1)) {
      expect(later(each, other)).toBe(other);
      expect(later(other, each)).toBe(other);
    }
  // Another version is later than all of them.
  expect(later(states[3], { version: VERSION + 1 })).toEqual({ version: VERSION + 1 });
});

test("keys after an end have one policy for as long as nothing changes, so what isolates hold of them stays", () => {
  const find = finding({ "a*": [{ limit: 10 }, 1_000], "*": [{ limit: 20 }, 2_000] });
  for (const afterMs of [0, 1_000, 2_000]) expect(find("ab", afterMs + 1)).toBe(find("ac", afterMs + 9));
});

test("the candidate has it from the same instant", () => {
  const find = finding({ a: [{ multiply: 2 }, undefined, 1_000] }, true);
  expect(find("a", 999).candidate?.policy).not.toHaveProperty("override");
  expect(find("a", 1_000).candidate?.policy).toMatchObject({
    inForce: { version: VERSION, sinceMs: NOW_MS + 1_000, candidate: 3 },
    override: { pattern: "a" },
    rules: [{ capacity: 100 }],
  });
});

test("the candidate is without it from the same instant", () => {
  const find = finding({ a: [{ multiply: 2 }, 1_000] }, true);
  expect(find("a", 0).candidate?.policy).toMatchObject({
    override: { pattern: "a" },
    rules: [{ capacity: 100 }],
  });
  const { candidate } = find("a", 1_000);
  expect(candidate?.version).toBe(3);
  expect(candidate?.policy).toMatchObject({
    inForce: { version: VERSION, sinceMs: NOW_MS + 1_000, candidate: 3 },
    rules: [{ capacity: 50 }],
  });
  expect(candidate?.policy).not.toHaveProperty("override");
});

test("of ranges the next wider one applies, and an address ends too", () => {
  const ip = parseDeployment({ policies: { api: { ...TABLE, keyKind: "ip" } } });
  const policies = new PoliciesInForce(ip);
  const ending = (pattern: string, endsInMs: number) => ({
    policy: "api",
    pattern,
    fields: { limit: 1, expiresAt: at(endsInMs) },
  });
  policies.apply({
    revision: 1,
    isWhole: true,
    policies: [{ name: "api", version: VERSION }],
    overrides: [ending("192.0.2.7", 1_000), ending("192.0.2.0/24", 2_000), ending("192.0.0.0/16", 3_000)],
    tokens: [],
  });
  const find = (afterMs: number) =>
    policies.named.get("api")?.overrides?.find("192.0.2.7", NOW_MS + afterMs)?.override?.pattern;
  expect([0, 1_000, 2_000, 3_000].map(find)).toEqual([
    "192.0.2.7",
    "192.0.2.0/24",
    "192.0.0.0/16",
    undefined,
  ]);
});
