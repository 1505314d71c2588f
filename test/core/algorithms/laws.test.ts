import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { UNTOUCHED, advance, outstandingOf, place, refund } from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import type { Segment } from "../../../core/algorithms/algorithm.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { ruleWith, specimens } from "../../support/algorithms.ts";
import { type AccountDecision, decide as decideAdvanced } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";

/** A call some milliseconds after the one before it. With `back`, an earlier charge is then given back. */
const call = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 50 }), fc.integer({ min: 0, max: 5_000_000 })),
  cost: fc.oneof(fc.integer({ min: 1, max: 5 }), fc.integer({ min: 0, max: 2_000_000 })),
  back: fc.option(fc.nat(25), { freq: 2 }),
});
const history = fc.array(call, { maxLength: 25 });
const START_MS = 1_760_000_000_000;
/** Later than anything here. */
const NEVER_MS = 2 ** 52;

let grants = 0;

/** Decides at an instant, with so many units held by somebody for ever. What leases takes a lease of its ttl. */
function decide(rule: Rule, account: Account, nowMs: number, cost: number, held = 0): AccountDecision {
  const advanced = freeze(advance(rule, account, nowMs));
  const other = { id: "other", units: held, expiresAtMs: NEVER_MS };
  const decision = decideAdvanced(rule, held === 0 ? advanced : place(advanced, other), nowMs, cost);
  if (!decision.allowed) return decision;
  const holds = decision.account.holds.filter(({ id }) => id !== "other");
  const after = { state: decision.account.state, holds };
  if (rule.lease === undefined || cost === 0) return { ...decision, account: after };
  grants += 1;
  const leased = place(after, { id: `${grants}`, units: cost, expiresAtMs: nowMs + rule.lease.ttlMs });
  const { resetAfterMs } = decideAdvanced(rule, leased, nowMs, 0);
  return { ...decision, account: leased, resetAfterMs };
}

/** What a caller sees of an account. */
function figures(rule: Rule, account: Account, nowMs: number) {
  const { remaining, resetAfterMs } = decide(rule, account, nowMs, 0);
  return { remaining, resetAfterMs };
}

/** The largest cost that passes, found by asking. */
function largest(rule: Rule, account: Account, nowMs: number, held = 0): number {
  let passes = 0;
  let fails = rule.capacity + 1;
  while (fails - passes > 1) {
    const cost = Math.floor((passes + fails) / 2);
    if (decide(rule, account, nowMs, cost, held).allowed) passes = cost;
    else fails = cost;
  }
  return passes;
}

/** A call that was admitted. */
interface Charge {
  readonly nowMs: number;
  /** 0 when it has been given back. */
  cost: number;
}

/**
 * Plays a history; `seen` is told of every decision before its account is taken over, and of the charges that were made
 * until then and not given back.
 */
function play(
  rule: Rule,
  calls: readonly { afterMs: number; cost: number; back?: number | null }[],
  seen?: (played: { cost: number; decision: AccountDecision; charges: readonly Charge[] }) => void,
) {
  const charges: Charge[] = [];
  let account = UNTOUCHED;
  let nowMs = START_MS;
  for (const { afterMs, cost, back } of calls) {
    nowMs += afterMs;
    const decision = decide(rule, account, nowMs, cost);
    if (decision.allowed) charges.push({ nowMs, cost });
    seen?.({ cost, decision, charges });
    if (decision.allowed) ({ account } = decision);
    const charge = charges[(back ?? 0) % charges.length];
    if (typeof back !== "number" || charge === undefined) continue;
    account = refund(rule, freeze(account), nowMs, charge.cost, charge.nowMs);
    charge.cost = 0;
  }
  return { account, nowMs };
}

describe.each([...algorithms.values()])("$name", (algorithm) => {
  const specimen = specimens[algorithm.name];
  if (specimen === undefined)
    throw new Error(`no specimen of ${algorithm.name} in test/support/algorithms.ts`);
  const { fields, countsNothing = false, neverRefills = false } = specimen;
  const leases = algorithm.leasing !== undefined;

  test("never admits more than its bound in any interval, but for charges that were given back", () => {
    fc.assert(
      fc.property(fields, history, (given, calls) => {
        play(ruleWith(algorithm, given), calls, ({ charges }) => {
          let units = 0;
          const nowMs = charges.at(-1)?.nowMs ?? 0;
          for (const charge of charges.toReversed()) {
            units += charge.cost;
            expect(specimen.keepsBound(given, units, nowMs - charge.nowMs)).toBe(true);
          }
        });
      }),
      { numRuns: depth(20, 1_000) },
    );
  });

  test("a charge of a whole quota that is given back by name, sooner or later, leaves the quota untouched", () => {
    fc.assert(
      fc.property(fields, fc.nat(1_000), fc.integer({ min: 1, max: 2_000_000 }), (given, laterMs, wanted) => {
        const rule = ruleWith(algorithm, given);
        const charged = decide(rule, UNTOUCHED, START_MS, Math.min(wanted, rule.capacity));
        if (!charged.allowed) throw new Error("a cost within the capacity fits an untouched quota");
        if (leases || "minInterval" in given) return;
        const back = refund(rule, freeze(charged.account), START_MS + laterMs, wanted, START_MS);
        const [left, untouched] = [
          figures(rule, back, START_MS + laterMs),
          figures(rule, UNTOUCHED, START_MS),
        ];
        const mostMs = specimen.roundsWhole === true ? 1 : 0;
        expect(left.resetAfterMs).toBeLessThanOrEqual(mostMs);
        expect({ ...left, resetAfterMs: 0 }).toEqual(untouched);
      }),
    );
  });

  test("a charge gives back at most what it took, and nothing once time has given all of it back", () => {
    fc.assert(
      fc.property(fields, history, history, call, (given, first, second, { cost }) => {
        const rule = ruleWith(algorithm, given);
        const before = play(rule, first);
        const charged = decide(rule, before.account, before.nowMs, cost);
        if (!charged.allowed) return;
        let { account } = charged;
        let { nowMs } = before;
        for (const { afterMs, cost: other } of second) {
          nowMs += afterMs;
          const decision = decide(rule, account, nowMs, other);
          if (decision.allowed) ({ account } = decision);
        }
        const after = refund(rule, freeze(account), nowMs, cost, before.nowMs);
        const most = nowMs >= before.nowMs + algorithm.refillMs(rule.config, rule.capacity) ? 0 : cost;
        expect(largest(rule, after, nowMs)).toBeLessThanOrEqual(largest(rule, account, nowMs) + most);
        expect(largest(rule, after, nowMs)).toBeGreaterThanOrEqual(largest(rule, account, nowMs));
      }),
    );
  });

  test("a denial carries no account, so it cannot change anything", () => {
    fc.assert(
      fc.property(fields, history, call, (given, calls, { cost }) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const before = figures(rule, account, nowMs);
        const decision = decide(rule, account, nowMs, cost);
        if (!decision.allowed) {
          expect(decision).not.toHaveProperty("account");
          expect(decision).not.toHaveProperty("counted");
        }
        expect(figures(rule, account, nowMs)).toEqual(before);
      }),
    );
  });

  test("the promised wait is exact: one millisecond earlier is refused, at that instant it passes", () => {
    fc.assert(
      fc.property(fields, history, call, fc.nat(3), (given, calls, { cost }, held) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const decision = decide(rule, account, nowMs, cost, held);
        if (decision.allowed || decision.retryAfterMs === null) return;
        const passesAtMs = nowMs + decision.retryAfterMs;
        // With units held for ever it is until those are used up: then it never passes.
        if (passesAtMs >= NEVER_MS) return;
        expect(decision.retryAfterMs).toBeGreaterThan(0);
        expect(decide(rule, account, passesAtMs - 1, cost, held).allowed).toBe(false);
        expect(decide(rule, account, passesAtMs, cost, held).allowed).toBe(true);
      }),
      { numRuns: depth(20, 1_000) },
    );
  });

  test("a cost over the capacity is refused for ever, and any other passes some time", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(2_000_000), (given, calls, over) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        expect(decide(rule, account, nowMs, rule.capacity + 1 + over)).toMatchObject({
          allowed: false,
          reason: "cost-over-limit",
          retryAfterMs: null,
        });
        const all = decide(rule, account, nowMs, rule.capacity);
        expect(all.allowed || all.retryAfterMs !== null).toBe(all.allowed || !neverRefills);
      }),
    );
  });

  test("remaining is the largest cost that passes, admitted or denied", () => {
    fc.assert(
      fc.property(fields, history, call, fc.nat(3), (given, calls, { cost }, held) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const decision = decide(rule, account, nowMs, cost, held);
        const after = decision.allowed ? decision.account : account;
        expect(decision.remaining).toBe(largest(rule, after, nowMs, held));
      }),
    );
  });

  test("the quota is whole at resetAfterMs and not a millisecond earlier", () => {
    fc.assert(
      fc.property(fields, history, (given, calls) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const { resetAfterMs } = decide(rule, account, nowMs, 0);
        const untouched = { remaining: rule.capacity, resetAfterMs: 0 };
        expect(figures(rule, account, nowMs + resetAfterMs)).toEqual(untouched);
        if (resetAfterMs > 0) expect(figures(rule, account, nowMs + resetAfterMs - 1)).not.toEqual(untouched);
      }),
    );
  });

  test("a cost of n is n costs of 1 at one instant", () => {
    fc.assert(
      fc.property(
        fields,
        history,
        fc.integer({ min: 1, max: 60 }),
        fc.nat(1_000),
        (given, calls, cost, later) => {
          // Two calls at one instant are just what a minimal interval forbids.
          if ("minInterval" in given) return;
          const rule = ruleWith(algorithm, given);
          const { account, nowMs } = play(rule, calls);
          const whole = decide(rule, account, nowMs, cost);
          let [current, admitted] = [account, 0];
          for (; admitted < cost; admitted += 1) {
            const one = decide(rule, current, nowMs, 1);
            if (!one.allowed) break;
            current = one.account;
          }
          expect(admitted === cost).toBe(whole.allowed);
          if (!whole.allowed) return;
          for (const atMs of [nowMs, nowMs + later])
            expect(figures(rule, current, atMs)).toEqual(figures(rule, whole.account, atMs));
        },
      ),
    );
  });

  test("a clock that runs backwards gains nothing", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(10_000_000), (given, calls, backMs) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const there = largest(rule, account, nowMs);
        expect(largest(rule, account, nowMs - backMs)).toBeLessThanOrEqual(there);
        const earlier = decide(rule, account, nowMs - backMs, 1);
        if (earlier.allowed) expect(largest(rule, earlier.account, nowMs)).toBeLessThanOrEqual(there);
      }),
    );
  });

  test("forgetting an account from the instant it is whole changes nothing", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(1_000), call, (given, calls, laterMs, { cost }) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const atMs = nowMs + decide(rule, account, nowMs, 0).resetAfterMs + laterMs;
        const { account: _, ...kept } = { account, ...decide(rule, account, atMs, cost) };
        const { account: __, ...forgotten } = { account, ...decide(rule, UNTOUCHED, atMs, cost) };
        expect(kept).toEqual(forgotten);
      }),
    );
  });

  test("steady traffic within the quota is never denied", () => {
    fc.assert(
      fc.property(fields, fc.integer({ min: 2, max: 60 }), (given, count) => {
        const afterMs = specimen.paceMs(given);
        const calls = Array.from({ length: count }, () => ({ afterMs, cost: 1 }));
        play(ruleWith(algorithm, given), calls, ({ decision }) => expect(decision.allowed).toBe(true));
      }),
    );
  });

  test("state survives storage", () => {
    fc.assert(
      fc.property(fields, history, history, (given, first, second) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, first);
        if (account.state === undefined) return;
        const { record, segment } = algorithm.pack(rule.config, account.state, nowMs, undefined);
        const copy = JSON.parse(JSON.stringify({ record, segment })) as {
          record: unknown;
          segment?: Segment;
        };
        const segments = copy.segment === undefined ? [] : [copy.segment];
        const state = algorithm.unpack(rule.config, copy.record, segments);
        let [kept, restored, atMs] = [account, { ...account, state }, nowMs];
        for (const { afterMs, cost } of second) {
          atMs += afterMs;
          const [one, other] = [decide(rule, kept, atMs, cost), decide(rule, restored, atMs, cost)];
          expect(other.allowed).toBe(one.allowed);
          expect(figures(rule, restored, atMs)).toEqual(figures(rule, kept, atMs));
          if (one.allowed && other.allowed) [kept, restored] = [one.account, other.account];
        }
      }),
    );
  });

  test.skipIf(countsNothing)(
    "units held are as good as taken, and are free again when they are not held",
    () => {
      fc.assert(
        fc.property(fields, history, fc.nat(1_000), (given, calls, wanted) => {
          const rule = ruleWith(algorithm, given);
          const { account, nowMs } = play(rule, calls);
          const free = largest(rule, account, nowMs);
          const held = Math.min(wanted, free);
          expect(largest(rule, account, nowMs, held)).toBe(free - held);
          expect(largest(rule, account, nowMs)).toBe(free);
        }),
      );
    },
  );

  test.skipIf(leases || countsNothing)(
    "a debit takes units whether they are there or not, and a credit gives back at most what is missing",
    () => {
      fc.assert(
        fc.property(fields, history, fc.integer({ min: 1, max: 2_000_000 }), (given, calls, units) => {
          const rule = ruleWith(algorithm, given);
          const { account, nowMs } = play(rule, calls);
          const { config } = rule;
          // A debt beyond what is exact is cut there.
          if ((rule.capacity + units) * (rule.quota.windowMs ?? 0) > 2 ** 53) return;
          // Between two calls that are too close nothing passes, whatever there is.
          if (decide(rule, account, nowMs, 1).remaining === 0 && "minInterval" in given) return;
          const free = largest(rule, account, nowMs);
          const of = (state: unknown) => ({ ...account, state });
          const debited = algorithm.debit(config, freeze(account.state), nowMs, units);
          expect(largest(rule, of(debited), nowMs)).toBe(Math.max(0, free - units));
          const back = algorithm.credit(config, freeze(debited), nowMs, units);
          expect(largest(rule, of(back), nowMs)).toBe(free);
          const more = algorithm.credit(config, freeze(account.state), nowMs, units);
          const most = Math.min(rule.capacity, free + units);
          const offered = largest(rule, of(more), nowMs);
          expect(offered).toBeLessThanOrEqual(most);
          expect(offered).toBeGreaterThanOrEqual(specimen.roundsCredit === true ? most - 1 : most);
        }),
      );
    },
  );

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
        (given, first, second, ahead, wanted, laterMs) => {
          const rule = ruleWith(algorithm, given);
          const { account: before, nowMs: storedAtMs } = play(rule, first);
          const { account, nowMs } = play(rule, [...first, ...second]);
          const held = Math.min(wanted, largest(rule, account, nowMs));
          const record = packed(rule, before, storedAtMs);
          if (!algorithm.covers(rule.config, record, ahead, account.state, held, nowMs)) return;
          // Leases have rows of their own.
          const lost = { state: before.state, holds: account.holds };
          for (const after of [0, ...laterMs]) {
            const offered = largest(rule, lost, nowMs + after, ahead);
            expect(offered).toBeLessThanOrEqual(largest(rule, account, nowMs + after, held));
          }
        },
      ),
      { numRuns: depth(20, 1_500) },
    );
  });

  test("what has just been written covers itself", () => {
    fc.assert(
      fc.property(fields, history, fc.nat(5), (given, calls, ahead) => {
        const rule = ruleWith(algorithm, given);
        const { account, nowMs } = play(rule, calls);
        const record = packed(rule, account, nowMs);
        const covers = (held: number) =>
          algorithm.covers(rule.config, record, ahead, account.state, held, nowMs);
        expect([covers(ahead), covers(ahead + 1)]).toEqual([true, false]);
      }),
    );
  });

  test.skipIf(countsNothing)("a policy that changes keeps what was consumed, and takes the new limit", () => {
    fc.assert(
      fc.property(fields, fields, (given, other) => {
        const [before, after] = [ruleWith(algorithm, given), ruleWith(algorithm, other)];
        const taken = decide(before, UNTOUCHED, START_MS, before.capacity);
        if (!taken.allowed) throw new Error("the capacity fits an untouched quota");
        const { remaining } = figures(after, taken.account, START_MS);
        // Under a minimum interval nothing passes at the same instant.
        const most = Math.max(0, after.capacity - before.capacity);
        expect(remaining).toBe("minInterval" in other ? 0 : most);
      }),
    );
  });

  test("what is outstanding is never more than the capacity", () => {
    fc.assert(
      fc.property(fields, history, (given, calls) => {
        const rule = ruleWith(algorithm, given);
        const { account } = play(rule, calls);
        expect(outstandingOf(account)).toBeLessThanOrEqual(rule.capacity);
      }),
    );
  });
});

function packed(rule: Rule, { state }: Account, nowMs: number): unknown {
  return state === undefined ? undefined : rule.algorithm.pack(rule.config, state, nowMs, undefined).record;
}

/** States are values: an algorithm that writes into one throws here. */
function freeze<Value>(value: Value): Value {
  return typeof value === "object" && value !== null ? Object.freeze(value) : value;
}
