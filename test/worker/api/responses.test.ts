import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import type { Decided, RuleDecision } from "../../../core/protocol/answers.ts";
import { type Decision, degradedDecision, publicDecision } from "../../../core/protocol/decision.ts";
import { deniedBody } from "../../../core/protocol/denied-body.ts";
import {
  decisionHeaders,
  decisionResponse,
  decisionText,
  plainResponse,
  type DenyStatus,
} from "../../../worker/api/responses.ts";

// X-RateLimit-Reset is an instant: all answers are made at one.
beforeAll(() => void vi.useFakeTimers({ toFake: ["Date"] }));
afterAll(() => void vi.useRealTimers());

const RULE = { algorithm: "token-bucket", limit: 5, window: "1s" };
const several = { requests: RULE, "two-2": { ...RULE, unit: "tokens" }, C_3: { ...RULE, limit: 1_000_000 } };
const POLICIES = [
  ...parsePolicies({
    one: RULE,
    shadow: { ...RULE, shadow: true },
    several: { rules: several },
    "all-in_shadow": { rules: several, shadow: true },
    older: { ...RULE, headers: "draft-7" },
    oldest: { ...RULE, headers: ["draft-11", "x-ratelimit"] },
  }).values(),
  ...(parsePolicies({ planned: { ...RULE, plans: { "pro-1": { limit: 9 } } } })
    .get("planned")
    ?.plans?.values() ?? []),
];

const figures = fc.record({
  success: fc.boolean(),
  remaining: fc.nat(1_000_000_000),
  left: fc.option(fc.nat(1_000_000_000), { nil: undefined }),
  resetAfterMs: fc.oneof(fc.nat(1_000), fc.maxSafeNat()),
  retryAfterMs: fc.option(fc.oneof(fc.integer({ min: 1, max: 5 }), fc.maxSafeNat())),
  reason: fc.constantFrom("quota" as const, "min-interval" as const, "cost-over-limit" as const),
});
/** Quotes, backslashes, control characters, what breaks lines in scripts, half and whole pairs of surrogates. */
const HARD = [
  '"',
  "\\",
  "\u0000",
  "\u001F",
  "\n",
  "\u007F",
  "\u2028",
  "é",
  "\uFEFF",
  "\uD83D",
  "\uDE00",
  "💧",
  "</x>",
];
const keys = fc.oneof(
  fc.string({ unit: "binary", maxLength: 40 }),
  fc.array(fc.constantFrom(...HARD, "a"), { maxLength: 12 }).map((parts) => parts.join("")),
  fc.constantFrom("__proto__", "$&", "$1", "`${key}`"),
);
const decided = fc.record({
  policy: fc.constantFrom(...POLICIES),
  key: keys,
  rules: fc.array(figures, { minLength: 3, maxLength: 3 }),
  reason: fc.constantFrom(undefined, "wait-timeout" as const, "queue-full" as const),
  source: fc.constantFrom("isolate" as const, "object" as const),
});

interface Case {
  readonly policy: Policy;
  readonly decision: Decision;
}

/** What the rules of the policy said, put together as all decisions are. */
const cases = decided.map(({ policy, key, rules, reason, source }): Case => {
  const said = policy.rules.map(({ name, capacity }, index): RuleDecision => {
    const each = rules[index];
    if (each === undefined) throw new Error("a rule says nothing");
    const { success, remaining, left, ...others } = each;
    const quotaRemaining = left === undefined ? {} : { quotaRemaining: left };
    const told = { name, success, limit: capacity, remaining, ...quotaRemaining, ...others };
    return success ? { ...told, retryAfterMs: 0, reason: "ok" } : told;
  });
  const all: Decided = { rules: said, ...(reason !== undefined && { reason }) };
  return { policy, decision: publicDecision(policy, key, all, source) };
});

describe("the text of a decision", () => {
  test("is its JSON, whatever the rules said and whatever the key is", () => {
    fc.assert(
      fc.property(cases, ({ decision }) => {
        expect(decisionText(decision)).toBe(JSON.stringify(decision));
      }),
      { numRuns: 3_000 },
    );
  });

  test.each(HARD)("is its JSON with a key of %j", (key) => {
    const [policy] = POLICIES as [Policy];
    const rule = { name: "one", success: true, limit: 5, remaining: 4, resetAfterMs: 200, retryAfterMs: 0 };
    const decision = publicDecision(policy, key, { rules: [{ ...rule, reason: "ok" }] }, "isolate");
    expect(decisionText(decision)).toBe(JSON.stringify(decision));
    expect(JSON.parse(decisionText(decision))).toEqual(decision);
  });

  test("is of every kind: admitted, denied, in shadow, never, by one rule and by several", () => {
    const kinds = new Set<string>();
    for (const { decision } of fc.sample(cases, 1_000)) {
      const { success, violated, retryAfterMs, rules } = decision;
      const by = violated === undefined ? "nobody" : violated.length === rules.length ? "all" : "some";
      kinds.add(`${success} by ${by} of ${rules.length}${retryAfterMs === null ? ", never" : ""}`);
    }
    expect([...kinds].toSorted()).toEqual([
      "false by all of 1",
      "false by all of 1, never",
      "false by all of 3",
      "false by all of 3, never",
      "false by some of 3",
      "false by some of 3, never",
      "true by all of 1",
      "true by all of 3",
      "true by nobody of 1",
      "true by nobody of 3",
      "true by some of 3",
    ]);
  });
});

async function whole(response: Response): Promise<object> {
  const { status, headers } = response;
  return { status, headers: Object.fromEntries(headers), body: await response.text() };
}

/** What answers a decision, put together without anything that answers share. */
function expected({ policy, decision }: Case, deny: DenyStatus): Promise<object> {
  const headers = decisionHeaders(policy, decision, () => Date.now());
  const isProblem = !decision.success && deny === 429;
  const body: object = isProblem ? deniedBody(decision) : decision;
  const status = isProblem ? deniedBody(decision).status : 200;
  const type = isProblem ? "application/problem+json" : "application/json";
  const all = { ...headers, "content-type": type, "cache-control": "no-store" };
  return whole(new Response(JSON.stringify(body), { status, headers: all }));
}

const degraded = fc
  .constantFrom(...POLICIES)
  .map((policy): Case => ({ policy, decision: degradedDecision(policy, "k") }));

test("an answer has its own text and headers, whichever way it is made, also when many are made at once", async () => {
  const each = fc.oneof({ weight: 5, arbitrary: cases }, degraded);
  const asked = fc.array(
    fc.record({ each, deny: fc.constantFrom<DenyStatus>(200, 429), isPlain: fc.boolean() }),
    { maxLength: 8 },
  );
  await fc.assert(
    fc.asyncProperty(asked, async (many) => {
      // All are made before any is read: they share what they are made of, and nothing after.
      const made = many.map(({ each: { policy, decision }, deny, isPlain }) =>
        isPlain
          ? plainResponse(policy, decision, deny)
          : decisionResponse({ policy, answer: decision }, deny),
      );
      for (const [index, one] of many.entries())
        expect(await whole(made[index] as Response)).toEqual(await expected(one.each, one.deny));
    }),
    { numRuns: 300 },
  );
});
