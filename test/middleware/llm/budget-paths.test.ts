/** Which requests a budget covers: those whose use is known. A POST to any other path is refused, or passes by name. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { budgetFetch, type BudgetFetchOptions } from "../../../package/llm.ts";
import { manualClock, memoryLimiter } from "../../../package/testing.ts";
import { eventually } from "../../support/eventually.ts";
import { type Provider, startProvider } from "../../support/model-provider.ts";

const POLICIES = { tokens: { algorithm: "sliding-log", limit: 10_000, window: "30d", unit: "tokens" } };
let provider: Provider;
beforeAll(async () => {
  provider = await startProvider();
});
afterAll(() => provider.stop());

function start(options: Partial<BudgetFetchOptions> = {}) {
  const clock = manualClock();
  const limiter = memoryLimiter({ policies: POLICIES, clock });
  const budgets = [{ policy: "tokens", key: "k" }];
  const asking = budgetFetch({ limiter, budgets, maxOutputTokens: 100, time: clock, ...options });
  const post = (path: string, fields: object = { model: "gpt" }) =>
    asking(new URL(path, provider.url), { method: "POST", body: JSON.stringify(fields) });
  const used = async () => {
    const { limit, remaining = 0, holds } = await limiter.peek({ policy: "tokens", key: "k" });
    return { holds, used: limit - remaining };
  };
  return { asking, post, used };
}

const KNOWN = [
  "/v1/chat/completions",
  "/openai/deployments/gpt/chat/completions?api-version=1",
  "/v1/completions",
  "/v1/embeddings",
  "/v1/responses",
  "/v1/messages",
  "/anthropic/messages",
];
const NO_TOKENS = [
  "/v1/files",
  "/v1/uploads",
  "/v1/uploads/upload_1/parts",
  "/v1/images/generations",
  "/openai/deployments/dall-e-3/images/edits",
  "/v1/batches",
  "/v1/batches/batch_1/cancel",
  "/v1/messages/batches",
  "/v1/messages/count_tokens",
  "/v1/responses/input_tokens",
  "/v1/responses/resp_1/cancel",
  "/v1/moderations",
  "/v1/threads/t/messages",
  "/v1/conversations/c/items",
];
const UNKNOWN = [
  "/v1/audio/speech",
  "/v1beta/models/gemini:generateContent",
  "/model/x/invoke",
  "/v1/threads/t/runs",
  "/v1/responses/compact",
  "/v1/chat/completions%2F",
  "/v1/chat/completions%3F/files",
  "/v1/chat/completions;/files",
  "/",
];
/** The same path as servers may take it. */
const SPELLINGS: readonly ((path: string) => string)[] = [
  (path) => path,
  (path) => path.replace(/(?=\?|$)/, "/"),
  (path) => path.replace(/(?=\?|$)/, "//"),
  (path) => path.replaceAll("/", "//").replace("//", "/"),
  (path) => path.toUpperCase(),
  (path) => path.replace(/(?=\?|$)/, ";a=b"),
  (path) => path.replace(/(?=\/[^/]*$)/, ";a=b;c"),
];

describe.each(KNOWN)("POST %s", (path) => {
  test.each(SPELLINGS.map((spell) => spell(path)))("is held and settled as %s", async (spelt) => {
    const { post, used } = start();
    const before = provider.bodies.length;
    const response = await post(spelt);
    expect([response.status, provider.bodies.length]).toEqual([200, before + 1]);
    expect(await used()).toMatchObject({ holds: 1 });
    await response.text();
    await eventually(async () => expect(await used()).toMatchObject({ holds: 0 }));
    expect((await used()).used).toBeGreaterThan(0);
  });

  test("is never asked about: it cannot be let past its budget", async () => {
    const { post, used } = start({ unbudgeted: () => true });
    await post(path);
    expect(await used()).toMatchObject({ holds: 1 });
  });
});

test.each(NO_TOKENS.flatMap((path) => [path, `${path}/`, path.toUpperCase()]))(
  "POST %s passes as it is, and nothing is held",
  async (path) => {
    const { post, used } = start();
    expect((await post(path, { any: "body" })).status).toBe(200);
    expect([provider.bodies.at(-1), await used()]).toEqual([{ any: "body" }, { holds: 0, used: 0 }]);
  },
);

describe.each(UNKNOWN)("POST %s, whose use is not known,", (path) => {
  test("is refused, with its path and the option that lets it pass, and not sent", async () => {
    const { post, used } = start({ unbudgeted: ({ pathname }) => pathname === "/elsewhere" });
    const before = provider.bodies.length;
    const response = await post(path);
    expect([response.status, response.headers.get("x-should-retry")]).toEqual([400, "false"]);
    const { error } = (await response.json()) as { error: { type: string; message: string } };
    expect(error.type).toBe("invalid_request_error");
    expect(error.message).toContain(`POST ${new URL(path, provider.url).pathname} `);
    expect(error.message).toContain("unbudgeted");
    expect([provider.bodies.length, await used()]).toEqual([before, { holds: 0, used: 0 }]);
  });

  test("passes as it is where the option lets it", async () => {
    const { post, used } = start({ unbudgeted: ({ pathname }) => path.startsWith(pathname) });
    expect((await post(path, { any: "body" })).status).toBe(200);
    expect([provider.bodies.at(-1), await used()]).toEqual([{ any: "body" }, { holds: 0, used: 0 }]);
  });
});

test("a promise is no answer of the option: what it would say is not waited for", async () => {
  const { post } = start({ unbudgeted: (async () => true) as never });
  expect((await post("/v1/audio/speech")).status).toBe(400);
});

test("an option that is no function is refused when it is made", () => {
  expect(() => start({ unbudgeted: ["/v1/audio/speech"] as never })).toThrow(
    "unbudgeted is an array of 1: must be a function of the URL",
  );
});

test("what is not a POST passes", async () => {
  const { asking, used } = start({ fetch: async () => new Response("models") });
  for (const method of ["GET", "DELETE"])
    expect((await asking("https://api.example/v1/models", { method })).status).toBe(200);
  expect(await used()).toEqual({ holds: 0, used: 0 });
});
