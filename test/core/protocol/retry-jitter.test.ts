import fc from "fast-check";
import { expect, test } from "vitest";
import type { RetryJitter } from "../../../core/policies/policy.ts";
import { type Decision, withJitter } from "../../../core/protocol/decision.ts";

const decided = (retryAfterMs?: number | null): Decision => ({
  success: retryAfterMs === 0,
  policy: "p",
  key: "k",
  limit: 5,
  ...(retryAfterMs !== undefined && { retryAfterMs }),
  reason: "quota",
  source: "object",
  rules: [],
});
const jitters = fc.oneof(
  fc.double({ min: 0.001, max: 1, noNaN: true }).map((share): RetryJitter => ({ share })),
  fc.integer({ min: 1, max: 86_400_000 }).map((mostMs): RetryJitter => ({ mostMs })),
);
const fractions = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });
const never = () => {
  throw new Error("nothing is to be drawn");
};

test("the told wait is a whole number, never below the exact one, and longer by the jitter at most", () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 10 ** 13 }),
      jitters,
      fractions,
      (waitMs, retryJitter, fraction) => {
        const { retryAfterMs, ...rest } = withJitter({ retryJitter }, decided(waitMs), () => fraction);
        const mostMs = "share" in retryJitter ? Math.ceil(retryJitter.share * waitMs) : retryJitter.mostMs;
        expect(Number.isInteger(retryAfterMs)).toBe(true);
        expect(Number(retryAfterMs) - waitMs).toBeGreaterThanOrEqual(0);
        expect(Number(retryAfterMs) - waitMs).toBeLessThanOrEqual(mostMs);
        const { retryAfterMs: _, ...exact } = decided(waitMs);
        expect(rest).toEqual(exact);
      },
    ),
  );
});

test.each<[RetryJitter, number, number]>([
  [{ share: 0.5 }, 0, 100],
  [{ share: 0.5 }, 0.5, 125],
  [{ share: 0.5 }, 0.999_999, 150],
  [{ share: 0.001 }, 0.999_999, 101],
  [{ mostMs: 1_000 }, 0.5, 600],
  [{ mostMs: 1_000 }, 0.999_999, 1_100],
])("%j with %f makes of 100 ms %d ms", (retryJitter, fraction, toldMs) => {
  expect(withJitter({ retryJitter }, decided(100), () => fraction).retryAfterMs).toBe(toldMs);
});

test("who need not wait, or waits in vain, or for whom nobody knows, is told so", () => {
  for (const wait of [0, null, undefined])
    expect(withJitter({ retryJitter: { share: 1 } }, decided(wait), never)).toEqual(decided(wait));
});

test("without jitter nothing changes and nothing is drawn", () => {
  const decision = decided(100);
  expect(withJitter({}, decision, never)).toBe(decision);
});
