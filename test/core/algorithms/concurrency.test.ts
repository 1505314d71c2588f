import { expect, test } from "vitest";
import { UNTOUCHED, advance, place, settle } from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import { concurrency, type ConcurrencyState } from "../../../core/algorithms/concurrency.ts";
import { decide } from "../../support/decide.ts";
import { ruleOf } from "../../support/rules.ts";

const RULE = ruleOf({ algorithm: "concurrency", limit: 10, ttl: "1s" });
const MUTEX = ruleOf({ algorithm: "concurrency", limit: 1, ttl: "1s" });

const withLease = (account: Account, id: string, units: number, expiresAtMs: number) =>
  place(account, { id, units, expiresAtMs });

test("the example of the essay: leases of 4 until 300 ms and of 5 until 800 ms leave room for 1", () => {
  const account = withLease(withLease(UNTOUCHED, "a", 4, 300), "b", 5, 800);
  expect(decide(RULE, account, 0, 1)).toMatchObject({ allowed: true, remaining: 0 });
  expect(decide(RULE, account, 0, 2)).toMatchObject({ allowed: false, retryAfterMs: 300, remaining: 1 });
  expect(decide(RULE, account, 0, 10)).toMatchObject({ allowed: false, retryAfterMs: 800 });
});

test("a lease that expires frees its units and is counted; one that is released is not", () => {
  const granted = decide(MUTEX, UNTOUCHED, 0, 1);
  if (!granted.allowed) throw new Error("the first is admitted");
  const held = withLease(granted.account, "a", 1, 1_000);
  expect(decide(MUTEX, advance(MUTEX, held, 999), 999, 1).allowed).toBe(false);
  const expired = advance(MUTEX, held, 1_000);
  expect(decide(MUTEX, expired, 1_000, 1).allowed).toBe(true);
  expect(expired.state).toMatchObject({ reclaimed: 1 });
  const released = settle(MUTEX, held, 500, "a", 0);
  expect(decide(MUTEX, released, 500, 1).allowed).toBe(true);
  expect(released.state).toMatchObject({ reclaimed: 0 });
});

test("the fencing token rises with every grant, within a millisecond and when it has been forgotten", () => {
  const config = concurrency.configure({ limit: 5 });
  if ("problem" in config) throw new Error("5 is a limit");
  const tokenOf = (state: ConcurrencyState | undefined, nowMs: number) => {
    const decision = concurrency.decide(config, state, nowMs, 1, 0);
    return decision.allowed ? decision.state : undefined;
  };
  const first = tokenOf(undefined, 1_000);
  const second = tokenOf(first, 1_000);
  const back = tokenOf(second, 500);
  const forgotten = tokenOf(undefined, 1_001);
  const tokens = [first, second, back, forgotten].map((state) => state?.fencingToken ?? 0);
  expect(tokens).toEqual([1_000_000, 1_000_001, 1_000_002, 1_001_000]);
});

test.each([
  [{ ttl: 2_147_483_648 }, "ttl", "at most 2147483647 ms"],
  [{ ttl: 1_000, maxTtl: 999 }, "maxTtl", "at least the ttl of 1000 ms"],
  [{ maxWait: 600_001 }, "maxWait", "at most 600000 ms"],
  [{ maxWaiters: 1_001 }, "maxWaiters", "at most 1000"],
])("%j is refused: %s must be %s", (fields, field, allowed) => {
  expect(concurrency.configure({ limit: 1, ...fields })).toEqual({
    problem: { field, allowed: expect.stringContaining(allowed) },
  });
});

test("a policy that says only its limit gets leases of a minute, an hour at most, and a queue of 1,000 for 30 s", () => {
  expect(concurrency.configure({ limit: 3 })).toEqual({
    limit: 3,
    ttlMs: 60_000,
    maxTtlMs: 3_600_000,
    maxWaitMs: 30_000,
    maxWaiters: 1_000,
    order: "strict",
  });
});

test("from a limit of 10 on isolates may have slots, unless the order is strict; a mutex is always strict", () => {
  expect(concurrency.configure({ limit: 9 })).toMatchObject({ order: "strict" });
  expect(concurrency.configure({ limit: 10 })).toMatchObject({ order: "relaxed" });
  expect(concurrency.configure({ limit: 10, order: "strict" })).toMatchObject({ order: "strict" });
  expect(concurrency.configure({ limit: 2, order: "relaxed" })).toMatchObject({ order: "relaxed" });
  expect(concurrency.configure({ limit: 1, order: "relaxed" })).toMatchObject({
    problem: { field: "order" },
  });
});
