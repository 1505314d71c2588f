import fc from "fast-check";
import { expect, test } from "vitest";
import { smoothBursty, type SmoothBurstyConfig } from "../../../core/algorithms/ported/smooth-bursty.ts";
import type { TokenBucketState } from "../../../core/algorithms/token-bucket.ts";
import { depth } from "../../support/depth.ts";
import { ruleOf } from "../../support/rules.ts";

const configure = (fields: Record<string, number>): SmoothBurstyConfig => {
  const config = smoothBursty.configure(fields);
  if ("problem" in config) throw new Error(JSON.stringify(config));
  return config;
};

/** A rate per second that Guava's own tests use, with a bound that they do not reach. */
const perSecond = (limit: number) => configure({ limit, window: 1_000, maxDelay: 60_000 });

/**
 * Plays calls as Guava's tests do, and writes what they write: a number is a call of so many permits, that sleeps as
 * it is told (`R`, in seconds), and a text is a pause of so many milliseconds (`U`).
 */
function events(config: SmoothBurstyConfig, isNew: boolean, ...steps: (number | string)[]): string {
  // A new RateLimiter of Guava has saved nothing.
  const saved = config.savedParts / config.windowMs;
  let [state, nowMs] = [isNew ? smoothBursty.debit(config, undefined, 0, saved) : undefined, 0];
  return steps
    .map((step) => {
      const seconds = (durationMs: number) => (durationMs / 1_000).toFixed(2);
      if (typeof step === "string") {
        nowMs += Number(step);
        return `U${seconds(Number(step))}`;
      }
      const decision = smoothBursty.decide(config, state, nowMs, step, 0);
      if (!decision.allowed) throw new Error("all pass here");
      ({ state } = decision);
      nowMs += decision.delayMs ?? 0;
      return `R${seconds(decision.delayMs ?? 0)}`;
    })
    .join(" ");
}

test("Guava's numbers of weights: each call pays for the one before", () => {
  expect(events(perSecond(1), true, 1, 1, 2, 4, 8, 1)).toBe("R0.00 R1.00 R1.00 R2.00 R4.00 R8.00");
});

test("Guava's numbers at 5 per second: simple, with a wait, in the past, and a burst of one second", () => {
  expect(events(perSecond(5), true, 1, 1, 1)).toBe("R0.00 R0.20 R0.20");
  expect(events(perSecond(5), true, 1, "200", 1, 1)).toBe("R0.00 U0.20 R0.00 R0.20");
  expect(events(perSecond(5), true, 1, "400", 1, 1, 1)).toBe("R0.00 U0.40 R0.00 R0.00 R0.20");
  expect(events(perSecond(5), true, "1000", "1000", 1, 1, 3, 1, 1)).toBe(
    "U1.00 U1.00 R0.00 R0.00 R0.00 R0.00 R0.20",
  );
});

test("a key that was never seen has saved a second's permits, and then is as a new RateLimiter", () => {
  expect(events(perSecond(5), false, 1, 1, 1, 1, 1, 1, 1)).toBe("R0.00 R0.00 R0.00 R0.00 R0.00 R0.00 R0.20");
});

test("a large call goes on at once, and the next pays: 9 at once, then 800 ms", () => {
  expect(events(perSecond(5), false, 9, 1, 1)).toBe("R0.00 R0.80 R0.20");
  expect(events(perSecond(1), true, 1, 1, 3, 1)).toBe("R0.00 R1.00 R1.00 R3.00");
  const config = configure({ limit: 5, window: 1_000, maxDelay: 2_000 });
  expect(smoothBursty.capacity(config)).toBe(15);
});

test("never a burst of more than a second: what a second brings takes another second after it", () => {
  for (const rate of [1, 10, 1_000]) {
    const config = perSecond(rate);
    let [state, nowMs] = [undefined as TokenBucketState | undefined, 0];
    const workload = () => {
      const beganMs = nowMs;
      for (let left = rate; left > 0; left -= 1) {
        const decision = smoothBursty.decide(config, state, nowMs, 1, 0);
        if (!decision.allowed) throw new Error("all pass here");
        ({ state } = decision);
        nowMs += decision.delayMs ?? 0;
      }
      return nowMs - beganMs;
    };
    nowMs += rate * 1_000;
    expect(workload()).toBeLessThanOrEqual(1_000);
    expect(workload() + workload()).toBeGreaterThanOrEqual(1_000);
  }
});

test("3 at once cost the next call what 1 three times cost", () => {
  for (const before of [0, 2, 7]) {
    const all = events(perSecond(5), false, before + 1, 3, 1)
      .split(" ")
      .slice(1);
    const ones = events(perSecond(5), false, before + 1, 1, 1, 1, 1)
      .split(" ")
      .slice(1);
    const sum = (waits: string[]) => waits.reduce((total, wait) => total + Number(wait.slice(1)), 0);
    expect(sum(ones)).toBeCloseTo(sum(all), 9);
  }
});

interface Fields {
  readonly limit: number;
  readonly window: number;
  readonly maxBurst: number;
  readonly maxDelay: number;
}

/** Guava's two numbers, as exact fractions: permits saved (times `window`), and the free instant (times `limit`). */
class RateLimiter {
  readonly #limit: bigint;
  readonly #window: bigint;
  readonly #mostSaved: bigint;
  readonly #mostOwed: bigint;
  #saved: bigint;
  #free = 0n;

  constructor({ limit, window, maxBurst, maxDelay }: Fields) {
    [this.#limit, this.#window] = [BigInt(limit), BigInt(window)];
    this.#mostSaved = BigInt(limit * maxBurst);
    const capacity = Math.floor((limit * (maxBurst + maxDelay)) / window);
    this.#mostOwed = BigInt(capacity * window) - this.#mostSaved;
    this.#saved = this.#mostSaved;
  }

  decide(nowMs: number, cost: number) {
    const next = this.#after(nowMs, cost);
    if (next === undefined) return { allowed: false, delayMs: 0, retryAfterMs: this.#waitMs(nowMs, cost) };
    const waits = this.#free - BigInt(nowMs) * this.#limit;
    [this.#saved, this.#free] = next;
    const delayMs = waits <= 0n ? 0 : Number((waits + this.#limit - 1n) / this.#limit);
    return { allowed: true, delayMs, retryAfterMs: 0 };
  }

  #after(nowMs: number, cost: number): [saved: bigint, free: bigint] | undefined {
    const now = BigInt(nowMs) * this.#limit;
    let [saved, free] = [this.#saved, this.#free];
    if (now > free) {
      saved += now - free;
      if (saved > this.#mostSaved) saved = this.#mostSaved;
      free = now;
    }
    const wanted = BigInt(cost) * this.#window;
    const spends = wanted < saved ? wanted : saved;
    free += wanted - spends;
    saved -= spends;
    return free - now - saved <= this.#mostOwed ? [saved, free] : undefined;
  }

  #waitMs(nowMs: number, cost: number): number | null {
    if (BigInt(cost) * this.#window > this.#mostSaved + this.#mostOwed) return null;
    let waitMs = 1;
    while (this.#after(nowMs + waitMs, cost) === undefined) waitMs += 1;
    return waitMs;
  }
}

test("random histories are decided as by Guava's two numbers: admitted, delay and wait", () => {
  const fields = fc
    .record({
      limit: fc.integer({ min: 1, max: 40 }),
      window: fc.integer({ min: 1, max: 900 }),
      maxBurst: fc.integer({ min: 1, max: 900 }),
      maxDelay: fc.integer({ min: 1, max: 900 }),
    })
    .filter(({ limit, window, maxBurst, maxDelay }) => limit * (maxBurst + maxDelay) >= window);
  const calls = fc.array(
    fc.record({
      afterMs: fc.oneof(fc.constant(0), fc.nat(20), fc.nat(1_000)),
      cost: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 20 })),
    }),
    { minLength: 1, maxLength: 60 },
  );
  fc.assert(
    fc.property(fields, calls, (policy, history) => {
      const [config, limiter] = [configure({ ...policy }), new RateLimiter(policy)];
      let [state, nowMs] = [undefined as TokenBucketState | undefined, 1_000];
      for (const { afterMs, cost } of history) {
        nowMs += afterMs;
        const decision = smoothBursty.decide(config, state, nowMs, cost, 0);
        const { allowed } = decision;
        const delayMs = allowed ? (decision.delayMs ?? 0) : 0;
        const retryAfterMs = allowed ? 0 : decision.retryAfterMs;
        expect({ allowed, delayMs, retryAfterMs }).toEqual(limiter.decide(nowMs, cost));
        if (decision.allowed) ({ state } = decision);
      }
    }),
    { numRuns: depth(500, 5_000) },
  );
}, 120_000);

test("a part of it has the part of its rate, its savings and its capacity", () => {
  const config = configure({ limit: 10, window: 1_000, maxDelay: 1_000 });
  const half = smoothBursty.scale(config, 0.5);
  expect(half).toEqual({ limit: 10, windowMs: 2_000, burst: 10, savedParts: 10_000 });
  expect(smoothBursty.scale(config, 0.01)).toBeUndefined();
});

test("what a policy may not say is refused by name, and the defaults are a second and the window", () => {
  const policy = (more: object) => ruleOf({ algorithm: "smooth-bursty", limit: 10, window: "1m", ...more });
  expect(policy({})).toMatchObject({ capacity: 10, config: { savedParts: 10_000, burst: 10 } });
  expect(() => policy({ maxBurst: "1ms", maxDelay: "2s" })).toThrow(
    'maxDelay is "2s": must be at least 5999ms, so that one unit passes',
  );
  expect(policy({ maxBurst: "1ms", maxDelay: 5_999 }).capacity).toBe(1);
  expect(() => policy({ limit: 1_000_000_000, maxBurst: "365d" })).toThrow(
    'maxBurst is "365d": must be less than 9007199ms with a limit of 1000000000',
  );
  expect(() => policy({ limit: 1_000_000_000, maxDelay: "365d" })).toThrow("must be at most 9006199ms");
  expect(() => policy({ limit: 1_000_000_000, window: "1d" })).toThrow('window is "1d": must be at most');
  expect(() => policy({ maxDelay: 0 })).toThrow("maxDelay is 0: must be a duration of 1 ms or more");
  expect(() => policy({ pool: "redis" })).toThrow('must be left out with algorithm "smooth-bursty"');
  expect(smoothBursty.localDecisions(configure({ limit: 1, window: 1 }))).toEqual({
    admits: false,
    denies: true,
  });
});
