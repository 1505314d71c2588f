/** What an answer that is cut counts, when a provider's pause ends, and what is refused when a budget is made. */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Fetch } from "../../../package/fetch.ts";
import { budgetFetch, budgetMiddleware, type BudgetOptions } from "../../../package/llm.ts";
import { manualClock, memoryLimiter } from "../../../package/testing.ts";
import { eventually } from "../../support/eventually.ts";
import { type Prompt, promptText, type Provider, startProvider } from "../../support/model-provider.ts";

const window = "30d";
const POLICIES = {
  tokens: { algorithm: "sliding-log", limit: 10_000, window, unit: "tokens" },
  open: { algorithm: "sliding-log", limit: 1, window, unit: "tokens", shadow: true },
};
let provider: Provider;
beforeAll(async () => {
  provider = await startProvider();
});
afterAll(() => provider.stop());

function start(options: object = {}) {
  const clock = manualClock();
  const limiter = memoryLimiter({ policies: POLICIES, clock });
  const given = {
    limiter,
    budgets: [{ policy: "tokens", key: "k" }],
    maxOutputTokens: 1_000,
    inputTokens: () => 10,
    time: clock,
    ...options,
  };
  const used = async (policy = "tokens") => {
    const { limit, remaining = 0, holds } = await limiter.peek({ policy, key: "k" });
    return { holds, used: limit - remaining };
  };
  return { asking: budgetFetch(given), given, used, clock, limiter };
}

function ask(asking: Fetch, prompt: Prompt = {}, fields: object = {}): Promise<Response> {
  const messages = [{ role: "user", content: promptText(prompt) }];
  const body = JSON.stringify({ model: "gpt", messages, max_tokens: 100, ...fields });
  return asking(`${provider.url}/chat/completions`, { method: "POST", body });
}

describe("what is cut before its usage came", () => {
  const left = async (response: Response) => {
    const reader = response.body?.getReader();
    await reader?.read();
    await reader?.cancel();
  };

  test.each([
    [{}, 10],
    [{ onCut: "held" }, 110],
  ])("with %j is at least %d tokens", async (options, least) => {
    const { asking, used } = start(options);
    await left(await ask(asking, { words: 50, pauseMs: 50 }, { stream: true }));
    await eventually(async () => expect((await used()).holds).toBe(0));
    expect((await used()).used).toBeGreaterThanOrEqual(least);
    expect((await used()).used).toBeLessThanOrEqual(least + 20);
  });

  test.each([
    [{}, 10],
    [{ onCut: "held" }, 110],
  ])("without an answer, with %j, is %d tokens", async (options, tokens) => {
    const { asking, used } = start({ ...options, fetch: () => Promise.reject(new TypeError("broken")) });
    await expect(ask(asking)).rejects.toThrow("broken");
    await eventually(async () => expect(await used()).toEqual({ holds: 0, used: tokens }));
  });

  test("an answer that is no JSON counts by its length", async () => {
    const { asking, used } = start({ fetch: async () => new Response("x".repeat(40)) });
    await (await ask(asking)).text();
    await eventually(async () => expect(await used()).toEqual({ holds: 0, used: 30 }));
  });
});

describe("a background response counts as all that was held unless its usage came", () => {
  const usage = { input_tokens: 20, output_tokens: 30 };
  const begun = { id: "r", status: "queued", usage: null };
  const going = { ...begun, status: "in_progress", usage: { input_tokens: 20, output_tokens: 0 } };
  const EVENTS: readonly object[] = [
    { type: "response.created", response: begun },
    { type: "response.in_progress", response: going },
    { type: "response.output_text.delta", delta: "one" },
    { type: "response.completed", response: { id: "r", status: "completed", usage } },
  ];
  const ALL = 110;
  const asked = async (fetch: Fetch, fields: object, read: (response: Response) => Promise<unknown>) => {
    const { asking, used } = start({ fetch });
    const body = JSON.stringify({ model: "gpt", input: "a", max_output_tokens: 100, ...fields });
    await asking("https://api.example/v1/responses", { method: "POST", body }).then(read, () => undefined);
    await eventually(async () => expect((await used()).holds).toBe(0));
    return (await used()).used;
  };
  /** Sends so many events, then ends, breaks or is cut by its reader. */
  const streamed = (count: number, how: string): Fetch => {
    let next = 0;
    const pull = (controller: ReadableStreamDefaultController) => {
      const event = next < count ? EVENTS[next] : undefined;
      next += 1;
      if (event !== undefined)
        return controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(event)}\n\n`));
      if (how === "ends") return controller.close();
      if (how === "breaks") return controller.error(new Error("broken"));
      return new Promise<void>(() => undefined);
    };
    const headers = { "content-type": "text/event-stream" };
    return async () => new Response(new ReadableStream({ pull }, { highWaterMark: 0 }), { headers });
  };
  const readsEvents = (count: number) => async (response: Response) => {
    const reader = response.body?.getReader();
    for (let read = 0; read < count; read += 1) await reader?.read();
    await reader?.cancel();
  };
  const readsAll = (response: Response) => response.text().catch(() => undefined);

  test.each([
    ["answered before it is made", async () => Response.json(begun)],
    ["with a usage that is not its last", async () => Response.json(going)],
    ["without an answer", () => Promise.reject(new TypeError("broken"))],
    ["with an empty body", async () => new Response(null, { status: 204 })],
  ])("%s", async (_, fetch) => {
    expect(await asked(fetch, { background: true }, readsAll)).toBe(ALL);
  });

  test.each(["ends", "breaks", "is cut"])("in a stream that %s after any event", async (how) => {
    for (const [count] of EVENTS.entries()) {
      const read = how === "is cut" ? readsEvents(count) : readsAll;
      const fields = { background: true, stream: true };
      expect([count, await asked(streamed(count, how), fields, read)]).toEqual([count, ALL]);
      // A provider ends any other response whose reader has left.
      expect(await asked(streamed(count, how), { stream: true }, read)).toBeLessThan(30);
    }
  });

  test.each(["ends", "breaks"])("and else what it used, also if its stream then %s", async (how) => {
    expect(await asked(streamed(4, how), { background: true, stream: true }, readsAll)).toBe(50);
    const completed = async () => Response.json({ status: "completed", usage });
    expect(await asked(completed, { background: true }, readsAll)).toBe(50);
  });
});

describe("a signal that is aborted before the request is sent", () => {
  const reason = new Error("the user has left");
  const init = { method: "POST", body: JSON.stringify({ model: "gpt", max_tokens: 100 }) };
  const url = () => `${provider.url}/chat/completions`;

  test.each(["init", "Request"])(
    "(of %s) rejects with its reason: nothing is held or sent",
    async (where) => {
      const { asking, used } = start();
      const before = provider.bodies.length;
      const given = { ...init, signal: AbortSignal.abort(reason) };
      const asked = where === "init" ? asking(url(), given) : asking(new Request(url(), given));
      await expect(asked).rejects.toBe(reason);
      expect([provider.bodies.length, await used()]).toEqual([before, { holds: 0, used: 0 }]);
    },
  );

  test.each(["first", "last"])("while the %s of two holds is on its way cancels them", async (which) => {
    const { limiter } = start();
    const controller = new AbortController();
    const keys: string[] = [];
    const leaving: BudgetOptions["limiter"] = {
      ...limiter,
      hold: async (request) => {
        const decision = await limiter.hold(request);
        keys.push(request.key);
        if (which === "first" || keys.length === 2) controller.abort(reason);
        return decision;
      },
    };
    const budgets = ["k", "other"].map((key) => ({ policy: "tokens", key }));
    const { asking } = start({ limiter: leaving, budgets });
    const before = provider.bodies.length;
    await expect(asking(url(), { ...init, signal: controller.signal })).rejects.toBe(reason);
    expect(keys).toEqual(which === "first" ? ["k"] : ["k", "other"]);
    expect(provider.bodies.length).toBe(before);
    for (const key of keys)
      await eventually(async () =>
        expect(await limiter.peek({ policy: "tokens", key })).toMatchObject({ holds: 0, remaining: 10_000 }),
      );
  });

  test("of the Request counts for nothing where the call has another one", async () => {
    const { asking } = start();
    const request = new Request(url(), { ...init, signal: AbortSignal.abort(reason) });
    expect((await asking(request, { signal: null, body: init.body })).status).toBe(200);
  });

  test("is the call's of the AI SDK too", async () => {
    const { given, used } = start();
    const middleware = budgetMiddleware(given);
    const call = { params: { abortSignal: AbortSignal.abort(reason) }, model: { modelId: "gpt" } };
    const never = () => Promise.reject(new Error("called"));
    await expect(middleware.wrapGenerate({ ...call, doGenerate: never })).rejects.toBe(reason);
    await expect(middleware.wrapStream({ ...call, doStream: never })).rejects.toBe(reason);
    expect(await used()).toEqual({ holds: 0, used: 0 });
  });
});

describe("an answer of 2xx without output counts its input, also with onCut held:", () => {
  let server: Server;
  beforeAll(async () => {
    server = createServer((request, response) => {
      response.writeHead(Number(request.headers["x-status"])).end();
    });
    await new Promise<void>((up) => void server.listen(0, "127.0.0.1", up));
  });
  afterAll(() => new Promise((done) => void server.close(done)));

  test.each([200, 204, 205])("%d with an empty body", async (status) => {
    const { asking, used } = start({ onCut: "held" });
    const { port } = server.address() as AddressInfo;
    const headers = { "x-status": String(status) };
    const body = JSON.stringify({ model: "gpt", max_tokens: 100 });
    const response = await asking(`http://127.0.0.1:${port}/chat/completions`, {
      method: "POST",
      headers,
      body,
    });
    expect([response.status, await response.text()]).toEqual([status, ""]);
    await eventually(async () => expect(await used()).toEqual({ holds: 0, used: 10 }));
  });
});

test("an answer whose body nobody reads stays held for ttlMs, and then counts in full", async () => {
  const { asking, used, clock } = start({ ttlMs: 60_000 });
  const unread = await ask(asking);
  await clock.advance(59_999);
  expect([unread.bodyUsed, await used()]).toEqual([false, { holds: 1, used: 110 }]);
  await clock.advance(1);
  await eventually(async () => expect(await used()).toEqual({ holds: 0, used: 110 }));
});

test("more than was held is taken too", async () => {
  const { asking, used } = start({ inputTokens: () => 1 });
  await (await ask(asking, { words: 90 })).text();
  await eventually(async () => expect((await used()).holds).toBe(0));
  expect((await used()).used).toBeGreaterThan(101);
});

test("what a policy in shadow admits over its limit has no hold, and passes", async () => {
  const { asking, used } = start({ budgets: [{ policy: "open", key: "k" }] });
  expect(await (await ask(asking)).text()).toContain("word");
  expect((await used("open")).holds).toBe(0);
});

describe("a pause that the provider asks for", () => {
  const nothing = { "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "4s" };

  test.each([
    ["nothing remains", {}, { ...nothing }, 4_000],
    ["Retry-After", { status: 429 }, { "retry-after": "7" }, 7_000],
  ])("(%s) is kept: until its end nothing is sent and nothing held", async (_, prompt, headers, pauseMs) => {
    const { asking, used, clock } = start();
    await (await ask(asking, { ...prompt, headers })).text();
    await eventually(async () => expect((await used()).holds).toBe(0));
    const before = [provider.bodies.length, await used()];
    const paused = await ask(asking);
    expect([
      paused.status,
      paused.headers.get("retry-after-ms"),
      paused.headers.get("x-should-retry"),
    ]).toEqual([429, String(pauseMs), "true"]);
    await clock.advance(pauseMs - 1);
    expect((await ask(asking)).status).toBe(429);
    expect([provider.bodies.length, await used()]).toEqual(before);
    await clock.advance(1);
    expect((await ask(asking)).status).toBe(200);
  });

  test("is that of one model", async () => {
    const { asking } = start();
    await ask(asking, { status: 429, headers: { "retry-after": "7" } });
    expect((await ask(asking, {}, { model: "other" })).status).toBe(200);
    expect((await ask(asking)).status).toBe(429);
  });
});

test("without an answer of the limiter: 503, and the request is not sent", async () => {
  const degraded = {
    success: false,
    policy: "tokens",
    key: "k",
    limit: 1,
    reason: "degraded",
    source: "fallback",
    rules: [],
  };
  const hold = async () => degraded as never;
  const { limiter } = start();
  const { asking } = start({ limiter: { hold, settle: limiter.settle, cancel: limiter.cancel } });
  const before = provider.bodies.length;
  const response = await ask(asking);
  expect([response.status, response.headers.get("x-should-retry"), provider.bodies.length]).toEqual([
    503,
    "true",
    before,
  ]);
});

test.each([
  [{ limiter: undefined }, "limiter is missing: must be a limiter, as createLimiter makes one"],
  [{ limiter: {} }, "limiter is an object: must be a limiter"],
  [{ budgets: undefined }, "budgets is missing: must be a list of { policy, key }"],
  [{ budgets: [] }, "budgets is an array of 0: must be a list of 1 to 16"],
  [{ budgets: [{ policy: "tokens" }] }, "key of a budget is missing: must be a text"],
  [{ budgets: [{ policy: "tokens", kee: "k" }] }, "kee is not an option"],
  [{ budgets: [{ key: "k", units: ["token"] }] }, 'units is "token": must be one of "tokens"'],
  [{ budgets: [{ key: "k", units: ["cost"] }] }, "prices is missing: must be given"],
  [{ maxOutputTokens: undefined }, "maxOutputTokens is missing: must be an integer"],
  [{ maxOutputTokens: 0 }, "maxOutputTokens is 0: must be an integer"],
  [{ inputTokens: 10 }, "inputTokens is 10: must be a function of the request"],
  [{ bytesPerToken: 0.5 }, "bytesPerToken is 0.5: must be an integer, 1 or more"],
  [{ onCut: "all" }, 'onCut is "all": must be "seen" or "held"'],
  [{ ttlMs: 1e9 }, "ttlMs is 1000000000: must be an integer, from 1 to 86400000"],
  [{ prices: { gpt: { input: 1 } } }, "prices.gpt.output is missing"],
  [{ maxoutputTokens: 1 }, "maxoutputTokens is not an option"],
])("%j is refused when it is made", (wrong, message) => {
  const { given } = start();
  const options = { ...given, ...wrong } as BudgetOptions;
  expect(() => budgetFetch(options)).toThrow(message);
  expect(() => budgetMiddleware(options)).toThrow(message);
});

test.each([1.5, NaN, -1, Infinity, "7", null, Promise.resolve(7)])(
  "a number of tokens of %s is refused by name, and nothing is sent or held",
  async (counted) => {
    const { asking, given, used } = start({ inputTokens: () => counted });
    const budgeted = budgetMiddleware(given);
    const before = provider.bodies.length;
    const message = /^inputTokens of a request is .+: must be an integer, 0 or more$/;
    await expect(ask(asking)).rejects.toThrow(message);
    const call = { doGenerate: () => expect.unreachable(), params: {}, model: { modelId: "gpt" } };
    await expect(budgeted.wrapGenerate(call as never)).rejects.toThrow(message);
    expect([provider.bodies.length, await used()]).toEqual([before, { holds: 0, used: 0 }]);
  },
);
