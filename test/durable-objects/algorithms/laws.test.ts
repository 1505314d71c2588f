import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { algorithms } from "../../../durable-objects/algorithms/registry.ts";
import { configured, specimens } from "../../support/algorithms.ts";

/** A call some milliseconds after the one before it. */
const call = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 50 }), fc.integer({ min: 0, max: 5_000_000 })),
  cost: fc.oneof(fc.integer({ min: 1, max: 5 }), fc.integer({ min: 0, max: 2_000_000 })),
});
const history = fc.array(call, { maxLength: 25 });
const START_MS = 1_760_000_000_000;

describe.each([...algorithms.values()])("$name", (algorithm) => {
  const specimen = specimens[algorithm.name];
  if (specimen === undefined)
    throw new Error(`no specimen of ${algorithm.name} in test/support/algorithms.ts`);
  const { fields } = specimen;

  /** Plays a history; `seen` is told of every decision before its state is taken over. */
  function play(
    config: object,
    calls: readonly { afterMs: number; cost: number }[],
    seen?: (played: Played) => void,
  ) {
    let state: unknown;
    let nowMs = START_MS;
    for (const { afterMs, cost } of calls) {
      nowMs += afterMs;
      const decision = algorithm.decide(config, freeze(state), nowMs, cost, 0);
      seen?.({ nowMs, cost, state, allowed: decision.allowed });
      if (decision.allowed) ({ state } = decision);
    }
    return { state, nowMs };
  }

  const decide = (config: object, state: unknown, nowMs: number, cost: number, outstanding = 0) =>
    algorithm.decide(config, freeze(state), nowMs, cost, outstanding);

  /** The largest cost that passes, found by asking. */
  function largest(config: object, state: unknown, nowMs: number, outstanding = 0): number {
    let passes = 0;
    let fails = algorithm.capacity(config) + 1;
    while (fails - passes > 1) {
      const cost = Math.floor((passes + fails) / 2);
      if (decide(config, state, nowMs, cost, outstanding).allowed) passes = cost;
      else fails = cost;
    }
    return passes;
  }

  test("never admits more than its bound in any interval", () => {
    fc.assert(
      fc.property(fields, history, (given, calls) => {
        const admitted: { nowMs: number; cost: number }[] = [];
        play(
          configured(algorithm, given),
          calls,
          ({ allowed, ...each }) => void (allowed && admitted.push(each)),
        );
        for (let from = 0; from < admitted.length; from += 1) {
          let units = 0;
          for (const { nowMs, cost } of admitted.slice(from)) {
            units += cost;
            const lengthMs = nowMs - (admitted[from]?.nowMs ?? nowMs);
            expect(specimen.keepsBound(given, units, lengthMs)).toBe(true);
          }
        }
      }),
      { numRuns: 2_000 },
    );
  });

  test("a denial carries no state, so it cannot change anything", () => {
    fc.assert(
      fc.property(fields, history, call, (given, calls, { cost }) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const before = JSON.stringify(state);
        const decision = decide(config, state, nowMs, cost);
        if (!decision.allowed) expect(decision).not.toHaveProperty("state");
        expect(JSON.stringify(state)).toBe(before);
      }),
    );
  });

  test("the promised wait is exact: one millisecond earlier is refused, at that instant it passes", () => {
    fc.assert(
      fc.property(fields, history, call, fc.nat(3), (given, calls, { cost }, outstanding) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const decision = decide(config, state, nowMs, cost, outstanding);
        if (decision.allowed || decision.retryAfterMs === null) return;
        expect(decision.retryAfterMs).toBeGreaterThan(0);
        expect(decide(config, state, nowMs + decision.retryAfterMs - 1, cost, outstanding).allowed).toBe(
          false,
        );
        expect(decide(config, state, nowMs + decision.retryAfterMs, cost, outstanding).allowed).toBe(true);
      }),
      { numRuns: 2_000 },
    );
  });

  test("a cost over the capacity is refused for ever, and any other passes some time", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(2_000_000), (given, calls, over) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const capacity = algorithm.capacity(config);
        expect(decide(config, state, nowMs, capacity + 1 + over)).toMatchObject({
          allowed: false,
          reason: "cost-over-limit",
          retryAfterMs: null,
        });
        const all = decide(config, state, nowMs, capacity);
        expect(all.allowed || all.retryAfterMs !== null).toBe(true);
      }),
    );
  });

  test("remaining is the largest cost that passes, admitted or denied", () => {
    fc.assert(
      fc.property(fields, history, call, fc.nat(3), (given, calls, { cost }, outstanding) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const decision = decide(config, state, nowMs, cost, outstanding);
        const after = decision.allowed ? decision.state : state;
        expect(decision.remaining).toBe(largest(config, after, nowMs, outstanding));
      }),
    );
  });

  test("the quota is whole at resetAfterMs and not a millisecond earlier", () => {
    fc.assert(
      fc.property(fields, history, (given, calls) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const { resetAfterMs } = decide(config, state, nowMs, 0);
        const isWhole = (atMs: number) => {
          const after = decide(config, state, atMs, 0);
          return after.allowed && after.state === undefined;
        };
        expect(isWhole(nowMs + resetAfterMs)).toBe(true);
        if (resetAfterMs > 0) expect(isWhole(nowMs + resetAfterMs - 1)).toBe(false);
        if (state !== undefined) {
          expect(Math.max(nowMs, algorithm.wholeAtMs(config, state))).toBe(nowMs + resetAfterMs);
        }
      }),
    );
  });

  test("a cost of n is n costs of 1 at one instant", () => {
    fc.assert(
      fc.property(fields, history, fc.integer({ min: 1, max: 60 }), (given, calls, cost) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const whole = decide(config, state, nowMs, cost);
        let [current, admitted] = [state, 0];
        for (; admitted < cost; admitted += 1) {
          const one = decide(config, current, nowMs, 1);
          if (!one.allowed) break;
          current = one.state;
        }
        expect(admitted === cost).toBe(whole.allowed);
        if (whole.allowed) expect(current).toEqual(whole.state);
      }),
    );
  });

  test("a clock that runs backwards gains nothing", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(10_000_000), (given, calls, backMs) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const there = largest(config, state, nowMs);
        expect(largest(config, state, nowMs - backMs)).toBeLessThanOrEqual(there);
        const earlier = decide(config, state, nowMs - backMs, 1);
        if (earlier.allowed) expect(largest(config, earlier.state, nowMs)).toBeLessThanOrEqual(there);
      }),
    );
  });

  test("forgetting a state from the instant it is whole changes nothing", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(1_000), call, (given, calls, laterMs, { cost }) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        if (state === undefined) return;
        const atMs = Math.max(nowMs, algorithm.wholeAtMs(config, state)) + laterMs;
        expect(decide(config, state, atMs, cost)).toEqual(decide(config, undefined, atMs, cost));
      }),
    );
  });

  test("steady traffic within the quota is never denied", () => {
    fc.assert(
      fc.property(fields, fc.integer({ min: 2, max: 60 }), (given, count) => {
        const config = configured(algorithm, given);
        const { units, windowMs } = algorithm.quota(config);
        // One unit each time the rate has made one, rounded up to whole milliseconds.
        const apart = Math.ceil(windowMs / units);
        const calls = Array.from({ length: count }, () => ({ afterMs: apart, cost: 1 }));
        play(config, calls, ({ allowed }) => expect(allowed).toBe(true));
      }),
    );
  });

  test("state survives JSON", () => {
    fc.assert(
      fc.property(fields, history, call, (given, calls, { afterMs, cost }) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        if (state === undefined) return;
        const copy: unknown = JSON.parse(JSON.stringify(state));
        expect(decide(config, copy, nowMs + afterMs, cost)).toEqual(
          decide(config, state, nowMs + afterMs, cost),
        );
      }),
    );
  });

  test("outstanding units are as good as taken, and are free again when they are not outstanding", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(1_000), (given, calls, held) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const free = largest(config, state, nowMs);
        const outstanding = Math.min(held, free);
        expect(largest(config, state, nowMs, outstanding)).toBe(free - outstanding);
        expect(largest(config, state, nowMs)).toBe(free);
      }),
    );
  });

  test("a debit takes units whether they are there or not, and a credit gives back at most what is missing", () => {
    fc.assert(
      fc.property(fields, history, fc.integer({ min: 1, max: 2_000_000 }), (given, calls, units) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        const free = largest(config, state, nowMs);
        const debited = algorithm.debit(config, freeze(state), nowMs, units);
        expect(largest(config, debited, nowMs)).toBe(Math.max(0, free - units));
        const back = algorithm.credit(config, freeze(debited), nowMs, units);
        expect(largest(config, back, nowMs)).toBe(free);
        const more = algorithm.credit(config, freeze(state), nowMs, units);
        expect(largest(config, more, nowMs)).toBe(Math.min(algorithm.capacity(config), free + units));
      }),
    );
  });

  test("what is stored, when it covers, never offers more than what was lost, at any later instant", () => {
    const later = fc.array(fc.nat(100_000), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(
        fields,
        history,
        history,
        fc.nat(400),
        fc.nat(4),
        later,
        (given, first, second, ahead, held, laterMs) => {
          const config = configured(algorithm, given);
          const { state: stored, nowMs: storedAtMs } = play(config, first);
          const { state, nowMs } = play(config, [...first, ...second]);
          const outstanding = Math.min(held, largest(config, state, nowMs));
          expect(nowMs).toBeGreaterThanOrEqual(storedAtMs);
          if (!algorithm.covers(config, stored, ahead, state, outstanding, nowMs)) return;
          for (const after of [0, ...laterMs]) {
            const offered = largest(config, stored, nowMs + after, ahead);
            expect(offered).toBeLessThanOrEqual(largest(config, state, nowMs + after, outstanding));
          }
        },
      ),
      { numRuns: 3_000 },
    );
  });

  test("what has just been written covers itself", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(5), (given, calls, ahead) => {
        const config = configured(algorithm, given);
        const { state, nowMs } = play(config, calls);
        expect(algorithm.covers(config, state, ahead, state, ahead, nowMs)).toBe(true);
        expect(algorithm.covers(config, state, ahead, state, ahead + 1, nowMs)).toBe(false);
      }),
    );
  });
});

interface Played {
  readonly nowMs: number;
  readonly cost: number;
  readonly state: unknown;
  readonly allowed: boolean;
}

/** States are values: an algorithm that writes into one throws here. */
function freeze<Value>(value: Value): Value {
  return typeof value === "object" && value !== null ? Object.freeze(value) : value;
}
