import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Fetch } from "../../../package/fetch.ts";
import { budgetFetch, type BudgetFetchOptions } from "../../../package/llm.ts";
import { manualClock, memoryLimiter } from "../../../package/testing.ts";
import { eventually } from "../../support/eventually.ts";
import {
  inputTokensOf,
  type Prompt,
  promptText,
  type Provider,
  startProvider,
} from "../../support/model-provider.ts";

const LIMIT = 100_000;
const window = "30d";
const POLICIES = {
  llm: {
    rules: {
      requests: { algorithm: "sliding-log", limit: 100, window },
      tokens: { algorithm: "sliding-log", limit: LIMIT, window, unit: "tokens" },
      cost: { algorithm: "sliding-log", limit: LIMIT, window, unit: "cost" },
    },
  },
  output: { algorithm: "sliding-log", limit: 500, window, unit: "output-tokens" },
  tokens: { algorithm: "sliding-log", limit: LIMIT, window, unit: "tokens" },
  bought: { algorithm: "credits", limit: LIMIT, unit: "tokens" },
};
const PRICES = { gpt: { input: 1_000_000, cachedInput: 0, output: 10_000_000 } };

let provider: Provider;
beforeAll(async () => {
  provider = await startProvider();
});
afterAll(() => provider.stop());

function start(options: Partial<BudgetFetchOptions> = {}) {
  const clock = manualClock();
  const limiter = memoryLimiter({ policies: POLICIES, clock });
  const asking = budgetFetch({
    limiter,
    budgets: [{ policy: "llm", key: "k", units: ["tokens", "cost"] }],
    prices: PRICES,
    maxOutputTokens: 1_000,
    time: clock,
    ...options,
  });
  /** What is used of each rule and held, once nothing is on its way. */
  const used = async (policy = "llm", key = "k") => {
    const { rules, holds } = await limiter.peek({ policy, key });
    return {
      holds,
      ...Object.fromEntries(rules.map(({ name, limit, remaining }) => [name, limit - remaining])),
    };
  };
  return { asking, used, clock, limiter };
}

/** How each API is asked. */
const APIS = {
  "/chat/completions": (content: string) => ({ messages: [{ role: "user", content }], max_tokens: 100 }),
  "/responses": (input: string) => ({ input, max_output_tokens: 100 }),
  "/messages": (content: string) => ({ messages: [{ role: "user", content }], max_tokens: 100 }),
};
type Api = keyof typeof APIS;
const APIS_ASKED = Object.keys(APIS) as Api[];

function ask(asking: Fetch, api: Api, prompt: Prompt = {}, fields: object = {}, init: RequestInit = {}) {
  const body = JSON.stringify({ model: "gpt", ...APIS[api](promptText(prompt)), ...fields });
  return asking(provider.url + api, { method: "POST", body, ...init });
}
const sent = () => provider.bodies.at(-1) ?? {};
const inputSent = () => inputTokensOf(JSON.stringify(sent()));

describe.each(APIS_ASKED)("%s", (api) => {
  /** The tokens that this API's usage says were cached, or written into the cache. */
  const cached = api === "/messages" ? 2 : 1;
  test.each([false, true])("the usage that it reports is settled, streamed: %s", async (stream) => {
    const { asking, used } = start();
    const response = await ask(asking, api, { words: 7 }, { stream });
    expect(await used()).toMatchObject({ holds: 1 });
    expect(await response.text()).toContain("word ");
    await eventually(async () =>
      expect(await used()).toEqual({
        holds: 0,
        requests: 1,
        tokens: inputSent() + 7,
        cost: inputSent() - cached + 70,
      }),
    );
  });

  test("without usage the input's estimate counts, and the output that was seen", async () => {
    const { asking, used } = start();
    await (await ask(asking, api, { words: 7, isSilent: true }, { stream: true })).text();
    const estimate = Math.ceil(JSON.stringify(sent()).length / 2);
    await eventually(async () =>
      expect(await used()).toMatchObject({ holds: 0, tokens: estimate + Math.ceil((7 * 5) / 2) }),
    );
  });

  test.each(["reader", "signal", "provider"])(
    "a stream that the %s cuts is settled with what was seen",
    async (who) => {
      const { asking, used } = start();
      const controller = new AbortController();
      const prompt = { words: 50, pauseMs: 20, ...(who === "provider" && { breaksAfter: 4 }) };
      const response = await ask(asking, api, prompt, { stream: true }, { signal: controller.signal });
      const reader = response.body?.getReader();
      let text = "";
      while (!text.includes("word ")) text += new TextDecoder().decode((await reader?.read())?.value);
      if (who === "reader") await reader?.cancel();
      if (who === "signal") controller.abort();
      const rest = async () => {
        for (;;) if ((await reader?.read())?.done !== false) return;
      };
      await rest().catch(() => undefined);
      await eventually(async () => expect(await used()).toMatchObject({ holds: 0 }));
      const { tokens = 0 } = (await used()) as { tokens?: number };
      // More than the first event says, which has a token of output.
      expect(tokens).toBeGreaterThan(inputSent() + 1);
      // Not the 100 tokens that were held for the output.
      expect(tokens).toBeLessThan(Math.ceil(JSON.stringify(sent()).length / 2) + 100);
    },
  );

  test.each([400, 429, 500, 529])("%d of the provider takes nothing", async (status) => {
    const { asking, used } = start();
    expect((await ask(asking, api, { status })).status).toBe(status);
    await eventually(async () => expect(await used()).toEqual({ holds: 0, requests: 0, tokens: 0, cost: 0 }));
  });

  test("a denied request is answered with 429, and never sent", async () => {
    const { asking, used, clock, limiter } = start();
    await limiter.limit({ policy: "llm", key: "k", cost: { requests: 0, tokens: 60_000, cost: 0 } });
    await clock.advance("1d");
    await limiter.limit({ policy: "llm", key: "k", cost: { requests: 0, tokens: LIMIT - 60_000, cost: 0 } });
    const before = [provider.bodies.length, await used()];
    const response = await ask(asking, api);
    const waitMs = 29 * 86_400_000;
    expect(response.status).toBe(429);
    expect(Object.fromEntries(response.headers)).toMatchObject({
      "retry-after": String(waitMs / 1_000),
      "retry-after-ms": String(waitMs),
      "x-should-retry": "false",
    });
    expect(await response.json()).toMatchObject({
      type: "error",
      error: { type: "rate_limit_error", message: expect.stringContaining(`(tokens)`) as string },
    });
    expect([provider.bodies.length, await used()]).toEqual(before);
  });
});

test.each(["tokens", "bought"])(
  "a request that calls in flight deny is repeated in the client's own time: one of %s passes when they end",
  async (policy) => {
    const { asking } = start({ budgets: [{ policy, key: "k" }] });
    const first = await ask(asking, "/responses", { words: 3 }, { max_output_tokens: 90_000, stream: true });
    const denied = await ask(asking, "/responses", {}, { max_output_tokens: 20_000 });
    expect(denied.status).toBe(429);
    const { headers } = denied;
    expect([headers.get("retry-after-ms"), headers.get("x-should-retry")]).toEqual([null, "true"]);
    expect(await denied.text()).toContain("or sooner, as 1 in flight give back what they do not use");
    await first.text();
    await eventually(async () =>
      expect((await ask(asking, "/responses", {}, { max_output_tokens: 20_000 })).status).toBe(200),
    );
  },
);

test("without calls in flight, or for a cost over the limit, the wait is told as it is", async () => {
  const { asking } = start({ budgets: [{ policy: "bought", key: "k" }] });
  const never = { "x-should-retry": "false" };
  const first = await ask(asking, "/responses", { words: 3 }, { max_output_tokens: 10_000, stream: true });
  const over = await ask(asking, "/responses", {}, { max_output_tokens: 2 * LIMIT });
  expect(Object.fromEntries(over.headers)).toMatchObject(never);
  await first.text();
  await eventually(async () => {
    const denied = await ask(asking, "/responses", {}, { max_output_tokens: LIMIT });
    expect(Object.fromEntries(denied.headers)).toMatchObject(never);
  });
});

test("usage is the same, wherever the bytes of a stream are cut", async () => {
  const bodies = await Promise.all(
    APIS_ASKED.map(async (api) => {
      const response = await ask(
        fetch,
        api,
        { words: 5 },
        { stream: true, stream_options: { include_usage: true } },
      );
      return [api, new Uint8Array(await response.arrayBuffer())] as const;
    }),
  );
  await fc.assert(
    fc.asyncProperty(
      fc.constantFrom(...bodies),
      fc.array(fc.nat(), { maxLength: 8 }),
      async ([api, bytes], places) => {
        const cuts = [
          0,
          ...places.map((place) => place % bytes.length).toSorted((a, b) => a - b),
          bytes.length,
        ];
        const stream = new ReadableStream({
          start(controller) {
            for (const [index, end] of cuts.slice(1).entries())
              controller.enqueue(bytes.slice(cuts[index], end));
            controller.close();
          },
        });
        const headers = { "content-type": "text/event-stream" };
        const { asking, used } = start({ fetch: async () => new Response(stream, { headers }) });
        const passed = await (await ask(asking, api, { words: 5 }, { stream: true })).arrayBuffer();
        expect(new Uint8Array(passed)).toEqual(bytes);
        const body = JSON.stringify({
          model: "gpt",
          ...APIS[api](promptText({ words: 5 })),
          stream: true,
          stream_options: { include_usage: true },
        });
        await eventually(async () =>
          expect(await used()).toMatchObject({ holds: 0, tokens: inputTokensOf(body) + 5 }),
        );
      },
    ),
    { numRuns: 60 },
  );
});

test.each([
  ["/embeddings", { input: "a" }, { prompt_tokens: 8, total_tokens: 8 }, 8],
  [
    "/completions",
    { prompt: "a", n: 2, best_of: 3, max_tokens: 30 },
    { prompt_tokens: 8, completion_tokens: 41 },
    49,
  ],
])("%s is counted by its usage", async (path, fields, usage, tokens) => {
  const { asking, used } = start({
    fetch: async () => Response.json({ data: [], usage }),
    inputTokens: () => 10,
  });
  const body = JSON.stringify({ model: "gpt", ...fields });
  const response = await asking(`https://api.example/v1${path}`, { method: "POST", body });
  // What is held: the input, and each answer's bound.
  expect(await used()).toMatchObject({ holds: 1, tokens: 10 + (path === "/completions" ? 90 : 0) });
  await response.text();
  await eventually(async () => expect(await used()).toMatchObject({ holds: 0, tokens }));
});

test.each([
  ["a text", "a", 1],
  ["a list of one", ["a"], 1],
  ["20 texts", Array.from({ length: 20 }, () => "a"), 20],
  ["the tokens of one", [1, 2, 3], 1],
  ["the tokens of three", [[1], [2, 3], [4]], 3],
  ["nothing", [], 1],
  ["null", null, 1],
])("legacy completions of %s hold the bound of each prompt's answers", async (_, prompt, prompts) => {
  const { asking, used } = start({ inputTokens: () => 10 });
  const body = JSON.stringify({ model: "gpt", prompt, n: 2, max_tokens: 30 });
  await asking(`${provider.url}/completions`, { method: "POST", body });
  expect(await used()).toMatchObject({ holds: 1, tokens: 10 + prompts * 2 * 30 });
});

describe("what is sent", () => {
  test("asks for the usage of a stream, unless the caller did or did not want it", async () => {
    const { asking } = start();
    const options = async (fields: object) => {
      await (await ask(asking, "/chat/completions", {}, fields)).text();
      return sent()["stream_options"];
    };
    expect(await options({ stream: true })).toEqual({ include_usage: true });
    expect(await options({ stream: true, stream_options: { include_obfuscation: false } })).toEqual({
      include_obfuscation: false,
      include_usage: true,
    });
    expect(await options({ stream: true, stream_options: { include_usage: false } })).toEqual({
      include_usage: false,
    });
    expect(await options({})).toBeUndefined();
  });

  test.each([
    ["/chat/completions", "max_completion_tokens", { max_tokens: undefined }],
    ["/responses", "max_output_tokens", { max_output_tokens: null }],
    ["/messages", "max_tokens", { max_tokens: undefined }],
  ] as const)("%s without a bound of its output gets one in %s", async (api, field, fields) => {
    const { asking } = start({ maxOutputTokens: 123 });
    await (await ask(asking, api, {}, fields)).text();
    expect(sent()[field]).toBe(123);
  });

  test("is what was read: the last of two fields of a name, from a text, bytes or a Request", async () => {
    const { asking, used } = start({ budgets: [{ policy: "output", key: "k", units: ["output-tokens"] }] });
    const url = `${provider.url}/chat/completions`;
    const body = `{"model":"gpt","max_tokens":9000,"max_tokens":20,"messages":[{"role":"user","content":"${promptText({ words: 1 })}"}]}`;
    const length = { "content-length": String(body.length) };
    for (const [input, init] of [
      [url, { method: "POST", body, headers: length }],
      [new URL(url), { method: "POST", body: new TextEncoder().encode(body) }],
      [new Request(url, { method: "POST", body, headers: { "x-a": "b" } }), undefined],
    ] as const) {
      expect((await (await asking(input, init)).text()).includes("word")).toBe(true);
      expect(sent()["max_tokens"]).toBe(20);
    }
    await eventually(async () => expect(await used("output")).toEqual({ holds: 0, output: 3 }));
  });

  test.each([
    ["{", "the body must be a JSON object"],
    ["[]", "the body must be a JSON object"],
    ["{}", "model is undefined: must be a text"],
    ['{"model":"gpt","max_tokens":"9"}', 'max_tokens is "9": must be an integer from 1'],
    ['{"model":"gpt","n":1.5}', "n is 1.5: must be an integer from 1"],
    [`{"model":"gpt","a":${"[".repeat(50_000)}${"]".repeat(50_000)}}`, "nested so deeply"],
    ['{"model":"gtp"}', 'model is "gtp", which has no price: must be one of "gpt" (did you mean gpt?)'],
  ])("nothing, of the body %.40s", async (body, message) => {
    const { asking, used } = start();
    const before = provider.bodies.length;
    const response = await asking(`${provider.url}/chat/completions`, { method: "POST", body });
    expect([response.status, response.headers.get("x-should-retry")]).toEqual([400, "false"]);
    expect(await response.text()).toContain(JSON.stringify(message).slice(1, -1));
    expect([provider.bodies.length, await used()]).toEqual([
      before,
      { holds: 0, requests: 0, tokens: 0, cost: 0 },
    ]);
  });

  test("is untouched where no tokens are used", async () => {
    const seen: unknown[] = [];
    const { asking, used } = start({ fetch: async (...args) => (seen.push(args), new Response("models")) });
    await asking("https://api.example/v1/models");
    await asking("https://api.example/v1/messages");
    await asking("https://api.example/v1/threads/t/messages", { method: "POST", body: "x" });
    expect(seen).toEqual([
      ["https://api.example/v1/models", undefined],
      ["https://api.example/v1/messages", undefined],
      ["https://api.example/v1/threads/t/messages", { method: "POST", body: "x" }],
    ]);
    expect(await used()).toMatchObject({ holds: 0, requests: 0 });
  });
});

describe("several budgets", () => {
  const budgets = [
    { policy: "tokens", key: "team" },
    { policy: "output", key: "user", units: ["output-tokens"] },
  ] as const;

  test("each is held and settled in its own units", async () => {
    const { asking, used } = start({ budgets });
    await (await ask(asking, "/messages", { words: 9 })).text();
    await eventually(async () => {
      expect(await used("tokens", "team")).toEqual({ holds: 0, tokens: inputSent() + 9 });
      expect(await used("output", "user")).toEqual({ holds: 0, output: 9 });
    });
  });

  test("when one denies, none is held", async () => {
    const { asking, used } = start({ budgets });
    const response = await ask(asking, "/messages", {}, { max_tokens: 501 });
    expect([response.status, response.headers.get("retry-after")]).toEqual([429, null]);
    await eventually(async () => expect(await used("tokens", "team")).toEqual({ holds: 0, tokens: 0 }));
    expect(await used("output", "user")).toEqual({ holds: 0, output: 0 });
  });

  test("when the limiter rejects one, none is held", async () => {
    const { asking, used } = start({ budgets: [budgets[0], { policy: "nowhere", key: "k" }] });
    await expect(ask(asking, "/messages")).rejects.toThrow("nowhere");
    await eventually(async () => expect(await used("tokens", "team")).toEqual({ holds: 0, tokens: 0 }));
  });

  test("they may follow from the request", async () => {
    const { asking, used } = start({
      budgets: ({ model, headers }) => [{ policy: "tokens", key: `${headers?.get("x-user")}:${model}` }],
    });
    await (await ask(asking, "/messages", {}, {}, { headers: { "x-user": "ann" } })).text();
    await eventually(async () =>
      expect(await used("tokens", "ann:gpt")).toEqual({ holds: 0, tokens: inputSent() + 3 }),
    );
  });
});
