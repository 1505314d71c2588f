import fc from "fast-check";
import { expect, test } from "vitest";
import { UNTOUCHED, admitsTogether, advance, decideTogether, place } from "../../../core/accounts/account.ts";
import {
  permitsPerCycle,
  type PermitsPerCycleConfig,
  type PermitsPerCycleState,
} from "../../../core/algorithms/ported/permits-per-cycle.ts";
import { decide as decideOn } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { ruleOf } from "../../support/rules.ts";

const configure = (fields: Record<string, number>): PermitsPerCycleConfig => {
  const config = permitsPerCycle.configure(fields);
  if ("problem" in config) throw new Error(JSON.stringify(config));
  return config;
};

/** Plays calls and writes each one's delay, or `-` and the wait of a denial. */
function trace(config: PermitsPerCycleConfig, ...calls: [atMs: number, cost: number][]): string {
  let state: PermitsPerCycleState | undefined;
  return calls
    .map(([nowMs, cost]) => {
      const decision = permitsPerCycle.decide(config, state, nowMs, cost, 0);
      if (!decision.allowed) return `-${decision.retryAfterMs}`;
      ({ state } = decision);
      return `${decision.delayMs ?? 0}`;
    })
    .join(" ");
}

/** resilience4j's limiter, made at 0: permits that are left, which reservations make negative. */
class Permissions {
  readonly #fields: Fields;
  #cycle = 0;
  #left: number;

  constructor(fields: Fields) {
    this.#fields = fields;
    this.#left = fields.limit;
  }

  /** The wait in milliseconds; `undefined`: the permits do not come within the timeout. */
  reserve(nowMs: number, permits: number): number | undefined {
    const { limit, window, timeout } = this.#fields;
    const cycle = Math.floor(nowMs / window);
    this.#left = Math.min(limit, this.#left + (cycle - this.#cycle) * limit);
    this.#cycle = cycle;
    let waitMs = 0;
    if (this.#left < permits) {
      const missingAtNext = permits - (this.#left + limit);
      waitMs = (cycle + 1) * window - nowMs + Math.max(0, Math.ceil(missingAtNext / limit)) * window;
    }
    if (waitMs > timeout) return undefined;
    this.#left -= permits;
    return waitMs;
  }
}

/** Every permit by itself: a map from cycles to the permits that are taken of them. */
class Tickets {
  readonly #fields: Fields;
  readonly #taken = new Map<number, number>();

  constructor(fields: Fields) {
    this.#fields = fields;
  }

  decide(nowMs: number, cost: number) {
    const cycles = this.#cyclesFor(nowMs, cost);
    if (cycles === undefined) return { allowed: false, delayMs: 0, retryAfterMs: this.#waitMs(nowMs, cost) };
    for (const cycle of cycles) this.#taken.set(cycle, (this.#taken.get(cycle) ?? 0) + 1);
    const startsMs = (cycles.at(-1) ?? 0) * this.#fields.window;
    return { allowed: true, delayMs: Math.max(0, startsMs - nowMs), retryAfterMs: 0 };
  }

  /** The cycles of which a call has its permits; `undefined`: the last of them begins too late. */
  #cyclesFor(nowMs: number, cost: number): number[] | undefined {
    const { limit, window, timeout } = this.#fields;
    const cycles: number[] = [];
    for (let cycle = Math.floor(nowMs / window); cycles.length < cost; cycle += 1)
      for (let left = limit - (this.#taken.get(cycle) ?? 0); left > 0 && cycles.length < cost; left -= 1)
        cycles.push(cycle);
    return (cycles.at(-1) ?? 0) * window - nowMs <= timeout ? cycles : undefined;
  }

  /** Found by asking for later and later. */
  #waitMs(nowMs: number, cost: number): number | null {
    const { limit, window, timeout } = this.#fields;
    if (cost > limit * (1 + Math.ceil(timeout / window))) return null;
    let waitMs = 1;
    while (this.#cyclesFor(nowMs + waitMs, cost) === undefined) waitMs += 1;
    return waitMs;
  }
}

interface Fields {
  readonly limit: number;
  readonly window: number;
  /** 0: none. */
  readonly timeout: number;
}

const fields = fc.record({
  limit: fc.integer({ min: 1, max: 9 }),
  window: fc.integer({ min: 1, max: 120 }),
  // Also what is no number of windows.
  timeout: fc.oneof(fc.constant(0), fc.nat(300)),
});
const calls = fc.array(
  fc.record({
    afterMs: fc.oneof(fc.constant(0), fc.nat(10), fc.nat(400)),
    cost: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 30 })),
  }),
  { minLength: 1, maxLength: 60 },
);
const given = ({ timeout, ...rate }: Fields) => configure(timeout === 0 ? rate : { ...rate, timeout });

test("random histories are decided as resilience4j decides them, and as permits one by one", () => {
  fc.assert(
    fc.property(fields, calls, (policy, history) => {
      const config = given(policy);
      const [permissions, tickets] = [new Permissions(policy), new Tickets(policy)];
      let [state, nowMs] = [undefined as PermitsPerCycleState | undefined, 1_000];
      for (const { afterMs, cost } of history) {
        nowMs += afterMs;
        const decision = permitsPerCycle.decide(config, state, nowMs, cost, 0);
        const { allowed } = decision;
        const delayMs = allowed ? (decision.delayMs ?? 0) : 0;
        const retryAfterMs = allowed ? 0 : decision.retryAfterMs;
        expect({ allowed, delayMs, retryAfterMs }).toEqual(tickets.decide(nowMs, cost));
        expect(allowed ? delayMs : undefined).toBe(permissions.reserve(nowMs, cost));
        if (decision.allowed) ({ state } = decision);
      }
    }),
    { numRuns: depth(500, 5_000) },
  );
}, 120_000);

test("the example of the essay: two permits of this cycle and three of the next wait 700 ms", () => {
  const config = configure({ limit: 10, window: 1_000, timeout: 1_000 });
  expect(trace(config, [1_300, 8], [1_300, 5], [1_300, 8], [1_999, 8], [2_000, 8])).toBe(
    "0 700 -700 -1 1000",
  );
});

test("without a timeout nothing is reserved, and what is not used of a cycle is lost", () => {
  const config = configure({ limit: 3, window: 100 });
  expect(trace(config, [0, 3], [99, 1], [100, 2], [200, 3], [200, 1], [1_000, 3], [1_001, 1])).toBe(
    "0 -1 0 0 -100 0 -99",
  );
  expect(permitsPerCycle.localDecisions(config)).toEqual({ admits: true, denies: true });
  expect(permitsPerCycle.decide(config, undefined, 50, 4, 0)).toMatchObject({ retryAfterMs: null });
});

test("a timeout shorter than a cycle offers the next one when it is near: 500 ms of 1,000", () => {
  const config = configure({ limit: 2, window: 1_000, timeout: 500 });
  expect(trace(config, [0, 2], [0, 1], [499, 1], [500, 1], [500, 1], [500, 1])).toBe(
    "0 -500 -1 500 500 -1000",
  );
  const remaining = (nowMs: number) => permitsPerCycle.decide(config, undefined, nowMs, 0, 0).remaining;
  expect([remaining(0), remaining(499), remaining(500), remaining(999), remaining(1_000)]).toEqual([
    2, 2, 4, 4, 2,
  ]);
  expect(permitsPerCycle.localDecisions(config).admits).toBe(false);
});

test("with any timeout a wait is exact, remaining is the largest cost that passes, and no delay is over it", () => {
  fc.assert(
    fc.property(fields, calls, fc.nat(6), fc.integer({ min: 1, max: 40 }), (policy, history, held, cost) => {
      const config = given(policy);
      let [state, nowMs] = [undefined as PermitsPerCycleState | undefined, 1_000];
      for (const { afterMs, cost: taken } of history) {
        nowMs += afterMs;
        const decision = permitsPerCycle.decide(config, state, nowMs, taken, 0);
        if (decision.allowed) ({ state } = decision);
      }
      const passes = (atMs: number, units: number) =>
        permitsPerCycle.decide(config, state, atMs, units, held).allowed;
      const decision = permitsPerCycle.decide(config, state, nowMs, cost, held);
      const { remaining } = permitsPerCycle.decide(config, state, nowMs, 0, held);
      expect([remaining === 0 || passes(nowMs, remaining), passes(nowMs, remaining + 1)]).toEqual([
        true,
        false,
      ]);
      if (decision.allowed) expect(decision.delayMs ?? 0).toBeLessThanOrEqual(policy.timeout);
      else if (decision.retryAfterMs !== null)
        expect([-1, 0].map((by) => passes(nowMs + (decision.retryAfterMs ?? 0) + by, cost))).toEqual([
          false,
          true,
        ]);
    }),
    { numRuns: depth(400, 2_000) },
  );
});

test("with any timeout a wait is exact too while holds expire on the way", () => {
  const holdings = fc.array(
    fc.record({ units: fc.integer({ min: 1, max: 6 }), expiresAtMs: fc.integer({ min: 1_001, max: 1_600 }) }),
    { maxLength: 4 },
  );
  fc.assert(
    fc.property(
      fields,
      fc.nat(200),
      holdings,
      fc.integer({ min: 1, max: 20 }),
      (policy, sinceMs, holds, cost) => {
        const { timeout, ...rate } = policy;
        const rule = ruleOf({ algorithm: "permits-per-cycle", ...rate, ...(timeout > 0 && { timeout }) });
        const nowMs = 800 + sinceMs;
        let account = UNTOUCHED;
        for (const [index, hold] of holds.entries())
          if (decideOn(rule, account, nowMs, hold.units).allowed)
            account = place(account, { id: `${index}`, ...hold });
        const decision = decideOn(rule, account, nowMs, cost);
        if (decision.allowed || decision.retryAfterMs === null) return;
        const atMs = nowMs + decision.retryAfterMs;
        const passes = (when: number) => decideOn(rule, advance(rule, account, when), when, cost).allowed;
        expect([passes(atMs - 1), passes(atMs)]).toEqual([false, true]);
      },
    ),
    { numRuns: depth(600, 3_000) },
  );
});

test("a policy that changes keeps what was spent, and a smaller one begins empty", () => {
  const ten = configure({ limit: 10, window: 1_000, timeout: 2_000 });
  const state = permitsPerCycle.debit(ten, undefined, 5_500, 25);
  const left = (policy: Record<string, number>, nowMs: number) =>
    permitsPerCycle.decide(configure(policy), state, nowMs, 0, 0).remaining;
  expect(left({ limit: 40, window: 1_000 }, 5_500)).toBe(15);
  expect([left({ limit: 4, window: 1_000 }, 5_500), left({ limit: 4, window: 1_000 }, 6_000)]).toEqual([
    0, 4,
  ]);
  // Debt of the same policy is owed in full.
  expect([5_500, 6_000, 7_000, 8_000].map((nowMs) => left({ limit: 10, window: 1_000 }, nowMs))).toEqual([
    0, 0, 5, 10,
  ]);
});

test("a charge gives back what no cycle has brought back since", () => {
  const config = configure({ limit: 10, window: 1_000, timeout: 1_000 });
  const taken = permitsPerCycle.debit(config, undefined, 0, 15);
  const left = (state: typeof taken, nowMs: number) =>
    permitsPerCycle.decide(config, permitsPerCycle.credit(config, state, nowMs, 15, 0), nowMs, 0, 0)
      .remaining;
  expect([left(taken, 999), left(taken, 1_000), left(taken, 2_000)]).toEqual([20, 20, 20]);
  // Somebody else has taken 13 more: of the charge 15, 5 and then no permits are still to come.
  const others = (nowMs: number) => permitsPerCycle.debit(config, taken, nowMs, 13);
  expect([left(others(0), 0), left(others(1_000), 1_000), left(others(1_000), 2_000)]).toEqual([7, 7, 12]);
});

test("what a policy may not say is refused by name", () => {
  const policy = (more: object) =>
    ruleOf({ algorithm: "permits-per-cycle", limit: 10, window: "1s", ...more });
  expect(() => policy({ timeout: "31d" })).toThrow('timeout is "31d": must be at most 30d');
  expect(() => policy({ limit: 1_000_000_000, window: 1, timeout: "30d" })).toThrow("timeout is");
  expect(() => policy({ limit: 1_000_000_000, window: 1, timeout: "30d" })).toThrow(
    "must be at most 9007198ms with 1000000000 permits each 1ms",
  );
  expect(() => policy({ timeout: 0 })).toThrow("timeout is 0: must be a duration of 1 ms or more");
  expect(() => policy({ pool: "redis" })).toThrow('must be left out with algorithm "permits-per-cycle"');
});

test("a cost of several rules waits until all admit it, though permits reserved late in a cycle cannot be early in the next", () => {
  const policy = parsePolicies({
    test: {
      rules: {
        a: { algorithm: "permits-per-cycle", limit: 1, window: 10_000, timeout: 5_000, unit: "jobs" },
        b: { algorithm: "sliding-log", limit: 2, window: 7_000, unit: "tokens" },
      },
    },
  }).get("test");
  let each = (policy?.rules ?? []).map((rule) => ({ rule, account: UNTOUCHED }));
  const at = (nowMs: number, jobs: number, tokens: number) => {
    const answer = decideTogether(each, nowMs, { jobs, tokens });
    each = each.map(({ rule }, index) => ({ rule, account: answer.accounts?.[index] ?? UNTOUCHED }));
    return answer;
  };
  at(6_000, 0, 2);
  const held = each;
  const waitOf = (nowMs: number) => {
    each = held;
    const { rules } = at(nowMs, 2, 1);
    return Math.max(...rules.map(({ retryAfterMs }) => retryAfterMs ?? Infinity));
  };
  // The units of rule b are back at 13 s, but the second job can be reserved from 15 s on.
  expect(waitOf(6_106)).toBe(8_894);
  expect(waitOf(14_999)).toBe(1);
  expect(waitOf(15_000)).toBe(0);
});

const permits = fc.record({
  algorithm: fc.constant("permits-per-cycle"),
  limit: fc.integer({ min: 1, max: 3 }),
  window: fc.integer({ min: 5, max: 20 }),
  timeout: fc.integer({ min: 1, max: 25 }),
});
const units = fc.record({ jobs: fc.nat(3), tokens: fc.nat(3) });
const callsOfTwo = fc.array(fc.record({ afterMs: fc.nat(12), units }), { minLength: 1, maxLength: 8 });

test("beside any other rule the wait of a denial is exact: then all rules admit, and at no instant before", () => {
  const others = fc.oneof(
    permits,
    fc.record({
      algorithm: fc.constant("sliding-log"),
      limit: fc.constant(3),
      window: fc.integer({ min: 5, max: 30 }),
    }),
  );
  const law = fc.property(permits, others, callsOfTwo, units, (first, second, taken, cost) => {
    const rules = { a: { ...first, unit: "jobs" }, b: { ...second, unit: "tokens" } };
    let each = (parsePolicies({ test: { rules } }).get("test")?.rules ?? []).map((rule) => ({
      rule,
      account: UNTOUCHED,
    }));
    let nowMs = 1_000;
    for (const { afterMs, units: asked } of taken) {
      nowMs += afterMs;
      const { accounts } = decideTogether(each, nowMs, asked);
      each = each.map(({ rule, account }, index) => ({ rule, account: accounts?.[index] ?? account }));
    }
    const waits = decideTogether(each, nowMs, cost).rules.map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
    const waitMs = Math.max(...waits);
    if (waitMs === Infinity) return;
    expect(admitsTogether(each, nowMs + waitMs, cost)).toBe(true);
    for (let ms = 0; ms < waitMs; ms += 1) expect(admitsTogether(each, nowMs + ms, cost)).toBe(false);
  });
  fc.assert(law, { numRuns: depth(500, 50_000) });
});
