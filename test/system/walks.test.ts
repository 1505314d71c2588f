/** How many files a call runs through at most. They are what one has to read to follow it. */
import { rmSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { buildMarked, WALK_PATH } from "../support/walks.ts";

/** All keys have one object, so that none is made while a call is followed. */
const POLICIES = { api: { algorithm: "token-bucket", limit: 100_000, window: "1s", objects: 1 } };
const TOKEN = TOKENS.full;
const build = buildMarked();
const state = makeState();
/** Where the marks of code in this process go. */
const here = globalThis as { walk?: string[] };
let serving: Serving;
beforeAll(async () => {
  serving = await serveBundle(state, POLICIES, { main: build.main, hasDeploymentObjects: true });
});
afterAll(async () => {
  await serving.stop("SIGKILL");
  removeState(state);
  rmSync(build.folder, { recursive: true });
});

/** The files that ran since this was asked last. */
async function walked(): Promise<ReadonlySet<string>> {
  const response = await fetch(serving.url + WALK_PATH);
  return new Set([...((await response.json()) as string[]), ...(here.walk?.splice(0) ?? [])]);
}

async function call(
  method: string,
  path: string,
  body: object,
  token: string = TOKEN,
): Promise<{ source?: string }> {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const response = await fetch(serving.url + path, { method, headers, body: JSON.stringify(body) });
  expect(response.status).toBeLessThan(300);
  return (await response.json()) as { source?: string };
}

/**
 * Makes a call ten times, and says which files the shortest of the last five ran through: the first ones load what is
 * loaded once, and now and then one refills or reports.
 */
async function walkOf(make: (time: number) => Promise<unknown>): Promise<ReadonlySet<string>> {
  let shortest: ReadonlySet<string> = new Set();
  for (let time = 0; time < 10; time += 1) {
    await make(time);
    const files = await walked();
    if (time === 5 || (time > 5 && files.size < shortest.size)) shortest = files;
  }
  if (process.env["WALKS"] !== undefined) console.log([...shortest].toSorted().join("\n"));
  return shortest;
}

test("a hot limit: 18 files", async () => {
  const ask = async () => await call("POST", "/v1/limit", { policy: "api", key: "hot" });
  await expect.poll(async () => (await ask()).source, { timeout: 20_000 }).toBe("isolate");
  expect((await walkOf(ask)).size).toBeLessThanOrEqual(18);
});

test("a cold limit: 44 files", async () => {
  const files = await walkOf(
    async (time) => await call("POST", "/v1/limit", { policy: "api", key: `cold-${time}` }),
  );
  expect(files.size).toBeLessThanOrEqual(44);
});

test("a reservation of a client: 62 files", async () => {
  const { createLimiter } = (await import(
    pathToFileURL(join(build.folder, "package/client.ts")).href
  )) as typeof import("../../package/client.ts");
  await using limiter = createLimiter({ url: serving.url, token: TOKEN });
  here.walk = [];
  const files = await walkOf(async (time) => {
    await limiter.limit({ policy: "api", key: `client-${time}` });
    await limiter.limit({ policy: "api", key: `client-${time}` });
    await limiter.limit({ policy: "api", key: `client-${time}` });
  });
  delete here.walk;
  expect(files.size).toBeLessThanOrEqual(62);
});

test("an override's write: 23 files", async () => {
  const files = await walkOf(
    async (time) => await call("PUT", `/v1/policies/api/overrides/key-${time}`, { limit: 5 }, TOKENS.admin),
  );
  expect(files.size).toBeLessThanOrEqual(23);
});
