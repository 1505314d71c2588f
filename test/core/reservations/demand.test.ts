import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import { Reservation } from "../../../core/reservations/reservation.ts";
import {
  HOT_CALLS,
  RecentDemand,
  refillMs,
  spendableMs,
  type WantedUnits,
} from "../../../core/reservations/sizing.ts";
import { seededRandom } from "../../support/random.ts";

function policyWith(reservation: unknown): Policy {
  const fields = { algorithm: "token-bucket", limit: 1_000_000, window: "1s", reservation };
  const policy = parsePolicies({ test: fields }).get("test");
  if (policy === undefined) throw new Error("no policy");
  return policy;
}

const demandOf = (policy: Policy, nowMs = 0) => new Reservation(policy, "key", "holder", nowMs);

interface Asked {
  readonly atMs: number;
  readonly wanted: WantedUnits;
}

/** Calls of cost 1 at these instants, from an object that has all that is wanted: what is asked for, and when. */
function drive(policy: Policy, instantsMs: readonly number[]): Asked[] {
  const demand = demandOf(policy, instantsMs[0]);
  const asked: Asked[] = [];
  let [units, grantedAtMs] = [0, -Infinity];
  for (const nowMs of instantsMs) {
    demand.note(1, nowMs);
    const { ttlMs = 0, low = [] } = asked.at(-1)?.wanted ?? {};
    const isSpent = units > 0 && nowMs < grantedAtMs + spendableMs(ttlMs);
    if (isSpent) units -= 1;
    if (isSpent && units > (low[0] ?? 0) && nowMs < grantedAtMs + refillMs(ttlMs)) continue;
    if (!isSpent && !demand.isHot) continue;
    const wanted = demand.ask(0, nowMs).wanted;
    asked.push({ atMs: nowMs, wanted });
    [units, grantedAtMs] = [wanted.units[0] ?? 0, nowMs];
  }
  return asked;
}

/** So many instants after `fromMs`, so far apart. */
function steady(fromMs: number, gapMs: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => Math.floor(fromMs + (index + 1) * gapMs));
}

describe("demand that changes tenfold", () => {
  const histories = fc.record({
    // From a call in 10 ms to ten a millisecond when it is busiest.
    gapMs: fc.double({ min: 1, max: 10, noNaN: true }),
    calmMs: fc.integer({ min: 4_000, max: 8_000 }),
    reservation: fc.constantFrom("auto", { ttl: "1s" }, { ttl: "4s" }),
  });
  const LIFETIMES = 5;

  /** Calls at one pace for a while, then at another; what was asked for, and when the pace changed. */
  function change(policy: Policy, gapMs: number, laterGapMs: number, calmMs: number) {
    const lastMs = policy.reservation.leastMs * LIFETIMES;
    const before = steady(0, gapMs, Math.ceil((calmMs + 2 * lastMs) / gapMs));
    const changedMs = before.at(-1) ?? 0;
    const asked = drive(policy, [
      ...before,
      ...steady(changedMs, laterGapMs, Math.ceil(lastMs / laterGapMs)),
    ]);
    return { asked, changedMs };
  }
  /** How many times as many units are wanted as calls use of them in a lifetime. */
  const ratio = ({ wanted }: Asked, gapMs: number) => (wanted.units[0] ?? 0) / (wanted.ttlMs / gapMs);
  const lastBefore = (asked: readonly Asked[], byMs: number) => asked.findLast(({ atMs }) => atMs <= byMs);

  test("when it rises, as much is wanted within one lifetime", () => {
    fc.assert(
      fc.property(histories, ({ gapMs, calmMs, reservation }) => {
        const policy = policyWith(reservation);
        const { asked, changedMs } = change(policy, gapMs * 10, gapMs, calmMs);
        const ttlMs = lastBefore(asked, changedMs)?.wanted.ttlMs ?? 0;
        const after = lastBefore(asked, changedMs + ttlMs);
        if (after === undefined) throw new Error("nothing was asked for");
        expect(ratio(after, gapMs)).toBeGreaterThan(0.75);
        expect(ratio(after, gapMs)).toBeLessThan(1.5);
      }),
      { numRuns: 60 },
    );
  });

  test("when it falls, less is wanted within one lifetime, and as little as is used within one and a half", () => {
    fc.assert(
      fc.property(histories, ({ gapMs, calmMs, reservation }) => {
        const laterGapMs = 10 * gapMs;
        const { asked, changedMs } = change(policyWith(reservation), gapMs, laterGapMs, calmMs);
        const before = lastBefore(asked, changedMs);
        if (before === undefined) throw new Error("nothing was asked for");
        const { ttlMs, units } = before.wanted;
        // A message goes with a call, so it may be as late as the next one.
        const [first, last] = [1, 1.5].map((part) =>
          lastBefore(asked, changedMs + part * ttlMs + laterGapMs),
        );
        if (first === undefined || last === undefined) throw new Error("nothing was asked for");
        expect(first.wanted.units[0]).toBeLessThanOrEqual(((units[0] ?? 0) * 2) / 3 + 1);
        expect(ratio(last, laterGapMs)).toBeGreaterThan(0.75);
        expect(ratio(last, laterGapMs)).toBeLessThan(1.5);
      }),
      { numRuns: 60 },
    );
  });
});

test("what is asked for counts once: after a message the next one begins at nothing", () => {
  const demand = demandOf(policyWith({ ttl: "1s" }));
  for (const nowMs of steady(0, 10, 10)) demand.note(3, nowMs);
  demand.miss();
  expect(demand.ask(0, 100).wanted).toMatchObject({ units: [120], ttlMs: 1_000, isShort: true });
  expect(demand.ask(0, 200).wanted).toMatchObject({ units: [0], low: [0], isShort: false });
});

test("a key is hot at its third call, and no longer after a pause as long as the longest lifetime", () => {
  expect([0, 1, 2, 3].map((calls) => calls >= HOT_CALLS)).toEqual([false, false, false, true]);
  const demand = demandOf(policyWith({ ttl: "1s" }));
  for (const nowMs of [0, 1_000, 2_000]) demand.note(1, nowMs);
  expect(demand.isHot).toBe(true);
  demand.note(1, 3_001);
  expect(demand.isHot).toBe(false);
  expect(demand.ask(0, 3_001).wanted.units).toEqual([0]);
});

describe("a key that comes a second time", () => {
  const secondTime = (fields: object, costs: readonly number[]) => {
    const shared = { algorithm: "token-bucket", limit: 1_000_000, window: "1s", objects: 16, ...fields };
    const policy = parsePolicies({ test: shared }).get("test") as Policy;
    const demand = demandOf(policy);
    for (const [index, cost] of costs.entries()) demand.note(cost, 1_000 * (index + 1));
    return demand;
  };

  test("is worth a few units for long, where many keys share an object and calls have a cost of 1", () => {
    const demand = secondTime({}, [1, 1]);
    expect([demand.isHot, demand.isWorthUnits]).toEqual([false, true]);
    expect(demand.ask(0, 2_000).wanted).toEqual({ ttlMs: 8_000, units: [7], low: [0], isShort: false });
  });

  test.each([
    ["a key that came once", {}, [1]],
    ["a key with an object of its own", { objects: "per-key" }, [1, 1]],
    ["a pool", { pool: "redis" }, [1, 1]],
    ["a lifetime that is set", { reservation: { ttl: "1s" } }, [1, 1]],
    ["costs of more units", {}, [1, 2]],
  ])("is not, of %s", (_, fields, costs) => {
    expect(secondTime(fields, costs).isWorthUnits).toBe(false);
  });
});

/** What a holder says that its calls need in a second, each second, if so many come at random. */
function said(perSecond: (second: number) => number, seconds: number, seed: number): number[] {
  const random = seededRandom(seed);
  const demand = demandOf(policyWith({ ttl: "8s" }));
  return Array.from({ length: seconds }, (_, second) => {
    const [fromMs, untilMs] = [1_000 * second, 1_000 * (second + 1)];
    for (let atMs = fromMs; ;) {
      atMs -= (1_000 * Math.log(1 - random())) / perSecond(second);
      if (atMs >= untilMs) break;
      demand.note(1, Math.floor(atMs));
    }
    return demand.ask(0, untilMs).call.rules["test"]?.demand ?? Number.NaN;
  });
}

test("when calls become much rarer the next message says how many are left, since others need the rest", () => {
  for (let seed = 1; seed <= 50; seed += 1) {
    const all = said((second) => (second < 10 ? 72 : 8), 12, seed);
    expect(all[9]).toBeGreaterThan(50);
    expect(all[10]).toBeLessThan(20);
    expect(all[11]).toBeLessThan(20);
  }
});

test("calls at random are averaged over seconds: chance does not count as a fall", () => {
  const all = Array.from({ length: 20 }, (_, seed) => said(() => 20, 100, seed + 1).slice(10)).flat();
  const isOff = (demand: number) => Math.abs(demand - 20) > 10;
  expect(all.filter(isOff).length / all.length).toBeLessThan(0.001);
});

// A process that had not run for 30 ms said that it needed a fortieth, and its bucket was cut down to that.
test("a moment without calls is no fall of the demand, and a quarter of a second is", () => {
  const after = (calls: number, elapsedMs: number) => {
    const demand = new RecentDemand();
    demand.add(2_000, [2_000], 2_000);
    demand.add(calls, [calls], elapsedMs);
    return demand.perSecond[0] ?? 0;
  };
  expect(after(1, 30)).toBeGreaterThan(950);
  expect(after(10, 500)).toBe(20);
});

describe("a holder with a bucket", () => {
  const RATE = 80;

  /** It has a bucket with this rate since 6 s, when calls change from 80 a second. */
  function changed(laterGapMs: number) {
    const policy = policyWith("auto");
    const demand = demandOf(policy);
    const buckets = { test: { rate: { units: RATE * 1_000, windowMs: 1_000_000 }, most: RATE } };
    const reserved = { ttlMs: 2_000, isNew: false, buckets };
    for (const nowMs of steady(0, 1_000 / RATE, 6 * RATE)) demand.note(1, nowMs);
    demand.answered(
      demand.ask(0, 6_000),
      { rules: [], reserved: { ...reserved, units: { test: RATE } } },
      6_100,
    );
    demand.answered(
      demand.ask(0, 6_100),
      { rules: [], reserved: { ...reserved, units: { test: 0 } } },
      6_150,
    );
    const calls = steady(6_150, laterGapMs, 10_000 / laterGapMs)[Symbol.iterator]();
    /** The next message, and when it is sent. */
    const next = () => {
      for (const nowMs of calls) {
        demand.note(1, nowMs);
        demand.spend(1, nowMs);
        if (demand.needsRefill(nowMs)) return { nowMs, message: demand.ask(0, nowMs) };
      }
      throw new Error("it does not ask");
    };
    return { demand, next, answer: { rules: [], reserved: { ...reserved, units: { test: 0 } } } };
  }

  test("gives up what rarer calls do not need with its next message, and not with the one after its answer", () => {
    const { demand, next } = changed(200);
    const { nowMs, message } = next();
    expect(message.call.rules["test"]?.rate).toBeLessThan((RATE * 1_000) / 4);
    expect(message.call.rules["test"]?.rate).toBeGreaterThan(2 * 4 * 1_000);
    const [units = 0] = demand.spendableAt(nowMs);
    expect(demand.spend(units, nowMs)).toBe(true);
    // Of its old rate 20 had come.
    const [came = 0] = demand.spendableAt(nowMs + 250);
    expect(came).toBeGreaterThan(1);
    expect(came).toBeLessThan(10);
  });

  test("whose calls have become many more says so twice, since others give up theirs meanwhile", () => {
    const waitMs = (laterGapMs: number) => {
      const { demand, next, answer } = changed(laterGapMs);
      const { nowMs, message } = next();
      demand.answered(message, answer, nowMs + 50);
      return next().nowMs - nowMs;
    };
    expect(waitMs(1_000 / (8 * RATE))).toBeLessThan(0.5 * waitMs(1_000 / RATE));
  });
});
