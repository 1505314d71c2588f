/** The example of docs/middleware.md runs as it stands there, over a limiter in memory. */
import { mkdirSync, writeFileSync } from "node:fs";
import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { memoryLimiter } from "../../../package/testing.ts";
import { readPages } from "../../support/docs.ts";

/** Where the example is run; git ignores it. */
const FOLDER = join(import.meta.dirname, "../../../dist/run-examples");
const limiter = memoryLimiter({
  policies: {
    api: { algorithm: "token-bucket", limit: 1, window: "1m" },
    export: { algorithm: "concurrency", limit: 1 },
  },
});

let server: Server | undefined;
let url: string;
beforeAll(async () => {
  vi.doMock("weir-limiter/client", () => ({ createLimiter: () => limiter }));
  const page = readPages().find(({ path }) => path === "docs/middleware.md");
  const example = page?.fences.find(({ code }) => code.includes('from "weir-limiter/express"'));
  const file = join(FOLDER, "express.ts");
  mkdirSync(FOLDER, { recursive: true });
  writeFileSync(file, example?.code ?? "");
  const { server: started } = (await import(file)) as { readonly server: Server };
  server = started;
  await new Promise<void>((done) => void started.listen(0, "127.0.0.1", done));
  url = `http://127.0.0.1:${(started.address() as AddressInfo).port}/`;
});
afterAll(() => void server?.close());

/** What a caller is answered. */
async function answered(key: string): Promise<readonly [number, string]> {
  const response = await fetch(url, { headers: { "x-api-key": key } });
  return [response.status, await response.text()];
}

test("it serves what the limiter admits, and no more", async () => {
  expect(await answered("a")).toEqual([200, "ok"]);
  expect((await answered("a"))[0]).toBe(429);
  expect((await answered("b"))[0]).toBe(200);
});

test.each(["limit", "acquire"] as const)("it serves nothing when the limiter refuses: %s", async (method) => {
  const refused = new Error("the token is none");
  const told = vi.spyOn(console, "error").mockImplementation(() => undefined);
  const spy = vi.spyOn(limiter, method).mockRejectedValueOnce(refused);
  const [status, text] = await answered(`refused-${method}`);
  expect([status, text]).toEqual([500, "something went wrong"]);
  expect(told).toHaveBeenCalledWith(refused);
  spy.mockRestore();
  told.mockRestore();
});
