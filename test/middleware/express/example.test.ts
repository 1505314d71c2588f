/** The examples of docs/middleware.md run as they stand there, over a limiter in memory. */
import { createServer, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, afterEach, beforeAll, expect, test, vi } from "vitest";
import { memoryLimiter } from "../../../package/testing.ts";
import { readPages, runExample } from "../../support/docs.ts";

const POLICIES = {
  api: { algorithm: "token-bucket", limit: 1, window: "1m" },
  export: { algorithm: "concurrency", limit: 1 },
};

let server: Server | undefined;
beforeAll(() => vi.stubEnv("KEY_SECRET", "a secret of the tests"));
afterAll(() => void vi.unstubAllEnvs());
afterEach(() => void server?.close());

/** Serves the example of the page that imports a module. */
async function serveExample(from: string) {
  const limiter = memoryLimiter({ policies: POLICIES });
  const page = readPages().find(({ path }) => path === "docs/middleware.md");
  const imported = `from "${from}"`;
  const example = page?.fences.find(
    ({ code }) => code.includes('from "weir-limiter/express"') && code.includes(imported),
  );
  const made = (await runExample(from.replace(":", "-"), example?.code ?? "", limiter)) as {
    readonly server?: Server;
    readonly app?: RequestListener;
  };
  const started = made.server ?? createServer(made.app);
  server = started;
  await new Promise<void>((done) => void started.listen(0, "127.0.0.1", done));
  const url = `http://127.0.0.1:${(started.address() as AddressInfo).port}/`;
  /** What a caller is answered. */
  const answered = async (key: string): Promise<readonly [number, string]> => {
    const response = await fetch(url, { headers: { "x-api-key": key } });
    return [response.status, await response.text()];
  };
  return { limiter, answered };
}

test.each([
  ["node:http", "ok"],
  ["express", '{"left":0}'],
])("%s: it serves what the limiter admits, and no more", async (from, body) => {
  const { answered } = await serveExample(from);
  expect(await answered("a")).toEqual([200, body]);
  expect((await answered("a"))[0]).toBe(429);
  expect((await answered("b"))[0]).toBe(200);
});

test.each([
  ["node:http", "limit", /^something went wrong$/],
  ["express", "limit", /the token is none/],
  ["express", "acquire", /the token is none/],
] as const)("%s: it serves nothing when the limiter refuses: %s", async (from, method, body) => {
  const { limiter, answered } = await serveExample(from);
  const logged = vi.spyOn(console, "error").mockImplementation(() => undefined);
  vi.spyOn(limiter, method).mockRejectedValueOnce(new Error("the token is none"));
  const [status, text] = await answered("refused");
  expect(status).toBe(500);
  expect(text).toMatch(body);
  // The example prints it. Express does, but not in a test.
  expect(logged.mock.calls.length).toBe(from === "node:http" ? 1 : 0);
  vi.restoreAllMocks();
});

test("express: the slot is free after the answer", async () => {
  const { limiter, answered } = await serveExample("express");
  await answered("a");
  expect(limiter.asked("acquire")).toHaveLength(1);
  await vi.waitFor(async () => expect((await limiter.peek({ policy: "export", key: "all" })).leases).toBe(0));
});
