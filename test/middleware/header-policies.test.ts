import fc from "fast-check";
import { expect, test } from "vitest";
import { algorithms } from "../../core/policies/algorithms.ts";
import { type HeaderPolicy, setPolicyHeaders } from "../../core/protocol/headers.ts";
import { headerPolicy, headerPolicies } from "../../middleware/request-limits.ts";
import { manualClock, memoryLimiter, unlimited } from "../../package/testing.ts";
import { specimens } from "../support/algorithms.ts";
import { inMilliseconds, parsePolicies } from "../support/milliseconds.ts";

const HEADERS = ["draft-11", "draft-7"] as const;
const now = (work: Promise<unknown>) => void work;

function headersOf(policy: HeaderPolicy): object {
  const headers = new Map<string, string>();
  setPolicyHeaders(headers, policy);
  return Object.fromEntries(headers);
}

test.each([...algorithms.keys()])(
  "%s: headers made of the list of policies are those of the policy itself",
  async (algorithm) => {
    const { fields } = specimens[algorithm] ?? { fields: fc.constant({}) };
    await fc.assert(
      fc.asyncProperty(fields, fc.constantFrom(...HEADERS), async (given, headers) => {
        const policies = inMilliseconds({ p: { algorithm, ...given, headers } });
        const policy = parsePolicies(policies).get("p");
        const [listed] = (await memoryLimiter({ policies }).policies()).policies;
        if (policy === undefined || listed === undefined) throw new Error("no policy");
        expect(headersOf(headerPolicy(listed))).toEqual(headersOf(policy));
      }),
      { numRuns: 30 },
    );
  },
);

test("an older limiter does not list the capacity: then it is the burst, or the limit", async () => {
  const policies = {
    p: { algorithm: "token-bucket", limit: 10, window: "1s", burst: 50, headers: "draft-7" },
  };
  const [listed] = (await memoryLimiter({ policies }).policies()).policies;
  if (listed === undefined) throw new Error("no policy");
  const without = (...names: string[]) => ({
    ...listed,
    rules: listed.rules.map((rule) => {
      const kept = Object.entries(rule).filter(([name]) => !names.includes(name));
      return Object.fromEntries(kept) as typeof rule;
    }),
  });
  expect(headersOf(headerPolicy(without("capacity")))).toEqual({ "RateLimit-Policy": "10;w=1;burst=50" });
  expect(headersOf(headerPolicy(without("capacity", "burst")))).toEqual({ "RateLimit-Policy": "10;w=1" });
});

test("the list is asked for once, and again after a minute, behind the back of a request", async () => {
  const clock = manualClock();
  const policies = { p: { algorithm: "token-bucket", limit: 1, window: "1s" } };
  const limiter = memoryLimiter({ policies, clock });
  const behind: Promise<unknown>[] = [];
  const ask = () => headerPolicies(limiter, clock, (work) => behind.push(work));
  expect([...(await ask()).keys()]).toEqual(["p"]);
  await clock.advance(59_999);
  await ask();
  expect(limiter.asked("policies")).toHaveLength(1);
  await clock.advance(1);
  await Promise.all([ask(), ask()]);
  expect([limiter.asked("policies").length, behind.length]).toEqual([2, 1]);
});

test("without an answer what was known stays, and nobody asks again for ten seconds", async () => {
  const clock = manualClock();
  const limiter = unlimited();
  limiter.fail(new Error("away"));
  expect((await headerPolicies(limiter, clock, now)).size).toBe(0);
  await headerPolicies(limiter, clock, now);
  await clock.advance("9s");
  await headerPolicies(limiter, clock, now);
  expect(limiter.asked("policies")).toHaveLength(1);
  await clock.advance("1s");
  await headerPolicies(limiter, clock, now);
  expect(limiter.asked("policies")).toHaveLength(2);
});
