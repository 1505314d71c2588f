/** Middleware of the AI SDK, by models of the shapes of its versions. Release tests have the packages themselves. */
import { describe, expect, test } from "vitest";
import { BudgetExceededError, budgetMiddleware, type BudgetOptions } from "../../../package/llm.ts";
import { manualClock, memoryLimiter } from "../../../package/testing.ts";
import { eventually } from "../../support/eventually.ts";

const POLICIES = {
  tokens: {
    rules: {
      tokens: { algorithm: "sliding-log", limit: 1_000, window: "30d", unit: "tokens" },
      cost: { algorithm: "sliding-log", limit: 1_000_000, window: "30d", unit: "cost" },
    },
  },
};
const PRICES = { m: { input: 1_000_000, cachedInput: 500_000, cacheWrite: 2_000_000, output: 10_000_000 } };
const model = { modelId: "m" };
const FLAT = { inputTokens: 30, outputTokens: 7, totalTokens: 37, cachedInputTokens: 10 };
const NESTED = {
  inputTokens: { total: 30, noCache: 15, cacheRead: 10, cacheWrite: 5 },
  outputTokens: { total: 7, text: 7, reasoning: undefined },
};
const UNKNOWN = { inputTokens: { total: undefined }, outputTokens: { total: undefined } };

function start(options: Partial<BudgetOptions> = {}) {
  const limiter = memoryLimiter({ policies: POLICIES, clock: manualClock() });
  const middleware = budgetMiddleware({
    limiter,
    budgets: [{ policy: "tokens", key: "k", units: ["tokens", "cost"] }],
    prices: PRICES,
    maxOutputTokens: 500,
    inputTokens: () => 40,
    ...options,
  });
  const used = async () => {
    const { rules, holds } = await limiter.peek({ policy: "tokens", key: "k" });
    return {
      holds,
      ...Object.fromEntries(rules.map(({ name, limit, remaining }) => [name, limit - remaining])),
    };
  };
  return { middleware, used, limiter };
}

const params = { maxOutputTokens: 100, prompt: [] };

describe("the usage of a call is settled", () => {
  test.each([
    ["numbers", FLAT, { tokens: 37, cost: 20 + 5 + 70 }],
    ["parts", NESTED, { tokens: 37, cost: 15 + 5 + 10 + 70 }],
  ])("told in %s", async (_, usage, expected) => {
    for (const isStream of [false, true]) {
      const { middleware, used } = start();
      if (isStream) {
        const parts = [
          { type: "text-delta", id: "1", delta: "word " },
          { type: "finish", usage, finishReason: "stop" },
        ];
        const doStream = async () => ({ stream: streamOf(parts), request: { body: "b" } });
        const { stream, request } = await middleware.wrapStream({ doStream, params, model });
        expect([await all(stream), request]).toEqual([parts, { body: "b" }]);
      } else {
        const result = { content: [{ type: "text", text: "word" }], usage };
        const doGenerate = async () => result;
        expect(await middleware.wrapGenerate({ doGenerate, params, model })).toBe(result);
      }
      await eventually(async () => expect(await used()).toEqual({ holds: 0, ...expected }));
    }
  });

  test("untold it is the input's estimate, and the output that was seen", async () => {
    const { middleware, used } = start();
    const doGenerate = async () => ({ content: [{ type: "text", text: "x".repeat(20) }], usage: UNKNOWN });
    await middleware.wrapGenerate({ doGenerate, params, model });
    await eventually(async () => expect(await used()).toMatchObject({ holds: 0, tokens: 50 }));
  });

  test("of a stream that is cut it is what was seen", async () => {
    const { middleware, used } = start();
    const parts = [
      { type: "reasoning-delta", delta: "x".repeat(20) },
      { type: "finish", usage: FLAT },
    ];
    const doStream = async () => ({ stream: streamOf(parts) });
    const { stream } = await middleware.wrapStream({ doStream, params, model });
    const reader = stream.getReader();
    await reader.read();
    expect(await used()).toMatchObject({ holds: 1 });
    await reader.cancel();
    await eventually(async () => expect(await used()).toMatchObject({ holds: 0, tokens: 50 }));
  });
});

test("what the provider refused takes nothing; what broke takes the input", async () => {
  const { middleware, used } = start();
  const failing = (error: Error) =>
    middleware.wrapGenerate({ doGenerate: () => Promise.reject(error), params, model });
  await expect(failing(Object.assign(new Error("overloaded"), { statusCode: 529 }))).rejects.toThrow(
    "overloaded",
  );
  await eventually(async () => expect(await used()).toMatchObject({ holds: 0, tokens: 0 }));
  await expect(failing(new Error("reset"))).rejects.toThrow("reset");
  await eventually(async () => expect(await used()).toMatchObject({ holds: 0, tokens: 40 }));
});

test("a call without a bound of its output gets one", async () => {
  const { middleware } = start();
  expect(await middleware.transformParams({ params: { prompt: "a", maxOutputTokens: undefined } })).toEqual({
    prompt: "a",
    maxOutputTokens: 500,
  });
  expect(await middleware.transformParams({ params })).toEqual(params);
});

test("a denied call throws what says when it would pass, and is not made", async () => {
  const { middleware, limiter } = start();
  await limiter.limit({ policy: "tokens", key: "k", cost: { tokens: 990, cost: 0 } });
  const doGenerate = () => Promise.reject(new Error("made"));
  const denied: unknown = await middleware
    .wrapGenerate({ doGenerate, params, model })
    .catch((error: unknown) => error);
  expect(denied).toBeInstanceOf(BudgetExceededError);
  expect(denied).toMatchObject({ statusCode: 429, isRetryable: false, retryAfterMs: 30 * 86_400_000 });
  expect((denied as Error).message).toBe(
    "the budget tokens (tokens) does not admit the request: it would pass in 2592000000 ms",
  );
});

test("a model without a price is named, and is not called", async () => {
  const { middleware, used } = start();
  const doStream = () => Promise.reject(new Error("made"));
  await expect(middleware.wrapStream({ doStream, params, model: { modelId: "n" } })).rejects.toThrow(
    'model is "n", which has no price: must be one of "m"',
  );
  expect(await used()).toEqual({ holds: 0, tokens: 0, cost: 0 });
});

function streamOf(parts: readonly object[]): ReadableStream<object> {
  const left = [...parts];
  return new ReadableStream({
    pull(controller) {
      const part = left.shift();
      if (part === undefined) controller.close();
      else controller.enqueue(part);
    },
  });
}

async function all(stream: ReadableStream): Promise<unknown[]> {
  const found: unknown[] = [];
  for await (const part of stream) found.push(part);
  return found;
}
