import { expect, test, vi } from "vitest";
import { FailureLimits } from "../../client/failure-limits.ts";
import type { ClientOptions } from "../../client/limiter.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { SYSTEM_TIME } from "../../core/clock.ts";
import { parsePolicy } from "../../core/policies/parse-policy.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";
import { transportOf } from "../support/transport.ts";

const parsed = (onFailure: unknown) =>
  parsePolicy("p", { algorithm: "token-bucket", limit: 100, window: "1s", onFailure });
const policyOf = (onFailure: unknown): Policy => {
  const policy = parsed(onFailure);
  if ("problems" in policy) throw new Error(policy.problems.map(({ detail }) => detail).join());
  return policy;
};
const POLICY = policyOf({ limit: 4, window: "10s" });

test("in no time more is admitted than the limit and its rate, and each wait is exact", () => {
  const limits = new FailureLimits();
  let admitted = 0;
  for (let nowMs = 0; nowMs < 30_000;) {
    const { success, retryAfterMs } = limits.decide(POLICY, "a", 1, nowMs);
    if (success) admitted += 1;
    else {
      expect(limits.decide(POLICY, "a", 1, nowMs + Number(retryAfterMs) - 1).success).toBe(false);
      nowMs += Number(retryAfterMs);
    }
    expect(admitted).toBeLessThanOrEqual(4 + (4 * nowMs) / 10_000);
  }
  expect(admitted).toBe(4 + 11);
});

test("of more keys than the bound the one that came least recently is forgotten", () => {
  const limits = new FailureLimits(2);
  for (const key of ["a", "b", "a", "c"]) limits.decide(POLICY, key, 2, 0);
  expect(limits.decide(POLICY, "a", 0, 0).remaining).toBe(0);
  expect(limits.decide(POLICY, "c", 0, 0).remaining).toBe(2);
  expect(limits.decide(POLICY, "b", 4, 0).success).toBe(true);
});

test("what is no cost or no key is denied and takes nothing", () => {
  const limits = new FailureLimits();
  for (const cost of [-5, 0.5, Number.NaN, "2" as never, null as never])
    expect(limits.decide(POLICY, "a", cost, 0)).toMatchObject({ success: false, reason: "degraded" });
  expect(limits.decide(POLICY, "a".repeat(513), 1, 0).success).toBe(false);
  expect(limits.decide(POLICY, "a", 4, 0).success).toBe(true);
});

test("a policy says what is wrong with it", () => {
  for (const [onFailure, problem] of [
    [
      "shut",
      'onFailure is "shut": must be "closed", "open", "local", or a table { limit = 20, window = "1s" }',
    ],
    [[5], "onFailure is an array of 1: must be"],
    [{}, "onFailure.limit is missing: must be an integer from 1 to 1000000000"],
    [{ limit: 0, window: "1s" }, "onFailure.limit is 0: must be an integer from 1"],
    [{ limit: 5 }, "onFailure.window is missing: must be a duration of 1 ms or more"],
    [{ limit: 5, window: 10 }, "onFailure.window is 10: must be a duration"],
    [
      { limit: 5, window: "1s", burst: 3 },
      "onFailure.burst is 3: must be left out: there are limit and window",
    ],
    [
      { limit: 1e9, window: "365d" },
      "onFailure.limit is 1000000000: must be at most 285616 with a window of",
    ],
  ] as const) {
    const [field = "", value] = problem.split(" is ");
    expect(value).toBeDefined();
    expect(parsed(onFailure)).toEqual({
      problems: [{ path: field.split("."), detail: expect.stringContaining(problem) as string }],
    });
  }
  expect(policyOf("open")).not.toHaveProperty("failureLimit");
});

/** A client that knows the policy "p", and whose limiter then answers nothing any more. */
async function cutOff(options: ClientOptions = {}): Promise<RemoteLimiter> {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  let isAway = false;
  const away = () => Promise.reject(new Error("connection refused"));
  const transport = transportOf({
    reserve: ({ calls }) => {
      if (isAway) return away();
      const decision = { success: true, policy: "p", key: "warm", limit: 1, reason: "ok" } as const;
      const answers = calls.map(() => ({ decision: { ...decision, source: "object", rules: [] } as const }));
      return Promise.resolve({ protocol: 1, answers, policies: { p: describeForClient(POLICY) } });
    },
    limit: away,
    limitAll: away,
    limitAny: away,
    hold: away,
  });
  const limiter = new RemoteLimiter({ transport, time: SYSTEM_TIME, inBackground: () => undefined }, options);
  expect(await limiter.limit({ policy: "p", key: "warm" })).toMatchObject({ reason: "ok" });
  isAway = true;
  return limiter;
}

test("a process whose limiter is cut off decides calls on several keys by it too", async () => {
  const limiter = await cutOff();
  const [p, unmet] = ["p", "unmet"].map((policy) => (key: string, cost = 1) => ({ policy, key, cost }));
  if (p === undefined || unmet === undefined) throw new Error("no policies");
  const admitted = { success: true, chosen: 0, decisions: [{ reason: "degraded", limit: 4, remaining: 1 }] };
  const denied = { success: false, chosen: null, decisions: [{ remaining: 1, reason: "degraded" }] };
  for (const [key, more] of Object.entries({ plain: {}, repeated: { idempotencyKey: "once" } })) {
    expect(await limiter.limitAny({ checks: [p(key, 3), p("else")], ...more })).toMatchObject(admitted);
    expect(await limiter.limitAny({ checks: [p(key, 3), p("else")], ...more })).toMatchObject(denied);
  }
  // Of a policy that the client has not met it knows nothing.
  expect(await limiter.limitAny({ checks: [p("unmet", 3), unmet("a")] })).toMatchObject(admitted);
  expect(await limiter.limitAny({ checks: [unmet("a"), p("unmet", 3)] })).toMatchObject({
    success: false,
    decisions: [{ policy: "unmet", reason: "degraded" }],
  });
  const checks = [p("one", 3), p("one", 3), p("two", 4), unmet("a")];
  const alone = await limiter.limitAll({ checks, atomic: false });
  expect(alone.decisions.map(({ success }) => success)).toEqual([true, false, true, false]);
  expect(alone.decisions[1]).toMatchObject({ limit: 4, remaining: 1, source: "fallback", rules: [] });
});

test("all or none, a hold and a forced call are closed in a process, and `force: false` forces nothing", async () => {
  const limiter = await cutOff();
  const asked = { policy: "p", key: "a" };
  const closed = { success: false, reason: "degraded" };
  expect(await limiter.limitAll({ checks: [asked] })).toEqual({
    success: false,
    decisions: [expect.objectContaining(closed)],
  });
  expect(await limiter.hold({ ...asked, units: 1 })).toMatchObject(closed);
  expect(await limiter.limit({ ...asked, force: true })).toMatchObject(closed);
  expect(await limiter.limit({ ...asked, force: false })).toMatchObject({ success: true, remaining: 3 });
});

test("of a policy that the client has not met its options decide", async () => {
  const limiter = await cutOff({ onFailure: "open" });
  const checks = [
    { policy: "unmet", key: "a" },
    { policy: "p", key: "a", cost: 5 },
  ];
  expect(await limiter.limitAny({ checks, idempotencyKey: "i" })).toMatchObject({ success: true, chosen: 0 });
  const alone = await limiter.limitAll({ checks, atomic: false });
  expect(alone.decisions.map(({ success }) => success)).toEqual([true, false]);
});
