import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { startWranglerDev, type WranglerDev } from "../support/wrangler-dev.ts";

describe("examples/service-binding", () => {
  let dev: WranglerDev;
  beforeAll(async () => {
    dev = await startWranglerDev(["examples/service-binding/wrangler.toml", "wrangler.toml"]);
  });
  afterAll(() => dev.stop());
  const get = (path: string, customer: string) =>
    fetch(`${dev.url}${path}`, { headers: { "x-api-key": customer } });

  test("admits, denies with Retry-After, and says never when a cost cannot fit", async () => {
    const admitted = await get("/", "alice");
    expect([admitted.status, admitted.headers.get("x-remaining")]).toEqual([200, "499"]);
    await get("/?cost=499", "alice");
    const denied = await get("/?cost=400", "alice");
    expect([denied.status, Number(denied.headers.get("retry-after"))]).toEqual([429, 4]);
    const never = await get("/?cost=501", "alice");
    expect([never.status, never.headers.get("retry-after")]).toEqual([429, null]);
  });

  test("gives back what was charged for a request whose upstream failed", async () => {
    expect((await get("/fail", "bob")).status).toBe(502);
    expect(await (await get("/quota", "bob")).json()).toMatchObject({
      policy: "api",
      remaining: 500,
      source: "object",
    });
  });

  test("with props a key is enough, as with Cloudflare's own binding", async () => {
    const statuses = [];
    for (let attempt = 0; attempt < 6; attempt += 1) statuses.push((await get("/login", "carol")).status);
    expect(statuses).toEqual([200, 200, 200, 200, 200, 429]);
  });

  test("ten exports run at a time, and their slots are free when they have ended", async () => {
    const statuses = async (count: number) => {
      const answers = await Promise.all(Array.from({ length: count }, () => get("/export", "erin")));
      return answers.map(({ status }) => status).toSorted((a, b) => a - b);
    };
    expect(await statuses(12)).toEqual([...Array.from({ length: 10 }, () => 200), 503, 503]);
    expect(await statuses(10)).toEqual(Array.from({ length: 10 }, () => 200));
  });

  test("bad input throws what HTTP would say", async () => {
    const refused = await get("/?cost=-1", "dave");
    expect(refused.status).toBe(422);
    expect(await refused.json()).toEqual({
      errors: [{ pointer: "/cost", detail: "cost is -1: must be an integer from 0 to 1000000000" }],
    });
  });
});

describe("examples/http", () => {
  const policies = { payments: { algorithm: "token-bucket", limit: 2, window: "30d" } };
  const state = makeState();
  afterAll(() => removeState(state));

  const pay = (dev: WranglerDev) => fetch(dev.url, { headers: { "x-api-key": "alice" } });

  test("admits, denies, and refuses while Weir is away", async () => {
    const weir = await serveBundle(state, policies);
    const dev = await startWranglerDev(["examples/http/wrangler.toml"], {
      WEIR_URL: weir.url,
      WEIR_TOKEN: TOKENS.limit,
    });
    try {
      // Waiting for the example to answer was a payment of another customer.
      expect((await pay(dev)).headers.get("x-remaining")).toBe("1");
      expect((await pay(dev)).status).toBe(200);
      const denied = await pay(dev);
      expect([denied.status, Number(denied.headers.get("retry-after")) > 0]).toEqual([429, true]);
      await weir.stop();
      expect((await pay(dev)).status).toBe(503);
    } finally {
      await dev.stop();
      await weir.stop();
    }
  });

  test("refuses when its token is wrong", async () => {
    const weir = await serveBundle(state, policies);
    const dev = await startWranglerDev(["examples/http/wrangler.toml"], {
      WEIR_URL: weir.url,
      WEIR_TOKEN: "weir_guess",
    });
    try {
      expect((await pay(dev)).status).toBe(503);
    } finally {
      await dev.stop();
      await weir.stop();
    }
  });
});

/** A model that speaks OpenAI's chat completions: an event for each word, and the usage that the prompt asks for. */
function startModel(): Promise<Server> {
  const server = createServer((request, response) => {
    let text = "";
    request.on("data", (data: Buffer) => (text += data.toString()));
    request.on("end", () => void answer(text));
    const answer = async (prompt: string) => {
      const { messages } = JSON.parse(prompt) as { messages: [{ content: string }] };
      const [{ content }] = messages;
      if (content === "fail") return response.writeHead(500).end();
      response.writeHead(200, { "content-type": "text/event-stream" });
      const event = (data: object) => response.write(`data: ${JSON.stringify(data)}\n\n`);
      for (const word of content.split(" ")) {
        event({ choices: [{ delta: { content: word } }], usage: null });
        await new Promise((done) => setTimeout(done, 20));
      }
      event({ choices: [], usage: { total_tokens: 321 } });
      return response.end("data: [DONE]\n\n");
    };
  });
  return new Promise((done) => server.listen(0, "127.0.0.1", () => done(server)));
}

describe("examples/llm-budget", () => {
  let model: Server;
  let dev: WranglerDev;
  beforeAll(async () => {
    model = await startModel();
    const { port } = model.address() as AddressInfo;
    const configs = ["examples/llm-budget/wrangler.toml", "wrangler.toml"];
    dev = await startWranglerDev(configs, { MODEL_URL: `http://127.0.0.1:${port}` });
  });
  afterAll(async () => {
    await dev.stop();
    model.close();
  });
  const ask = (customer: string, content: string, fields: object = {}, signal?: AbortSignal) =>
    fetch(dev.url, {
      method: "POST",
      headers: { "x-api-key": customer },
      body: JSON.stringify({ messages: [{ role: "user", content }], ...fields }),
      ...(signal && { signal }),
    });
  /** How many tokens a customer can still spend: the most that is not refused at once. */
  const passes = async (customer: string, tokens: number) => {
    // The estimate of "fail" is 5; a failed call gives everything back.
    const { status } = await ask(customer, "fail", { max_tokens: tokens - 5 });
    return status === 502;
  };

  test("what is streamed through is settled with the usage that the model tells", async () => {
    const text = await (await ask("alice", "a b c d e", { max_tokens: 50_000 })).text();
    expect(text.match(/data: \{/g)).toHaveLength(6);
    await eventually(async () => {
      expect(await passes("alice", 100_000 - 321)).toBe(true);
      expect(await passes("alice", 100_000 - 320)).toBe(false);
    });
  });

  test.each([
    "",
    "[1",
    "{}",
    "null",
    '{"messages":[]}',
    '{"messages":[null]}',
    '{"messages":[{"role":"user"}]}',
    '{"messages":[{"role":"user","content":"a"}],"max_tokens":"9"}',
  ])("the body %j is a 400, and nothing is held", async (body) => {
    const response = await fetch(dev.url, { method: "POST", headers: { "x-api-key": "carol" }, body });
    expect([response.status, await response.text()]).toEqual([400, expect.stringContaining('"messages"')]);
    expect(await passes("carol", 100_000)).toBe(true);
  });

  test("while it streams the estimate is held, and a failed call costs nothing", async () => {
    expect((await ask("bob", "fail", { max_tokens: 90_000 })).status).toBe(502);
    const streaming = await ask("bob", "a ".repeat(40), { max_tokens: 60_000 });
    const denied = await ask("bob", "b", { max_tokens: 60_000 });
    expect([denied.status, Number(denied.headers.get("retry-after")) > 0]).toEqual([429, true]);
    await streaming.text();
    expect(await passes("bob", 60_000)).toBe(true);
  });
});
