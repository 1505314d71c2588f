import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Reserved } from "../../../core/protocol/answers.ts";
import { type ReserveRequest, Reservation } from "../../../core/reservations/reservation.ts";
import { refillMs, spendableMs } from "../../../core/reservations/sizing.ts";
import { granting, policyOf, said, TTL_MS, withUnits } from "../../support/reservations.ts";

const sumUp = (made: Reservation, nowMs: number) => [made.spendableAt(nowMs)[0], made.used[0]];
const of = ({ call }: ReserveRequest) => call.rules["one"];

describe("units", () => {
  test("are spent from the moment they are here until the lifetime ends, and not after", () => {
    const instants = { sentAtMs: fc.nat(5_000), tookMs: fc.nat(2_000), laterMs: fc.nat(25_000) };
    const grants = { ttlMs: fc.integer({ min: 1, max: 30_000 }), units: fc.integer({ min: 1, max: 9 }) };
    fc.assert(
      fc.property(fc.record({ ...instants, ...grants }), ({ sentAtMs, tookMs, laterMs, ttlMs, units }) => {
        const policy = policyOf("auto");
        const made = new Reservation(policy, "key", "holder", 0);
        made.note(1, sentAtMs);
        const message = made.ask(0, sentAtMs);
        expect(made.spend(1, sentAtMs)).toBe(false);
        made.answered(message, granting(policy, units, { ttlMs }), sentAtMs + tookMs);
        const endsAtMs = sentAtMs + spendableMs(Math.min(ttlMs, message.call.ttlMs));
        expect(made.endsAtMs).toBe(endsAtMs);
        for (const nowMs of [sentAtMs + tookMs + laterMs, Math.ceil(endsAtMs), Math.ceil(endsAtMs) - 1]) {
          expect(made.spendableAt(nowMs)).toEqual([nowMs < endsAtMs ? units : 0]);
          expect(made.spend(units + 1, nowMs)).toBe(false);
          expect(made.spend(units, nowMs)).toBe(nowMs < endsAtMs);
          if (nowMs < endsAtMs) return;
        }
      }),
    );
  });

  test("of several rules are spent together or not at all, each by its unit", () => {
    const made = withUnits(10, "two");
    expect(made.spend({ tokens: 8 }, 2)).toBe(true);
    expect(made.spend({ tokens: 3 }, 2)).toBe(false);
    expect(made.spendableAt(2)).toEqual([9, 2]);
    expect(made.used).toEqual([1, 8]);
  });

  test("that the object does not name are none", () => {
    const made = withUnits(0, "two");
    made.answered(
      made.ask(0, 5),
      { rules: said(policyOf("two")), reserved: { ttlMs: TTL_MS, isNew: false, units: { calls: 4 } } },
      6,
    );
    expect(made.spendableAt(6)).toEqual([4, 0]);
  });
});

describe("a message", () => {
  // Of 3,000 that started at once each returned the bucket that it got after 2 s, and asked again behind all others.
  test("to a region's object, which is asked first, brings what can be spent whenever the answer comes", () => {
    const policy = policyOf("auto");
    const made = new Reservation(policy, "key", "holder", 0);
    for (let nowMs = 0; nowMs < 200; nowMs += 10) made.note(1, nowMs);
    made.moveTo("weur");
    const message = made.ask(0, 200);
    const latestMs = 199 + made.messageMs;
    made.answered(message, granting(policy, 5, { ttlMs: message.call.ttlMs }), latestMs);
    expect(latestMs).toBeGreaterThan(200 + policy.reservation.leastMs);
    expect(made.spendableAt(latestMs)).toEqual([5]);
  });

  test("that an isolate answers by itself, without units, is no answer of the object, whose distance is not known by it", () => {
    const policy = policyOf("auto");
    const made = new Reservation(policy, "key", "holder", 0);
    for (let sentAtMs = 0; sentAtMs < 500; sentAtMs += 10)
      made.answered(made.ask(0, sentAtMs), granting(policy, 0, { ttlMs: 0 }), sentAtMs + 6);
    expect(made.isAnswered).toBe(false);
    made.answered(made.ask(0, 1_000), granting(policy, 1), 1_160);
    expect(made.isAnswered).toBe(true);
  });

  test("with a cost takes home all that is left", () => {
    const made = withUnits(10);
    made.spend(4, 2);
    expect(of(made.ask(1, 3))).toMatchObject({ used: 4, kept: 0 });
    expect(sumUp(made, 3)).toEqual([0, 4]);
    expect(made.spend(1, 3)).toBe(false);
  });

  test("without a cost keeps what there is, and it can be spent while the answer is on its way", () => {
    const made = withUnits(10);
    made.spend(4, 2);
    const message = made.ask(0, 3);
    expect(of(message)).toMatchObject({ used: 4, kept: 6 });
    expect(made.spend(5, 4)).toBe(true);
    made.answered(message, granting(made.policy, 20), 5);
    expect(sumUp(made, 5)).toEqual([21, 9]);
    made.failed(made.ask(0, 6));
    expect(sumUp(made, 7)[1]).toBe(9);
  });

  test("keeps only what is still wanted, and touches nothing of the rest", () => {
    const made = withUnits(50);
    made.answered(made.ask(0, 2), granting(made.policy, 0), 3);
    made.note(1, 500);
    const message = made.ask(0, 502);
    expect(of(message)).toMatchObject({ kept: 2, wanted: 2 });
    expect(made.spendableAt(502)).toEqual([2]);
  });

  test("is the only one whose answer counts when it is the last, and it counts once", () => {
    const made = withUnits(0);
    const [first, last] = [made.ask(0, 0), made.ask(0, 10)];
    made.answered(first, granting(made.policy, 50), 20);
    expect(made.spendableAt(20)).toEqual([0]);
    made.failed(first);
    expect(made.messageAt(20)).toBe(last);
    for (let time = 0; time < 2; time += 1) {
      made.answered(last, granting(made.policy, 20), 21);
      expect(made.spendableAt(21)).toEqual([20]);
      expect(made.messageAt(21)).toBeUndefined();
    }
    expect(last.call.turn).toBeGreaterThan(first.call.turn);
  });

  test("is not waited for after the deadline, or when it failed", () => {
    const made = withUnits(1);
    const message = made.ask(0, 2);
    const untilMs = 2 + made.policy.deadlineMs;
    expect([made.messageAt(untilMs - 1), made.messageAt(untilMs)]).toEqual([message, undefined]);
    const next = made.ask(0, untilMs);
    made.failed(next);
    expect(made.messageAt(untilMs)).toBeUndefined();
    made.answered(next, granting(made.policy, 20), untilMs + 1);
    expect(made.spendableAt(untilMs + 1)).toEqual([0]);
  });

  test("is waited for longer while the object is late: the more have had no answer in time, the longer", () => {
    const made = withUnits(1);
    const { deadlineMs } = made.policy;
    const waits = [1, 2, 3, 4, 5].map((count) => {
      const message = made.ask(0, count * 10_000);
      let waitMs = deadlineMs;
      while (made.messageAt(count * 10_000 + waitMs) === message) waitMs += 500;
      made.unanswered(count * 10_000, message);
      return waitMs;
    });
    expect(waits).toEqual([1_000, 2_000, 4_000, 6_000, 6_000].map((ms) => (ms * deadlineMs) / 1_000));
    expect(made.isBehind).toBe(true);
    made.answered(made.ask(0, 60_000), granting(made.policy, 1), 60_001);
    expect(made.isBehind).toBe(false);
  });

  test("that fills a bucket up fills it no higher than it is, whatever has come meanwhile", () => {
    const made = withUnits(0, "auto");
    const { policy } = made;
    const bucket = { rate: { units: 10_000, windowMs: 1_000_000 }, most: 20 };
    const filling = (units: number) => {
      const { rules, reserved } = granting(policy, units, { ttlMs: 8_000 });
      const named = Object.fromEntries(policy.rules.map(({ name }) => [name, bucket]));
      return { rules, reserved: { ...reserved, buckets: named } as Reserved };
    };
    made.answered(made.ask(0, 0), filling(20), 1);
    expect(made.spend(15, 1_000)).toBe(true);
    for (let call = 0; call < 15; call += 1) made.note(1, 1_000);
    const message = made.ask(0, 1_000);
    expect(message.call.rules["auto"]).toMatchObject({ kept: 20, level: 5, rate: 10_000 });
    made.answered(message, filling(15), 1_600);
    expect(made.spendableAt(1_600)).toEqual([20]);
  });

  test("is not waited for by calls when it brought no units, or another answer", () => {
    for (const end of [
      (made: Reservation, message: ReserveRequest) => made.answered(message, granting(made.policy, 0), 10),
      (made: Reservation, message: ReserveRequest) => made.failed(message),
    ]) {
      const made = withUnits(0);
      expect(made.isBehind).toBe(true);
      end(made, made.ask(0, 2));
      made.unanswered(3);
      expect(made.isBehind).toBe(false);
    }
  });

  /** Whether messages, one each second, say that the object is far. */
  const askedFar = (tookMs: readonly number[]) => {
    const made = withUnits(0);
    return tookMs.map((ms, index) => {
      const message = made.ask(0, 1_000 * index);
      made.answered(message, granting(made.policy, 20), 1_000 * index + ms);
      return message.call.takesBucket;
    });
  };

  test("says that the object is far when each of its last round trips was long: a cold or busy one is slow at times", () => {
    const isEverFar = (tookMs: readonly number[]) => askedFar(tookMs).includes(true);
    expect(askedFar([300, 40, 40, 40, 40])).toEqual([false, false, false, true, true]);
    expect(isEverFar([300, 2, 2, 2, 2])).toBe(false);
    const busy = Array.from({ length: 5 }, () => [2, 300, 200, 80]).flat();
    expect(isEverFar(busy)).toBe(false);
    // It has moved away, and back.
    const moved = Array.from({ length: 12 }, () => 60);
    expect(askedFar([...busy, ...moved, 60]).at(-1)).toBe(true);
    expect(askedFar([...moved, 2, 2]).at(-1)).toBe(false);
  });

  test("says so after two seconds: a server that is killed soon after its start would lose its bucket each time", () => {
    expect(askedFar([40, 40, 40, 40])).toEqual([false, false, false, true]);
  });

  test("answered by an object that did not know of the units drops what was kept, and what was spent of it since", () => {
    const made = withUnits(10);
    made.spend(2, 2);
    const message = made.ask(0, 3);
    made.spend(4, 4);
    made.answered(message, granting(made.policy, 3, { isNew: true }), 5);
    expect(sumUp(made, 5)).toEqual([3, 2]);
    made.spend(1, 6);
    expect(of(made.ask(1, 7))).toMatchObject({ used: 3 });
  });

  test("promises no more places than the units it asks for", () => {
    const made = withUnits(0);
    const message = made.ask(0, 0);
    const [wanted = 0] = message.wanted.units;
    expect(wanted).toBe(80);
    const places = Array.from({ length: 90 }, () => message.promise(made.policy, 1));
    expect(places.lastIndexOf(true)).toBe(wanted - 1);
    expect(places.indexOf(false)).toBe(wanted);
    const [large, small] = [{ tokens: wanted + 1 }, { tokens: wanted }];
    const two = withUnits(0, "two");
    const both = two.ask(0, 0);
    expect([large, small, small].map((cost) => both.promise(two.policy, cost))).toEqual([false, true, false]);
  });

  test("is due when units or time run short, unless one is on its way", () => {
    const made = withUnits(10);
    expect(withUnits(0).needsRefill(0)).toBe(false);
    expect(made.needsRefill(2)).toBe(false);
    expect(made.needsRefill(refillMs(TTL_MS))).toBe(true);
    made.spend(5, 2);
    expect(made.needsRefill(2)).toBe(true);
    made.ask(0, 3);
    expect(made.needsRefill(4)).toBe(false);
  });
});

describe("giving back", () => {
  test("says what was used, and ends it", () => {
    const made = withUnits(10);
    made.spend(3, 2);
    const message = made.ask(0, 3);
    const returned = made.giveBack();
    expect(returned).toEqual({ key: "key", holder: "holder", turn: expect.any(Number), used: { one: 3 } });
    expect(returned?.turn).toBeGreaterThan(message.call.turn);
    made.answered(message, granting(made.policy, 20), 4);
    expect([made.spend(1, 4), made.endsAtMs, made.messageAt(4)]).toEqual([false, undefined, undefined]);
    expect(made.giveBack()).toBeUndefined();
  });

  // A region passes on what it held for an isolate when that isolate ends. It was kept for seconds when none said so.
  test("is said to a region also when nothing is left of what was asked for, and to an object of its own is not", () => {
    const endOf = (name: string) => {
      const made = withUnits(0, name);
      made.answered(made.ask(0, 2), granting(made.policy, 0), 3);
      return made.giveBack();
    };
    expect(endOf("one")).toBeUndefined();
    expect(endOf("pooled")).toMatchObject({ key: "key", used: { pooled: 0 } });
  });

  test("of what was never asked for says nothing", () => {
    expect(withUnits(0).giveBack()).toBeUndefined();
  });
});
