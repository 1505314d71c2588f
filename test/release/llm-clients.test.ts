/** Budgets under the clients that people have: OpenAI's, Anthropic's, and the AI SDK of three versions. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { promptText, type Provider, startProvider } from "../support/model-provider.ts";
import { projectWith, removePacked, typesOf } from "../support/packed.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const NODE = {
  types: ["node"],
  lib: ["ES2024", "ESNext.Disposable", "DOM", "DOM.Iterable"],
  skipLibCheck: true,
  exactOptionalPropertyTypes: false,
};
const policies = {
  model: { algorithm: "sliding-log", limit: 1_000, window: "30d", unit: "tokens", deadlineMs: 20_000 },
  brief: { algorithm: "sliding-log", limit: 1_000, window: "2s", unit: "tokens", deadlineMs: 20_000 },
};

const state = makeState();
let served: Serving;
let provider: Provider;
beforeAll(async () => {
  served = await serveBundle(state, policies);
  provider = await startProvider();
});
afterAll(async () => {
  await provider.stop();
  await served.stop();
  removeState(state);
  removePacked();
});

const START = `
import { createLimiter } from "weir-limiter/client";
import { budgetFetch, budgetMiddleware } from "weir-limiter/llm";

const [url = "", token = "", provider = "", prompt = ""] = process.argv.slice(2);
const limiter = createLimiter({ url, token, deadlineMs: 20_000 });
const options = (key: string) => ({
  limiter,
  budgets: [{ policy: key.startsWith("full") ? "brief" : "model", key }],
  maxOutputTokens: 100,
});
/** What is used once nothing is held any more. */
async function used(key: string): Promise<number> {
  for (;;) {
    const { remaining = 0, holds } = await limiter.peek({ policy: "model", key });
    if (holds === 0) return 1_000 - remaining;
    await new Promise((done) => setTimeout(done, 10));
  }
}
async function fill(key: string): Promise<void> {
  await limiter.limit({ policy: "brief", key, cost: 1_000 });
}
const found: unknown[] = [];
`;
const END = `
console.log(JSON.stringify(found));
await limiter.close();
`;

/** Each: the text of an answer and of a stream, whether the tokens used were settled, and a call that waits for its turn. */
const OPENAI = `
import OpenAI from "openai";
${START}
const client = (key: string) => new OpenAI({ apiKey: "k", baseURL: provider, fetch: budgetFetch(options(key)) });
const messages = [{ role: "user" as const, content: prompt }];
const chat = { model: "m", messages, max_tokens: 50 };
const whole = await client("a").chat.completions.create(chat);
const stream = await client("b").chat.completions.create({ ...chat, stream: true });
let text = "";
for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
const response = await client("c").responses.create({ model: "m", input: prompt });
found.push(whole.choices[0]?.message.content, text, response.output_text);
found.push((await used("a")) === whole.usage?.total_tokens, (await used("b")) > 3, (await used("c")) === response.usage?.total_tokens);
await fill("full-d");
found.push((await client("full-d").chat.completions.create(chat)).choices.length);
const never = await client("e").chat.completions.create({ ...chat, max_tokens: 2_000 }).catch((error: unknown) => error);
found.push(never instanceof OpenAI.RateLimitError && never.message);
${END}`;

const ANTHROPIC = `
import Anthropic from "@anthropic-ai/sdk";
${START}
const baseURL = provider.replace("/v1", "");
const client = (key: string) => new Anthropic({ apiKey: "k", baseURL, fetch: budgetFetch(options(key)) });
const message = { model: "m", max_tokens: 50, messages: [{ role: "user" as const, content: prompt }] };
const whole = await client("f").messages.create(message);
const part = whole.content[0];
let text = "";
for await (const event of await client("g").messages.create({ ...message, stream: true }))
  if (event.type === "content_block_delta" && event.delta.type === "text_delta") text += event.delta.text;
found.push(part?.type === "text" && part.text, text, text);
const { input_tokens, output_tokens } = whole.usage;
found.push((await used("f")) === input_tokens + output_tokens + 3, (await used("g")) > 3, true);
await fill("full-h");
found.push((await client("full-h").messages.create(message)).content.length);
const never = await client("i").messages.create({ ...message, max_tokens: 2_000 }).catch((error: unknown) => error);
found.push(never instanceof Anthropic.RateLimitError && never.message);
${END}`;

/** @param version of the specification of the package's own test models */
const sdk = (version: 2 | 3 | 4) => `
import { generateText, streamText, wrapLanguageModel } from "ai";
import { MockLanguageModelV${version}, simulateReadableStream } from "ai/test";
${START}
const usage = ${
  version === 2
    ? "{ inputTokens: 20, outputTokens: 3, totalTokens: 23 }"
    : "{ inputTokens: { total: 20, noCache: 20, cacheRead: undefined, cacheWrite: undefined }, outputTokens: { total: 3, text: 3, reasoning: undefined } }"
};
const finishReason = ${version === 2 ? '"stop" as const' : '{ unified: "stop" as const, raw: undefined }'};
const chunks = [
  { type: "text-start" as const, id: "1" },
  { type: "text-delta" as const, id: "1", delta: "word word word " },
  { type: "text-end" as const, id: "1" },
  { type: "finish" as const, usage, finishReason },
];
const bare = () =>
  new MockLanguageModelV${version}({
    doGenerate: async () => ({ content: [{ type: "text", text: "word word word " }], usage, finishReason, warnings: [] }),
    doStream: async () => ({ stream: simulateReadableStream({ chunks }) }),
  });
const model = (key: string) => wrapLanguageModel({ model: bare(), middleware: budgetMiddleware(options(key)) });
const whole = await generateText({ model: model("j${version}"), prompt });
const streamed = await streamText({ model: model("k${version}"), prompt }).text;
found.push(whole.text, streamed, streamed);
found.push((await used("j${version}")) === 23, (await used("k${version}")) === 23, true);
await fill("full-${version}");
found.push((await generateText({ model: model("full-${version}"), prompt })).text.length > 0 ? 1 : 0);
const never = await generateText({ model: model("m${version}"), prompt, maxOutputTokens: 2_000 }).catch((error: unknown) => error);
found.push(never instanceof Error && never.message);
${END}`;

test.each([
  ["openai@7", OPENAI],
  ["@anthropic-ai/sdk@1", ANTHROPIC],
  ["ai@5", sdk(2)],
  ["ai@6", sdk(3)],
  ["ai@7", sdk(4)],
])(
  "%s: strict types, settled usage, a repeated call in its time, and an error that says why",
  async (name, program) => {
    const project = projectWith([name, "@types/node@24"]);
    if (project === undefined) return;
    project.write("index.ts", program);
    expect(typesOf(project, NODE)).toBe("");
    const args = [
      "--experimental-strip-types",
      "index.ts",
      served.url,
      TOKENS.full,
      provider.url,
      promptText({}),
    ];
    const { stdout } = await promisify(execFile)(process.execPath, args, {
      cwd: project.folder,
      timeout: 120_000,
    });
    const words = "word word word ";
    expect(JSON.parse(stdout.trim().split("\n").at(-1) ?? "")).toEqual([
      words,
      words,
      words,
      true,
      true,
      true,
      1,
      expect.stringContaining("does not admit the request: it would never pass"),
    ]);
  },
);
