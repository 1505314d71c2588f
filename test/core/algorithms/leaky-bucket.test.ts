import fc from "fast-check";
import { expect, test } from "vitest";
import { UNTOUCHED, decideTogether } from "../../../core/accounts/account.ts";
import { leakyBucket, type LeakyBucketConfig } from "../../../core/algorithms/leaky-bucket.ts";
import type { TokenBucketState } from "../../../core/algorithms/token-bucket.ts";
import { publicDecision } from "../../../core/protocol/decision.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const configure = (fields: Record<string, number | boolean>): LeakyBucketConfig => {
  const config = leakyBucket.configure(fields);
  if ("problem" in config) throw new Error(JSON.stringify(config));
  return config;
};

/** Plays calls of cost 1 at these instants: each one's delay, or `-` and the wait of a denial. */
function trace(config: LeakyBucketConfig, ...instantsMs: number[]): string {
  let state: TokenBucketState | undefined;
  return instantsMs
    .map((nowMs) => {
      const decision = leakyBucket.decide(config, state, nowMs, 1, 0);
      if (!decision.allowed) return `-${decision.retryAfterMs}`;
      ({ state } = decision);
      return `${decision.delayMs ?? 0}`;
    })
    .join(" ");
}

/** Nothing but the slots of single units: each follows the one before by `window / limit`, or begins when it comes. */
class Slots {
  readonly #fields: Fields;
  /** The slot of the latest unit, in milliseconds times `limit`. */
  #last: bigint | undefined;

  constructor(fields: Fields) {
    this.#fields = fields;
  }

  decide(nowMs: number, cost: number): { allowed: boolean; delayMs: number; retryAfterMs: number | null } {
    const { limit, window, burst, delay, nodelay } = this.#fields;
    const last = this.#slotAfter(nowMs, cost);
    if (last === undefined) return { allowed: false, delayMs: 0, retryAfterMs: this.#waitMs(nowMs, cost) };
    this.#last = last;
    const early =
      nodelay || delay >= burst ? 0n : last - BigInt(nowMs) * BigInt(limit) - BigInt(delay * window);
    const delayMs = early <= 0n ? 0 : Number((early + BigInt(limit) - 1n) / BigInt(limit));
    return { allowed: true, delayMs, retryAfterMs: 0 };
  }

  /** The slot of a cost's last unit; `undefined`: it is further away than the burst allows. */
  #slotAfter(nowMs: number, cost: number): bigint | undefined {
    const { limit, window, burst } = this.#fields;
    const now = BigInt(nowMs) * BigInt(limit);
    let last = this.#last;
    for (let unit = 0; unit < cost; unit += 1) {
      const next = last === undefined ? now : last + BigInt(window);
      last = next > now ? next : now;
    }
    return last === undefined || last - now <= BigInt(burst * window) ? (last ?? now) : undefined;
  }

  /** Found by asking for later and later. */
  #waitMs(nowMs: number, cost: number): number | null {
    if (cost > this.#fields.burst + 1) return null;
    let waitMs = 1;
    while (this.#slotAfter(nowMs + waitMs, cost) === undefined) waitMs += 1;
    return waitMs;
  }
}

interface Fields {
  readonly limit: number;
  readonly window: number;
  readonly burst: number;
  readonly delay: number;
  readonly nodelay: boolean;
}

test("the example of the essay: three at once, three told to wait, and one denied", () => {
  const config = configure({ limit: 10, window: 1_000, burst: 5, delay: 2 });
  expect(trace(config, 0, 0, 0, 0, 0, 0, 0, 99, 100)).toBe("0 0 0 100 200 300 -100 -1 300");
});

test("nginx's own examples: rate=1r/s burst=5; rate=5r/s burst=12 delay=8; nodelay", () => {
  // "excessive requests are delayed until their number exceeds the maximum burst size"
  const plain = configure({ limit: 1, window: 1_000, burst: 5 });
  expect(trace(plain, 0, 0, 0, 0, 0, 0, 0)).toBe("0 1000 2000 3000 4000 5000 -1000");
  // Its blog's two-stage limit: 8 in excess without delay, the next 4 one every 200 ms, then denied.
  const staged = configure({ limit: 5, window: 1_000, burst: 12, delay: 8 });
  expect(trace(staged, ...Array.from({ length: 14 }, () => 0))).toBe(
    "0 0 0 0 0 0 0 0 0 200 400 600 800 -200",
  );
  const eager = configure({ limit: 1, window: 1_000, burst: 2, nodelay: true });
  expect(trace(eager, 0, 0, 0, 0, 1_000, 1_000)).toBe("0 0 0 -1000 0 -1000");
  expect(trace(configure({ limit: 1, window: 1_000 }), 0, 0, 999, 1_000)).toBe("0 -1000 -1 0");
});

const fields = fc.record({
  limit: fc.integer({ min: 1, max: 40 }),
  window: fc.oneof(fc.integer({ min: 1, max: 900 }), fc.constant(1_000)),
  burst: fc.nat(9),
  delay: fc.nat(10),
  nodelay: fc.boolean(),
});
const calls = fc.array(
  fc.record({
    afterMs: fc.oneof(fc.constant(0), fc.nat(20), fc.nat(1_000)),
    cost: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 6 })),
  }),
  { minLength: 1, maxLength: 60 },
);

test("random histories are decided as slots one by one: admitted, delay and wait", () => {
  fc.assert(
    fc.property(fields, calls, (given, history) => {
      const { nodelay, delay, ...rate } = given;
      const config = configure(nodelay ? { ...rate, nodelay } : { ...rate, delay });
      const slots = new Slots(given);
      let [state, nowMs] = [undefined as TokenBucketState | undefined, 1_000];
      for (const { afterMs, cost } of history) {
        nowMs += afterMs;
        const decision = leakyBucket.decide(config, state, nowMs, cost, 0);
        expect({
          allowed: decision.allowed,
          delayMs: decision.allowed ? (decision.delayMs ?? 0) : 0,
          retryAfterMs: decision.allowed ? 0 : decision.retryAfterMs,
        }).toEqual(slots.decide(nowMs, cost));
        if (decision.allowed) ({ state } = decision);
      }
    }),
    { numRuns: depth(500, 5_000) },
  );
}, 60_000);

test("nginx's integers, thousandths of a call at rates per second, decide alike; its delays are rounded down", () => {
  fc.assert(
    fc.property(fields, calls, (given, history) => {
      const { limit, burst, delay } = given;
      const config = configure({ limit, window: 1_000, burst, delay });
      let [state, nowMs] = [undefined as TokenBucketState | undefined, 1_000];
      let [excess, lastMs] = [0, -1];
      for (const { afterMs } of history) {
        nowMs += afterMs;
        const decision = leakyBucket.decide(config, state, nowMs, 1, 0);
        const next = lastMs < 0 ? 0 : Math.max(0, excess - limit * (nowMs - lastMs) + 1_000);
        expect(decision.allowed).toBe(next <= burst * 1_000);
        if (!decision.allowed) continue;
        ({ state } = decision);
        [excess, lastMs] = [next, nowMs];
        const nginxMs = delay >= burst ? 0 : Math.max(0, next - delay * 1_000) / limit;
        const told = decision.delayMs ?? 0;
        expect([Math.floor(nginxMs), Math.ceil(nginxMs)]).toContain(told);
        expect(told).toBeGreaterThanOrEqual(nginxMs);
      }
    }),
    { numRuns: depth(500, 5_000) },
  );
}, 60_000);

test("isolates spend units by themselves only where nobody is told to wait", () => {
  const admits = (given: Record<string, number | boolean>) =>
    leakyBucket.localDecisions(configure({ limit: 10, window: 1_000, burst: 50, ...given })).admits;
  expect([admits({}), admits({ delay: 49 })]).toEqual([false, false]);
  expect([admits({ delay: 50 }), admits({ nodelay: true }), admits({ burst: 0 })]).toEqual([
    true,
    true,
    true,
  ]);
  expect(leakyBucket.localDecisions(configure({ limit: 1, window: 1 })).denies).toBe(true);
});

test("a part of a bucket has the part of its rate, of its burst and of what is not delayed", () => {
  const config = configure({ limit: 10, window: 1_000, burst: 19, delay: 4 });
  expect(leakyBucket.scale(config, 0.5)).toEqual({ limit: 10, windowMs: 2_000, burst: 10, undelayed: 2 });
  expect(leakyBucket.scale(config, 0.1)).toMatchObject({ burst: 2, undelayed: 1 });
  expect(leakyBucket.scale(config, 0.01)).toBeUndefined();
});

const policy = (more: object) => {
  const parsed = parsePolicies({ test: { algorithm: "leaky-bucket", limit: 10, window: "1s", ...more } }).get(
    "test",
  );
  if (parsed === undefined) throw new Error("no policy");
  return parsed;
};

test("what a policy may not say is refused by name", () => {
  expect(() => policy({ burst: -1 })).toThrow("burst is -1: must be an integer from 0 to 1000000000");
  expect(() => policy({ delay: 1, nodelay: true })).toThrow(
    "delay is 1: must be left out with nodelay = true",
  );
  expect(() => policy({ nodelay: "yes" })).toThrow('nodelay is "yes": must be true or false');
  expect(() => policy({ burst: 1_000_000_000, window: "30d" })).toThrow(
    "burst is 1000000000: must be at most 3474998 ",
  );
  expect(() => policy({ burst: 3_474_998, window: "30d" })).not.toThrow();
  expect(() => policy({ pool: "redis" })).toThrow(
    'pool is "redis": must be left out with algorithm "leaky-bucket"',
  );
});

test("the longest delay of several rules is the policy's, and a shadow policy tells nobody to wait", () => {
  const rules = {
    slow: { algorithm: "leaky-bucket", limit: 2, window: "1s", burst: 9 },
    fast: { algorithm: "leaky-bucket", limit: 10, window: "1s", burst: 9 },
  };
  for (const shadow of [false, true]) {
    const several = parsePolicies({ test: { rules, shadow } }).get("test");
    if (several === undefined) throw new Error("no policy");
    let accounts = several.rules.map((rule) => ({ rule, account: UNTOUCHED }));
    const told = [0, 0, 0].map((nowMs) => {
      const joint = decideTogether(accounts, nowMs, 1);
      accounts = accounts.map(({ rule, account }, index) => ({
        rule,
        account: joint.accounts?.[index] ?? account,
      }));
      return publicDecision(several, "k", joint);
    });
    expect(told.map(({ delayMs }) => delayMs)).toEqual(
      shadow ? [undefined, undefined, undefined] : [undefined, 500, 1_000],
    );
    expect(told.map((each) => each.rules.map(({ delayMs }) => delayMs))).toEqual([
      [undefined, undefined],
      [500, 100],
      [1_000, 200],
    ]);
  }
});
