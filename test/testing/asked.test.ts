/** What a limiter of a test says that it was asked: what was said at the time of the call. */
import { expect, test } from "vitest";
import { assertAsked, assertNotAsked, unlimited } from "../../package/testing.ts";

test("what is changed after a call changes no call that was made", async () => {
  const limiter = unlimited();
  const asked = { policy: "p", key: "a", cost: { requests: 1 } };
  await limiter.limit(asked);
  asked.key = "b";
  asked.cost.requests = 2;
  await limiter.limit(asked);
  assertAsked(limiter, "limit", { key: "a", cost: { requests: 1 } }, 1);
  assertAsked(limiter, "limit", { key: "b", cost: { requests: 2 } }, 1);
  const checks = [{ policy: "p", key: "a" }];
  const all = limiter.limitAll({ checks });
  checks.push({ policy: "p", key: "b" });
  await all;
  assertAsked(limiter, "limitAll", { checks: [{ key: "a" }] }, 1);
});

test("a signal is the same one, and the limiter gets what was given", async () => {
  const limiter = unlimited();
  const { signal } = new AbortController();
  await limiter.limit({ policy: "p", key: "a", signal });
  assertAsked(limiter, "limit", { signal }, 1);
  const [asked] = limiter.calls.map((call) => call.asked as { readonly signal: unknown });
  expect(asked?.signal).toBe(signal);
});

test("what is no plain data is remembered too", async () => {
  const limiter = unlimited();
  const circle: { self?: unknown } = {};
  circle.self = circle;
  const map = new Map([["requests", 1]]);
  const each = () => 1;
  for (const cost of [circle, map, each, null, 9n, [circle]])
    await limiter.limit({ policy: "p", key: "a", cost: cost as never });
  const costs = limiter.calls.map(({ asked }) => (asked as { readonly cost: unknown }).cost);
  expect(costs).toEqual([circle, map, each, null, 9n, [circle]]);
  expect(costs[2]).toBe(each);
  await limiter.limit(undefined as never).catch(() => undefined);
  expect(limiter.calls.at(-1)).toMatchObject({ method: "limit", asked: undefined });
  assertNotAsked(limiter, "hold");
});
