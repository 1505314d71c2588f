/** A burst of requests to a model, when a hundredth of the budget is left: what is spent is never over it. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createLimiter, type Limiter } from "../../package/client.ts";
import { budgetFetch } from "../../package/llm.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { type Prompt, promptText, type Provider, startProvider } from "../support/model-provider.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const BUDGET = 500_000;
const SPENT = 495_000;
const LEFT = BUDGET - SPENT;
const REQUESTS = 100;
const window = "30d";
const policies = {
  tokens: { algorithm: "sliding-log", limit: BUDGET, window, unit: "tokens", deadlineMs: 30_000 },
  cost: { algorithm: "sliding-log", limit: BUDGET, window, unit: "cost", deadlineMs: 30_000 },
};
/** A unit for a token of input, and ten for one of output. */
const prices = { gpt: { input: 1_000_000, cachedInput: 1_000_000, output: 10_000_000 } };

const state = makeState();
let serving: Serving;
let provider: Provider;
let limiter: Limiter;
beforeAll(async () => {
  serving = await serveBundle(state, policies);
  limiter = createLimiter({ url: serving.url, token: TOKENS.full, deadlineMs: 30_000 });
  provider = await startProvider();
});
afterAll(async () => {
  await provider.stop();
  await limiter.close();
  await serving.stop();
  removeState(state);
});

const APIS = {
  "/chat/completions": (content: string) => ({ messages: [{ role: "user", content }], max_tokens: 240 }),
  "/responses": (input: string) => ({ input, max_output_tokens: 240 }),
  "/messages": (content: string) => ({ messages: [{ role: "user", content }], max_tokens: 240 }),
};
type Api = keyof typeof APIS;

/** A key of which a hundredth of the budget is left, and how to ask under it. */
async function start(policy: "tokens" | "cost", key: string) {
  await limiter.limit({ policy, key, cost: SPENT });
  const budgets = [{ policy, key, units: [policy] }];
  const asking = budgetFetch({ limiter, budgets, prices, maxOutputTokens: 60 });
  const began = provider.spent();
  const ask = (api: Api, prompt: Prompt, fields: object = {}) => {
    const body = JSON.stringify({ model: "gpt", stream: true, ...APIS[api](promptText(prompt)), ...fields });
    return asking(provider.url + api, { method: "POST", body });
  };
  const spent = () => provider.spent() - began;
  const report = async () => {
    const { remaining = 0, holds } = await limiter.peek({ policy, key });
    return { used: BUDGET - remaining - SPENT, holds };
  };
  const settled = () => eventually(async () => expect(await report()).toMatchObject({ holds: 0 }));
  return { ask, spent, report, settled };
}

describe("a hundred requests at once, with a hundredth of the budget left", () => {
  test.each((Object.keys(APIS) as Api[]).slice(0, depth(1, 3)))(
    "%s: no token is spent over the budget, and each that was is counted",
    async (api) => {
      const { ask, spent, report, settled } = await start("tokens", api);
      const answers = await Promise.all(
        Array.from({ length: REQUESTS }, async () => {
          const response = await ask(api, { words: 200, pauseMs: 1 });
          return [response.status, (await response.text()).includes("word")] as const;
        }),
      );
      const admitted = answers.filter(([status]) => status === 200);
      // Each holds its longest answer, of which a few fit at once. All hundred would use more than is left.
      expect(admitted.length).toBeGreaterThan(5);
      expect(answers.length - admitted.length).toBeGreaterThan(5);
      expect(answers.every(([status, hasText]) => (status === 200 ? hasText : status === 429))).toBe(true);
      await settled();
      expect(spent()).toBeLessThanOrEqual(LEFT);
      expect(await report()).toEqual({ holds: 0, used: spent() });
    },
  );

  test("in waves, some of which are cut, refused, broken or silent", async () => {
    const { ask, spent, report, settled } = await start("tokens", "waves");
    const statuses = new Set<number>();
    const one = async (index: number) => {
      const prompt: Prompt = {
        words: 200,
        pauseMs: 1,
        ...(index % 5 === 1 && { status: 500 }),
        ...(index % 5 === 2 && { breaksAfter: 9 }),
        ...(index % 5 === 3 && { isSilent: true }),
      };
      const response = await ask("/chat/completions", prompt);
      statuses.add(response.status);
      const reader = response.body?.getReader();
      for (let chunks = 0; index % 5 !== 4 || chunks < 3; chunks += 1)
        if ((await reader?.read())?.done !== false) return;
      await reader?.cancel();
    };
    for (let wave = 0; wave < 4; wave += 1) {
      await Promise.allSettled(Array.from({ length: REQUESTS }, (_, index) => one(index)));
      expect(spent()).toBeLessThanOrEqual(LEFT);
      await sleep(50);
    }
    expect([statuses.has(200), statuses.has(429)]).toEqual([true, true]);
    await settled();
    const { used } = await report();
    // Silent and cut answers are counted by their length, which is more here than their tokens.
    expect(used).toBeGreaterThanOrEqual(spent());
    expect(used).toBeLessThanOrEqual(LEFT);
  });

  test("in money: no unit is spent over the budget", async () => {
    const { ask, spent, report, settled } = await start("cost", "money");
    const responses = await Promise.all(
      Array.from({ length: REQUESTS }, () =>
        ask("/chat/completions", { words: 40 }, { stream: false, max_tokens: 60 }),
      ),
    );
    const admitted = responses.filter(({ status }) => status === 200).length;
    await Promise.all(responses.map((response) => response.text()));
    await settled();
    // Each token of the 40 costs ten.
    const paid = spent() + 9 * 40 * admitted;
    expect(admitted).toBeGreaterThan(0);
    expect(paid).toBeLessThanOrEqual(LEFT);
    expect(await report()).toEqual({ holds: 0, used: paid });
  });
});

test("a budget that a request may not pass is denied with the exact wait, before it is sent", async () => {
  const { ask, spent, report } = await start("tokens", "wait");
  const response = await ask("/messages", {}, { max_tokens: LEFT });
  expect([response.status, response.headers.get("x-should-retry"), spent()]).toEqual([429, "false", 0]);
  // What was used at once is back at once, after its window.
  const waitMs = Number(response.headers.get("retry-after-ms"));
  expect(waitMs).toBeLessThanOrEqual(30 * 86_400_000);
  expect(waitMs).toBeGreaterThan(29 * 86_400_000);
  expect(await report()).toEqual({ holds: 0, used: 0 });
});
