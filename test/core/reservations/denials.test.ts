import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { RuleDecision } from "../../../core/protocol/answers.ts";
import type { Reservation } from "../../../core/reservations/reservation.ts";
import { denied, granting, said, withUnits } from "../../support/reservations.ts";

const retryAt = (made: Reservation, cost: number, nowMs: number) =>
  made.deny(cost, nowMs)?.rules.map(({ retryAfterMs }) => retryAfterMs);

test("a denial of the same cost is given again with the rest of the wait, until it is over or a second has passed", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 5_000 }), fc.nat(6_000), (waitMs, laterMs) => {
      const made = withUnits(0);
      made.learn(5, { rules: denied(made.policy, waitMs) }, 100);
      const isBelieved = laterMs < Math.min(waitMs, 1_000);
      expect(retryAt(made, 5, 100 + laterMs)).toEqual(isBelieved ? [waitMs - laterMs] : undefined);
    }),
  );
});

test("a denial with a quiet time is repeated until that is over, says so, and no longer than denialTtl", () => {
  const made = withUnits(0);
  const deny = (quietMs: number, nowMs: number) =>
    made.learn(1, { rules: denied(made.policy, 10), quietMs }, nowMs);
  deny(300, 0);
  expect([retryAt(made, 1, 5), retryAt(made, 1, 299), retryAt(made, 1, 300)]).toEqual([
    [295],
    [1],
    undefined,
  ]);
  deny(5, 1_000);
  expect([retryAt(made, 1, 1_009), retryAt(made, 1, 1_010)]).toEqual([[1], undefined]);
  const { denialTtlMs } = made.policy;
  deny(10 * denialTtlMs, 2_000);
  expect([retryAt(made, 1, 2_000), retryAt(made, 1, 2_000 + denialTtlMs)]).toEqual([
    [denialTtlMs],
    undefined,
  ]);
});

test("a denial tells what is here and not what was there, and waits that have no end stay so", () => {
  const made = withUnits(3);
  made.learn(5, { rules: denied(made.policy, null) }, 2);
  expect(made.deny(5, 900)?.rules).toMatchObject([{ success: false, remaining: 0, retryAfterMs: null }]);
  expect(made.deny(5, 3)?.rules).toMatchObject([{ success: false, remaining: 3, retryAfterMs: null }]);
  expect(made.deny(5, 1_002)).toBeUndefined();
});

test("a denial of another cost, smaller or larger, is not answered", () => {
  const made = withUnits(0);
  made.learn(5, { rules: denied(made.policy, 900) }, 0);
  expect([1, 4, 6, 100].map((cost) => made.deny(cost, 1))).toEqual(Array.from({ length: 4 }));
  const two = withUnits(0, "two");
  two.learn({ calls: 1, tokens: 7 }, { rules: denied(two.policy, 900) }, 0);
  expect(two.deny({ tokens: 7 }, 1)).toBeDefined();
  expect([two.deny(1, 1), two.deny(7, 1)]).toEqual([undefined, undefined]);
});

test("a denial by several rules holds until the first of them would pass", () => {
  const two = withUnits(0, "two");
  const [first, second] = denied(two.policy, 300) as [RuleDecision, RuleDecision];
  two.learn(9, { rules: [first, { ...second, retryAfterMs: 700 }] }, 0);
  expect([retryAt(two, 9, 299), retryAt(two, 9, 300)]).toEqual([[1, 401], undefined]);
  const rules = [
    { ...first, success: true, retryAfterMs: 0 },
    { ...second, retryAfterMs: 700 },
  ];
  two.learn(9, { rules }, 0);
  expect([retryAt(two, 9, 699), retryAt(two, 9, 700)]).toEqual([[0, 1], undefined]);
});

test("a denial is remembered beside those of other costs, four of them, and the newest of each", () => {
  const made = withUnits(0);
  for (const cost of [1, 2, 3, 4]) made.learn(cost, { rules: denied(made.policy, 900) }, cost);
  expect([1, 2, 3, 4].map((cost) => retryAt(made, cost, 10))).toEqual([[891], [892], [893], [894]]);
  made.learn(2, { rules: denied(made.policy, 500) }, 10);
  expect([1, 2, 3, 4].map((cost) => retryAt(made, cost, 10))).toEqual([[891], [500], [893], [894]]);
  made.learn(5, { rules: denied(made.policy, 900) }, 10);
  expect([1, 2, 3, 4, 5].filter((cost) => made.deny(cost, 10) !== undefined)).toEqual([2, 3, 4, 5]);
});

test("a denial is forgotten when it is said to be", () => {
  const made = withUnits(0);
  made.learn(2, { rules: denied(made.policy, 900) }, 0);
  expect(retryAt(made, 2, 2)).toEqual([898]);
  made.forgetDenials();
  expect(made.deny(2, 2)).toBeUndefined();
});

test("a denial makes way when units that came since have room for the cost", () => {
  const made = withUnits(0);
  for (const cost of [4, 5]) made.learn(cost, { rules: denied(made.policy, 900) }, 0);
  made.answered(made.ask(0, 1), granting(made.policy, 4), 2);
  expect([made.deny(4, 3), retryAt(made, 5, 3)]).toEqual([undefined, [897]]);
});

test("a denial may come with a grant, for who asks next", () => {
  const made = withUnits(0);
  made.answered(made.ask(3, 0), { ...granting(made.policy, 0), next: denied(made.policy, 60) }, 5);
  expect([retryAt(made, 1, 6), made.deny(3, 6)]).toEqual([[59], undefined]);
});

test.each([
  ["hammered", false],
  ["spaced", true],
])("a denial under the policy %s is remembered: %s", (name, isRemembered) => {
  const made = withUnits(0, name);
  made.learn(1, { rules: denied(made.policy, 900) }, 0);
  expect(made.deny(1, 1) !== undefined).toBe(isRemembered);
  expect(made.isHot).toBe(false);
});

describe("a denial that stands", () => {
  test("is repeated until its wait is over, or for as long as it stands, and within the policy's bound", () => {
    const span = fc.integer({ min: 1, max: 20_000 });
    fc.assert(
      fc.property(span, span, fc.nat(25_000), (waitMs, firmForMs, laterMs) => {
        const made = withUnits(0);
        made.learn(5, { rules: denied(made.policy, waitMs), firmForMs }, 100);
        const isBelieved = laterMs < Math.min(waitMs, Math.max(1_000, firmForMs), 10_000);
        expect(retryAt(made, 5, 100 + laterMs)).toEqual(isBelieved ? [waitMs - laterMs] : undefined);
      }),
    );
  });

  test("is forgotten as others are, and one that was asked for before that is not learned", () => {
    const made = withUnits(3);
    const { asked } = made;
    made.learn(5, { rules: denied(made.policy, 9_000), firmForMs: 10_000 }, 2);
    made.forgetDenials();
    expect(made.deny(5, 3)).toBeUndefined();
    made.learn(5, { rules: denied(made.policy, 9_000), firmForMs: 10_000 }, 4, asked);
    expect(made.deny(5, 5)).toBeUndefined();
  });

  test("stays when only used units are settled, and goes with units that were not used", () => {
    const [spent, unspent] = [withUnits(3), withUnits(3)];
    spent.spend(3, 2);
    for (const made of [spent, unspent]) {
      made.learn(5, { rules: denied(made.policy, 9_000), firmForMs: 10_000 }, 2);
      made.giveBack();
    }
    expect([retryAt(spent, 5, 3), unspent.deny(5, 3)]).toEqual([[8_999], undefined]);
  });
});

describe("when a denial is over", () => {
  const flooded = () => {
    const made = withUnits(0);
    made.learn(5, { rules: denied(made.policy, 300) }, 0);
    expect(made.deny(5, 299, true)).toBeDefined();
    return made;
  };
  const retry = (made: Reservation, nowMs: number) =>
    made.deny(5, nowMs, true)?.rules.map(({ retryAfterMs }) => retryAfterMs);

  test("and calls are many, one asks, and the others are told to wait for a moment", () => {
    const made = flooded();
    expect([retry(made, 300), retry(made, 300), retry(made, 310)]).toEqual([undefined, [50], [50]]);
    // The one that asks is not denied by its own asking.
    expect(made.deny(5, 310)).toBeUndefined();
    made.learn(5, { rules: said(made.policy, { remaining: 9 }) }, 312);
    expect(retry(made, 313)).toBeUndefined();
    expect(retry(made, 313)).toBeUndefined();
  });

  test("and its wait is not, the others are told what is left of it", () => {
    const made = withUnits(0);
    made.learn(5, { rules: denied(made.policy, 1_700) }, 0);
    expect(made.deny(5, 990, true)).toBeDefined();
    expect([retry(made, 1_000), retry(made, 1_010)]).toEqual([undefined, [690]]);
  });

  test("and nobody called for a while, nobody is denied: calls that come together may all pass", () => {
    const made = flooded();
    expect([retry(made, 399), retry(made, 399)]).toEqual([undefined, undefined]);
  });

  test("and it was a short one, all ask: units come back faster than an answer", () => {
    const made = withUnits(0);
    made.learn(5, { rules: denied(made.policy, 99) }, 0);
    expect(made.deny(5, 98, true)).toBeDefined();
    expect([retry(made, 99), retry(made, 99)]).toEqual([undefined, undefined]);
  });

  test("and the one that asked has no answer, another asks: at once, or when the deadline has passed", () => {
    const made = flooded();
    retry(made, 300);
    made.failed(undefined);
    expect(retry(made, 301)).toBeUndefined();
    const silent = flooded();
    const at = [300, 301, 1_200, 1_299, 1_300, 1_301].map((nowMs) => retry(silent, nowMs));
    expect(at).toEqual([undefined, [50], [50], [50], undefined, [50]]);
  });
});

test("while as many calls ask as can find units the last denial is repeated, though others were admitted since", () => {
  const made = withUnits(0);
  // 1,000 units a second, 100 ms away: 100 come back in a round trip.
  made.measureTrip(0, 100);
  made.learn(1, { rules: denied(made.policy, 1) }, 100);
  made.learn(1, { rules: said(made.policy) }, 100);
  const done = Array.from({ length: 400 }, () => made.asks(100));
  expect(made.deny(1, 100)).toBeUndefined();
  const one = made.asks(100);
  expect(retryAt(made, 1, 102)).toEqual([50]);
  expect(made.deny(2, 102)).toBeUndefined();
  one();
  expect(made.deny(1, 102)).toBeUndefined();
  made.asks(102);
  expect(made.deny(1, 102)).toBeDefined();
  // A refund or a reset lifts it.
  made.forgetDenials();
  expect(made.deny(1, 102)).toBeUndefined();
  made.learn(1, { rules: denied(made.policy, 1) }, 102);
  for (const each of done) each();
  expect(made.deny(1, 104)).toBeUndefined();
});

test("calls of requests that ended without their answers ask no longer than their deadline, and few are no crowd", () => {
  const made = withUnits(0);
  made.measureTrip(0, 1);
  for (let call = 0; call < 600; call += 1) made.asks(0);
  const { deadlineMs } = made.policy;
  const atMs = deadlineMs - 1;
  made.learn(1, { rules: denied(made.policy, 1) }, atMs - 2);
  expect(made.deny(1, atMs)).toBeDefined();
  expect(made.deny(1, deadlineMs)).toBeUndefined();
  for (let call = 0; call < 50; call += 1) made.asks(deadlineMs);
  expect(made.deny(1, deadlineMs)).toBeUndefined();
});
