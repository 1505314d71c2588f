import { expect, test } from "vitest";
import type { Decided, Prospect } from "../../../core/protocol/answers.ts";
import type { Reservation } from "../../../core/reservations/reservation.ts";
import { granting, said, TTL_MS, withUnits } from "../../support/reservations.ts";

const figures = (made: Reservation, nowMs: number) => {
  const [rule] = made.admitted(nowMs).rules;
  return [rule?.remaining, rule?.resetAfterMs];
};
const remaining = (made: Reservation, nowMs: number) => figures(made, nowMs)[0];

/** The object has so many units left, those that it grants included. */
function answer(made: Reservation, left: number, units: number, prospect?: Prospect): Decided {
  const { reserved } = granting(made.policy, units);
  const rules = said(made.policy, { remaining: left, resetAfterMs: 77 });
  return {
    rules,
    ...(reserved && { reserved: { ...reserved, ...(prospect && { prospects: { one: prospect } }) } }),
  };
}

/** At 0 ms it asked, at 1 ms it was answered. */
function granted(left: number, units: number, prospect?: Prospect): Reservation {
  const made = withUnits(0);
  made.answered(made.ask(0, 0), answer(made, left, units, prospect), 1);
  for (let call = 0; call < 50; call += 1) made.note(1, 1);
  return made;
}

test("remaining is what the object had left, less what was used since, and not what is held", () => {
  const made = granted(900, 10);
  for (const left of [899, 898, 897]) {
    made.spend(1, 2);
    expect(remaining(made, 2)).toBe(left);
  }
});

test("remaining grows as the object foretold, a step late and never before", () => {
  const made = granted(500, 10, { resetAfterMs: 900, gains: [10, 20, 25, 25] });
  const at = [1, 250, 251, 500, 501, 751].map((nowMs) => remaining(made, nowMs));
  // Its units are spent by 750 ms: what is left of them then counts no more.
  expect(at).toEqual([500, 500, 510, 510, 520, 515]);
});

test("units that go home with a message count as left meanwhile", () => {
  const made = granted(900, 50);
  made.answered(made.ask(0, 2), answer(made, 850, 0), 3);
  expect(remaining(made, 3)).toBe(900);
  made.note(1, 500);
  made.ask(0, 502);
  expect(made.spendableAt(502)).toEqual([2]);
  expect(remaining(made, 502)).toBe(900);
});

test("of answers whose questions overlapped the worse one counts", () => {
  const made = granted(900, 10);
  const { asked } = made;
  made.answered(made.ask(0, 2), answer(made, 700, 0), 3);
  made.learn(5, { rules: said(made.policy, { remaining: 800 }) }, 4, asked);
  expect(remaining(made, 4)).toBe(710);
  made.learn(5, { rules: said(made.policy, { remaining: 800 }) }, 5);
  expect(remaining(made, 5)).toBe(810);
});

test("of answers whose questions overlapped neither gains what the other may have counted already", () => {
  const gains = [1, 1, 2, 2];
  const overlapping = (other: number) => {
    const made = granted(900, 10);
    const { asked } = made;
    const message = made.ask(0, 2);
    made.learn(5, { rules: said(made.policy, { remaining: other }) }, 3, asked);
    made.answered(message, answer(made, 700, 0, { resetAfterMs: 900, gains }), 4);
    return [4, 254, 504].map((nowMs) => remaining(made, nowMs));
  };
  expect(overlapping(500)).toEqual([510, 510, 510]);
  expect(overlapping(701)).toEqual([710, 711, 711]);
  expect(overlapping(900)).toEqual([710, 711, 711]);
});

test("the quota is whole when what is missing is back, counted from when it is settled at the latest", () => {
  const made = granted(1_000, 10, { resetAfterMs: 5_000 });
  made.spend(4, 100);
  // 1,000 a second: four units take 4 ms. All is settled after TTL_MS.
  expect(figures(made, 100)).toEqual([996, TTL_MS - 100 + 4]);
});

test("the quota is never whole later than the object said", () => {
  const made = granted(1_000, 10, { resetAfterMs: 300 });
  made.spend(4, 100);
  expect(figures(made, 100)).toEqual([996, 201]);
});

test("an older object foretells nothing: the time that all that is missing takes is what is known", () => {
  const made = granted(500, 10);
  made.spend(1, 100);
  expect(figures(made, 100)).toEqual([499, TTL_MS - 100 + 501]);
});

test("the object admits beside units that are here: they remain too", () => {
  const made = granted(900, 10);
  const decided = (success: boolean) => ({ rules: said(made.policy, { success, remaining: 600 }) });
  const told = [true, false].map((success) => made.withOwn(decided(success), 2).rules[0]?.remaining);
  expect(told).toEqual([610, 600]);
  expect(made.withOwn(decided(true), TTL_MS).rules[0]?.remaining).toBe(600);
});

test("a denial says what is left, and never so much that it would have passed", () => {
  const made = granted(3, 0);
  made.learn(5, { rules: said(made.policy, { success: false, remaining: 3, retryAfterMs: 900 }) }, 2);
  expect(made.deny(5, 3)?.rules).toMatchObject([{ success: false, remaining: 3 }]);
  const more = { success: false, remaining: 7, resetAfterMs: 500, retryAfterMs: 900 };
  made.learn(9, { rules: said(made.policy, more) }, 4);
  expect(made.deny(5, 104)?.rules).toMatchObject([{ success: false, remaining: 4, resetAfterMs: 400 }]);
});
