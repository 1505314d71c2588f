import fc from "fast-check";
import { expect, test } from "vitest";
import { UNTOUCHED } from "../../../core/accounts/account.ts";
import { gcra } from "../../../core/algorithms/gcra.ts";
import type { TokenBucketConfig, TokenBucketState } from "../../../core/algorithms/token-bucket.ts";
import { record } from "../../../durable-objects/storage/records.ts";
import { restore } from "../../../durable-objects/storage/write-behind.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { reachable, ruleOf } from "../../support/rules.ts";

const configure = (fields: Record<string, number>): TokenBucketConfig => {
  const config = gcra.configure(fields);
  if ("problem" in config) throw new Error(JSON.stringify(config));
  return config;
};

interface Fields {
  readonly limit: number;
  readonly window: number;
  readonly burst: number;
}

/**
 * Virtual scheduling as ITU-T I.371 has it, with costs as throttled has them: one theoretical arrival time. It is an
 * exact fraction, in milliseconds times `limit`.
 */
class VirtualSchedule {
  readonly #limit: bigint;
  readonly #interval: bigint;
  readonly #most: bigint;
  #tat: bigint | undefined;

  constructor({ limit, window, burst }: Fields) {
    this.#limit = BigInt(limit);
    this.#interval = BigInt(window);
    this.#most = BigInt(burst) * BigInt(window);
  }

  decide(nowMs: number, cost: number) {
    const now = BigInt(nowMs) * this.#limit;
    const tat = this.#tat === undefined || this.#tat < now ? now : this.#tat;
    const next = tat + BigInt(cost) * this.#interval;
    const allowAt = next - this.#most;
    const allowed = cost === 0 || allowAt <= now;
    const after = allowed ? next : tat;
    if (allowed) this.#tat = next;
    const ahead = after - now;
    return {
      allowed,
      retryAfterMs: allowed ? 0 : next - tat > this.#most ? null : this.#ms(allowAt - now),
      resetAfterMs: this.#ms(ahead),
      remaining: ahead > this.#most ? 0 : Number((this.#most - ahead) / this.#interval),
    };
  }

  /** Units taken without a question: the arrival time moves on. */
  debit(nowMs: number, units: number): void {
    const now = BigInt(nowMs) * this.#limit;
    const tat = this.#tat === undefined || this.#tat < now ? now : this.#tat;
    this.#tat = tat + BigInt(units) * this.#interval;
  }

  #ms(scaled: bigint): number {
    return Number((scaled + this.#limit - 1n) / this.#limit);
  }
}

const fields = fc
  .oneof(
    fc.record({
      limit: fc.integer({ min: 1, max: 12 }),
      window: fc.integer({ min: 1, max: 2_000 }),
      burst: fc.integer({ min: 1, max: 20 }),
    }),
    fc.record({
      limit: fc.integer({ min: 1, max: 1_000_000 }),
      window: fc.constantFrom(60, 1_000, 60_000, 86_400_000),
      burst: fc.integer({ min: 1, max: 1_000_000 }),
    }),
  )
  .map(reachable);
const step = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.nat(50), fc.nat(5_000), fc.nat(5_000_000)),
  cost: fc.oneof(fc.integer({ min: 0, max: 5 }), fc.nat(1_000_000)),
  isDebit: fc.nat(9).map((number) => number === 0),
});

test("a theoretical arrival time decides alike: admit, retry, reset and remaining", () => {
  fc.assert(
    fc.property(fields, fc.array(step, { maxLength: 60 }), (given, steps) => {
      const config = configure({ ...given });
      const schedule = new VirtualSchedule(given);
      let [state, nowMs] = [undefined as TokenBucketState | undefined, 1_000];
      for (const { afterMs, cost, isDebit } of steps) {
        nowMs += afterMs;
        if (isDebit) {
          const units = Math.min(cost, given.burst);
          state = gcra.debit(config, state, nowMs, units);
          schedule.debit(nowMs, units);
          continue;
        }
        const decision = gcra.decide(config, state, nowMs, cost, 0);
        const { allowed, resetAfterMs, remaining } = decision;
        const retryAfterMs = allowed ? 0 : decision.retryAfterMs;
        expect({ allowed, retryAfterMs, resetAfterMs, remaining }).toEqual(schedule.decide(nowMs, cost));
        if (allowed) ({ state } = decision);
      }
    }),
    { numRuns: depth(1_000, 5_000) },
  );
}, 60_000);

test("the example of the essay: three units make a TAT of 1,000 ms, and the fourth waits 334 ms", () => {
  const config = configure({ limit: 3, window: 1_000 });
  const taken = gcra.decide(config, undefined, 0, 3, 0);
  if (!taken.allowed) throw new Error("a burst of 3 passes");
  expect(taken.resetAfterMs).toBe(1_000);
  expect(gcra.decide(config, taken.state, 0, 1, 0)).toMatchObject({ allowed: false, retryAfterMs: 334 });
});

test("15 with 30 per 60 seconds, redis-cell's example: 16 at once, then one each 2 seconds", () => {
  const config = configure({ limit: 30, window: 60_000, burst: 16 });
  let state: TokenBucketState | undefined;
  const left = Array.from({ length: 17 }, () => {
    const decision = gcra.decide(config, state, 0, 1, 0);
    if (decision.allowed) ({ state } = decision);
    return decision.allowed ? decision.remaining : `-${decision.retryAfterMs}`;
  });
  expect(left).toEqual([15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, "-2000"]);
});

test("what cannot be counted exactly is refused", () => {
  expect(gcra.configure({ limit: 1, window: 86_400_000, burst: 1_000_000_000 })).toMatchObject({
    problem: { field: "burst" },
  });
});

test("a policy may change from one name to the other, and what was consumed stays", () => {
  const rate = { limit: 3, window: 1_000 };
  const [one, other] = [
    ruleOf({ algorithm: "gcra", ...rate }),
    ruleOf({ algorithm: "token-bucket", ...rate }),
  ];
  const taken = decide(one, UNTOUCHED, 0, 3);
  if (!taken.allowed) throw new Error("3 of 3 fit");
  const { stored } = record(one, taken.account, 0, 0, { leastMs: 0, mostMs: 0 }, undefined);
  for (const rule of [one, other]) expect(restore(rule, stored, [], 0, 0)).toEqual(taken.account);
});
