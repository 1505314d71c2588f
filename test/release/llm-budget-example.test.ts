/** examples/llm-budget on the packed package: the gateway and its limiter under wrangler dev, and a provider that bills. */
import { cpSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ROOT } from "../../scripts/project.ts";
import { eventually } from "../support/eventually.ts";
import { type Prompt, promptText, type Provider, startProvider } from "../support/model-provider.ts";
import { packedProject, removePacked } from "../support/packed.ts";
import { startWranglerDev, type WranglerDev } from "../support/wrangler-dev.ts";

const EXAMPLE = join(ROOT, "examples", "llm-budget");
const TOKENS = 100_000;
const REQUESTS = 100;
const users = Object.fromEntries(
  ["ann", "ben", "cem", "dan", "eve", "fay", "gus"].map((user) => [
    `key-of-${user}`,
    { user, team: `team-of-${user}` },
  ]),
);

let provider: Provider;
let dev: WranglerDev;
beforeAll(async () => {
  provider = await startProvider();
  const project = packedProject();
  cpSync(EXAMPLE, project.folder, { recursive: true });
  // The limiter as `weir init` makes it, with the policies that the example's README asks for.
  const [, policies = ""] =
    /```toml\n([^`]*)```/.exec(readFileSync(join(EXAMPLE, "README.md"), "utf8")) ?? [];
  const template = join(ROOT, "template");
  cpSync(join(template, "src"), join(project.folder, "limiter", "src"), { recursive: true });
  const limiter = project.write(
    "limiter/wrangler.toml",
    `${readFileSync(join(template, "wrangler.toml"), "utf8")}\n${policies}`,
  );
  const url = provider.url.replace(/\/v1$/, "");
  dev = await startWranglerDev([join(project.folder, "wrangler.toml"), limiter], {
    OPENAI_URL: url,
    ANTHROPIC_URL: url,
    CALLERS: JSON.stringify(users),
  });
});
afterAll(async () => {
  await dev.stop();
  await provider.stop();
  removePacked();
});

const MODELS = { "/v1/chat/completions": "gpt-4o-mini", "/v1/messages": "claude-haiku-4-5" };
type Path = keyof typeof MODELS;

function ask(user: string, path: Path, prompt: Prompt, fields: object = {}, signal?: AbortSignal) {
  const messages = [{ role: "user", content: promptText(prompt) }];
  return fetch(dev.url + path, {
    method: "POST",
    headers: { authorization: `Bearer key-of-${user}` },
    body: JSON.stringify({ model: MODELS[path], max_tokens: 60, stream: true, messages, ...fields }),
    ...(signal && { signal }),
  });
}

/** Whether so many tokens of output fit in the user's budget now, beside a prompt. A request that fails takes nothing. */
async function fits(user: string, tokens: number): Promise<boolean> {
  const { status } = await ask(user, "/v1/chat/completions", { status: 418 }, { max_tokens: tokens });
  return status === 418;
}

/** The most tokens of output that fit. */
async function room(user: string): Promise<number> {
  let [least, most] = [0, TOKENS];
  while (most - least > 1) {
    const middle = Math.floor((least + most) / 2);
    if (await fits(user, middle)) least = middle;
    else most = middle;
  }
  return least;
}

test.each(Object.keys(MODELS) as Path[])(
  "%s: a hundred requests at once with a hundredth of the budget left spend no more than that",
  async (path) => {
    const user = path === "/v1/messages" ? "ann" : "ben";
    // The first request takes all but the hundredth.
    const first = provider.spent();
    await (await ask(user, path, { words: 98_900 }, { max_tokens: 99_000, stream: false })).text();
    const began = provider.spent();
    const left = TOKENS - (began - first);
    const answers = await Promise.all(
      Array.from({ length: REQUESTS }, async () => {
        const response = await ask(user, path, { words: 40, pauseMs: 5 });
        await response.text();
        return response;
      }),
    );
    const denied = answers.filter(({ status }) => status === 429);
    expect(answers.filter(({ status }) => status === 200).length).toBe(REQUESTS - denied.length);
    expect(denied.length).toBeGreaterThan(0);
    expect(denied.length).toBeLessThan(REQUESTS);
    for (const { headers } of denied) {
      // A long wait is not told while others are in flight.
      const waitMs = headers.get("retry-after-ms");
      if (waitMs === null) expect(headers.get("x-should-retry")).toBe("true");
      else expect(Number(waitMs)).toBeGreaterThan(0);
    }
    expect(provider.spent() - began).toBeLessThanOrEqual(left);
  },
);

test("a client that leaves in the middle of its stream leaves no hold", async () => {
  const before = await room("cem");
  const controller = new AbortController();
  const response = await ask(
    "cem",
    "/v1/messages",
    { words: 500, pauseMs: 20 },
    { max_tokens: 50_000 },
    controller.signal,
  );
  await response.body?.getReader().read();
  expect(await fits("cem", 60_000)).toBe(false);
  controller.abort();
  await eventually(async () => expect(await fits("cem", before - 1_000)).toBe(true));
});

test("the provider's errors are handed on, and take nothing", async () => {
  const before = await room("dan");
  for (const status of [400, 429, 500, 529])
    expect((await ask("dan", "/v1/chat/completions", { status })).status).toBe(status);
  await eventually(async () => expect(await fits("dan", before)).toBe(true));
});

describe("what is not sent", () => {
  const post = (path: string, body: string, key = "key-of-eve") =>
    fetch(dev.url + path, { method: "POST", headers: { "x-api-key": key }, body });

  test.each([
    ["/v1/models", "{}", "key-of-eve", 404, "there are POST /v1/chat/completions"],
    ["/v1/messages", "{}", "guess", 401, "a key of this gateway is needed"],
    ["/v1/messages", "{", "key-of-eve", 400, "the body must be a JSON object"],
    ["/v1/messages", '{"model":"gpt-4o-mni"}', "key-of-eve", 400, "did you mean gpt-4o-mini?"],
  ])("%s %s of %s: %d", async (path, body, key, status, message) => {
    const before = provider.bodies.length;
    const response = await post(path, body, key);
    expect([response.status, await response.text()]).toEqual([status, expect.stringContaining(message)]);
    expect(provider.bodies.length).toBe(before);
  });

  test("a request that costs more than the team has", async () => {
    // 10,000,001 tokens of output at 5 millionths: more than $50.
    const body = JSON.stringify({ model: "claude-haiku-4-5", max_tokens: 10_000_001, messages: [] });
    const response = await post("/v1/messages", body);
    expect([response.status, response.headers.get("x-should-retry")]).toEqual([429, "false"]);
    expect(await response.text()).toContain("model-");
  });
});

// The last one: the pause is one of the model, for all of its requests.
test("a pause that the provider asks for in one answer is kept by the next request, of any user", async () => {
  const asked = { status: 429, headers: { "retry-after": "60" } };
  expect((await ask("fay", "/v1/messages", asked)).status).toBe(429);
  const before = provider.bodies.length;
  const next = await ask("gus", "/v1/messages", { words: 2 });
  expect([next.status, await next.text()]).toEqual([429, expect.stringContaining("asked for a pause")]);
  expect(Number(next.headers.get("retry-after-ms"))).toBeGreaterThan(0);
  expect(provider.bodies.length).toBe(before);
});
