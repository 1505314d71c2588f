/**
 * The storage of the catalog, of the statistics, or of the keys is full: on file systems of their own, which only root may make. For
 * others these tests are left out.
 */
import { spawnSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { metricDecisions, readMetrics, sumOf } from "../support/stats-traffic.ts";

const SIZE = 400_000;
const policies = {
  plan: { algorithm: "token-bucket", limit: 100, window: "30d", objects: 1, deadlineMs: 10_000 },
};

const state = makeState();
let folder: string;
let serving: Serving | undefined;
afterEach(async () => {
  await serving?.stop("SIGKILL");
  serving = undefined;
  spawnSync("umount", [folder]);
  removeState(state);
});

/** Serves with the storage of one class on a small file system of its own; false: none can be made here. */
async function startOn(className: string): Promise<boolean> {
  folder = join(state, `weir-${className}`);
  mkdirSync(folder, { recursive: true });
  const { status } = spawnSync("mount", ["-t", "tmpfs", "-o", `size=${SIZE}`, "tmpfs", folder]);
  if (status !== 0) {
    console.warn("no file system can be made here: it was left out");
    return false;
  }
  serving = await serveBundle(state, policies, { isolates: 2, onOutput: () => undefined });
  return true;
}

/** Takes all the room that is left. */
function fill(): void {
  try {
    writeFileSync(join(folder, "filler"), new Uint8Array(SIZE));
  } catch {
    // What fitted is there.
  }
}
const makeRoom = () => rmSync(join(folder, "filler"));

async function call(isolate: number, method: string, path: string, body?: object) {
  const response = await fetch(`${serving?.urls[isolate] ?? ""}${path}`, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    ...(body && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

const put = (pattern: string, limit = 5) =>
  call(0, "PUT", `/v1/policies/plan/overrides/${pattern}`, { limit, burst: limit, note: "x".repeat(400) });
const limit = (isolate: number, key: string) => call(isolate, "POST", "/v1/limit", { policy: "plan", key });

test("a catalog without room refuses a write as a whole and says so; what is in force stays, and calls go on", async () => {
  if (!(await startOn("CatalogObject"))) return;
  expect(await put("kept")).toMatchObject({ status: 200 });
  const before = await call(0, "GET", "/v1/catalog");
  fill();
  const overrides = Object.fromEntries(
    Array.from({ length: 500 }, (_, each) => [`new:${each}`, { multiply: 2 }]),
  );
  for (const write of [
    () => put("new"),
    () => put("kept", 6),
    () => call(0, "PUT", "/v1/catalog", { policies: {}, overrides: { plan: overrides }, tokens: {} }),
    () => call(0, "POST", "/v1/tokens", { name: "new", scopes: ["limit"] }),
  ])
    expect(await write()).toMatchObject({
      status: 503,
      body: { detail: expect.stringContaining("is full, so nothing was changed") as string },
    });
  expect(await call(0, "GET", "/v1/catalog")).toEqual(before);
  expect((await call(1, "GET", "/v1/audit")).body["entries"]).toHaveLength(1);
  for (const isolate of [0, 1]) {
    expect((await limit(isolate, "kept")).body).toMatchObject({ success: true, limit: 5, override: "kept" });
    expect((await limit(isolate, "new")).body).toMatchObject({ success: true, limit: 100 });
  }
  makeRoom();
  expect(await put("new")).toMatchObject({ status: 200, body: { version: 2 } });
  expect((await limit(0, "new")).body).toMatchObject({ limit: 5 });
});

test("statistics without room say what they know, and count afterwards what came meanwhile, once", async () => {
  if (!(await startOn("StatsObject"))) return;
  const url = serving?.url ?? "";
  const ask = async (calls: number) => {
    for (let each = 0; each < calls; each += 1)
      expect((await limit(0, `key:${each}`)).body).toMatchObject({ success: true });
  };
  await ask(3);
  await serving?.rest();
  const known = await metricDecisions(url);
  expect(sumOf(known)).toBe(3);
  fill();
  await ask(4);
  // Isolates send all that they have counted, and are refused.
  await serving?.rest();
  expect(await metricDecisions(url)).toEqual(known);
  makeRoom();
  await ask(2);
  for (let times = 0; times < 2; times += 1) {
    await serving?.rest();
    expect(sumOf(await metricDecisions(url))).toBe(9);
  }
  expect(await readMetrics(url)).toContain("weir_decisions_total");
});

test("keys without room admit nothing that is not stored, lose nothing that was, and go on afterwards", async () => {
  if (!(await startOn("LimiterObject"))) return;
  let acknowledged = 0;
  const take = async () => {
    const idempotencyKey = `order-${acknowledged}`;
    const answers = await Promise.all([
      call(0, "POST", "/v1/limit", { policy: "plan", key: "a", idempotencyKey }),
      limit(0, "a"),
      limit(0, "b"),
    ]);
    const ofA = answers.slice(0, 2).filter(({ body }) => body["success"] === true).length;
    acknowledged += ofA;
    return ofA;
  };
  const remaining = async () => Number((await call(0, "GET", "/v1/policies/plan/keys/a")).body["remaining"]);
  for (let each = 0; each < 5; each += 1) expect(await take()).toBe(2);
  expect(await remaining()).toBe(100 - acknowledged);
  fill();
  let refused = 0;
  for (let each = 0; each < 10; each += 1) refused += 2 - (await take());
  expect(refused).toBeGreaterThan(0);
  makeRoom();
  const left = await remaining();
  // A call that was not answered may have been written.
  expect(left).toBeLessThanOrEqual(100 - acknowledged);
  expect(left).toBeGreaterThanOrEqual(100 - acknowledged - refused);
  acknowledged = 1_000;
  expect(await take()).toBe(2);
  expect(await remaining()).toBe(left - 2);
  await serving?.stop("SIGKILL");
  serving = await serveBundle(state, policies, { isolates: 2, onOutput: () => undefined });
  expect(await remaining()).toBe(left - 2);
});
