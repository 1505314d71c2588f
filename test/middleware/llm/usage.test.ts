import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { costOf, maxCostOf, Meter, priceOf, requirePrice } from "../../../middleware/llm/usage.ts";

const tokens = fc.integer({ min: 0, max: 1_000_000_000 });
const price = fc.record(
  { input: tokens, cachedInput: tokens, cacheWrite: tokens, output: tokens },
  { requiredKeys: ["input", "output"] },
);
const usage = fc.record({ input: tokens, cachedInput: tokens, cacheWrite: tokens, output: tokens });

describe("the cost of a request", () => {
  test("is that of its tokens, rounded up to a unit and no further", () => {
    fc.assert(
      fc.property(usage, price, (used, each) => {
        const exact =
          BigInt(used.input) * BigInt(each.input) +
          BigInt(used.cachedInput) * BigInt(each.cachedInput ?? each.input) +
          BigInt(used.cacheWrite) * BigInt(each.cacheWrite ?? each.input) +
          BigInt(used.output) * BigInt(each.output);
        const cost = BigInt(costOf(used, each)) * 1_000_000n;
        expect(cost >= exact && cost - exact < 1_000_000n).toBe(true);
      }),
    );
  });

  test("is in whole units where floating point is not", () => {
    // 0.1 + 0.2: three tokens at 100,000 a million.
    expect(
      costOf({ input: 3, cachedInput: 0, cacheWrite: 0, output: 0 }, { input: 100_000, output: 0 }),
    ).toBe(1);
    expect(
      costOf({ input: 10, cachedInput: 0, cacheWrite: 0, output: 0 }, { input: 100_000, output: 0 }),
    ).toBe(1);
    expect(
      costOf(
        { input: 1_000_000, cachedInput: 0, cacheWrite: 0, output: 1 },
        { input: 2_500_000, output: 10_000_000 },
      ),
    ).toBe(2_500_010);
  });

  test("is never more than was held for its input and output, cached or not", () => {
    fc.assert(
      fc.property(usage, price, (used, each) => {
        const input = used.input + used.cachedInput + used.cacheWrite;
        expect(maxCostOf(input, used.output, each)).toBeGreaterThanOrEqual(costOf(used, each));
      }),
    );
  });
});

describe("prices", () => {
  const prices = { "gpt-large": { input: 1, output: 1 }, "gpt-small": { input: 2, output: 2 } };

  test("an unknown model is named, with those that have a price", () => {
    expect(priceOf("gpt-smal", prices, undefined)).toBe(
      'model is "gpt-smal", which has no price: must be one of "gpt-large", "gpt-small" (did you mean gpt-small?)',
    );
    expect(priceOf("__proto__", prices, undefined)).toContain('model is "__proto__"');
    expect(priceOf("other", prices, { input: 3, output: 3 })).toEqual({ input: 3, output: 3 });
    expect(priceOf("gpt-small", prices, { input: 3, output: 3 })).toEqual(prices["gpt-small"]);
  });

  test.each([
    [{ input: 1.5, output: 1 }, "prices.a.input is 1.5: must be an integer, from 0 to 1000000000"],
    [{ input: 1 }, "prices.a.output is missing: must be the price of a million tokens"],
    [{ input: 1, output: -1 }, "prices.a.output is -1"],
    [{ input: 1, output: 1, cached: 1 }, "cached is not an option"],
    [5, "prices.a is 5: must be { input, output }"],
  ])("%j is refused", (given, message) => {
    expect(() => requirePrice("prices.a", given as never)).toThrow(message);
  });
});

describe("what a request has used", () => {
  const estimate = { input: 100, output: 50 };

  test("without a report: the estimate of the input, and the output that was seen, within its bound", () => {
    const meter = new Meter(estimate, 2);
    meter.see(5);
    expect(meter.usage()).toEqual({ input: 100, cachedInput: 0, cacheWrite: 0, output: 3 });
    meter.see(1_000);
    expect(meter.usage().output).toBe(50);
  });

  test("a report of the end replaces what was counted; one of the beginning does not", () => {
    const meter = new Meter(estimate, 2);
    meter.report({ input: 10, output: 1 }, false);
    meter.see(20);
    expect(meter.usage()).toMatchObject({ input: 10, output: 10 });
    meter.report({ output: 7 }, true);
    expect(meter.usage()).toMatchObject({ input: 10, output: 7 });
  });

  test("a later report lowers nothing", () => {
    const meter = new Meter(estimate, 2);
    meter.report({ input: 10, cachedInput: 4, output: 9 }, true);
    meter.report({ input: 0, output: 8 }, true);
    expect(meter.usage()).toEqual({ input: 10, cachedInput: 4, cacheWrite: 0, output: 9 });
  });
});
