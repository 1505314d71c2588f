/** What changes at run time, over HTTP, from isolates of their own, across kills, and from a file. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import type { Decision } from "../../core/protocol/decision.ts";
import { createLimiter } from "../../package/client.ts";
import { ROOT } from "../../scripts/project-folder.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const WINDOW_MS = 2_592_000_000;
const POLICIES = {
  plan: { algorithm: "token-bucket", limit: 100, window: WINDOW_MS, deadlineMs: 10_000 },
  hot: { algorithm: "token-bucket", limit: 100_000, window: WINDOW_MS, deadlineMs: 10_000 },
  shared: { algorithm: "token-bucket", limit: 100, window: WINDOW_MS, objects: 1, deadlineMs: 10_000 },
};
/** Between two calls of one caller. */
const PAUSE_MS = depth(50, 5);
const folder = mkdtempSync(join(tmpdir(), "weir-catalog-"));
const state = makeState();
let serving: Serving;

beforeAll(async () => {
  serving = await serveBundle(state, POLICIES, { isolates: 3 });
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
  rmSync(folder, { recursive: true, force: true });
});

async function call(isolate: number, method: string, path: string, body?: object) {
  const response = await fetch(`${serving.urls[isolate] ?? ""}${path}`, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    ...(body && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, body: (text === "" ? {} : JSON.parse(text)) as Record<string, unknown> };
}

const limit = async (isolate: number, policy: string, key: string, cost = 1) =>
  (await call(isolate, "POST", "/v1/limit", { policy, key, cost })).body;
const overrideAt = (policy: string, pattern: string) =>
  `/v1/policies/${policy}/overrides/${encodeURIComponent(pattern)}`;

/** Every isolate is asked without a pause until all say so: within 10 s, and a slow machine has more. */
const everywhere = (policy: string, key: string, expected: object) =>
  vi.waitFor(
    async () => {
      for (const isolate of [0, 1, 2]) expect(await limit(isolate, policy, key, 0)).toMatchObject(expected);
    },
    { timeout: 30_000, interval: 200 },
  );

test("an override is in force in every isolate, also one that decides the key by itself, and so is its end", async () => {
  const key = "customer:7";
  for (let each = 0; each < 40; each += 1) for (const isolate of [0, 1, 2]) await limit(isolate, "hot", key);
  await call(0, "PUT", overrideAt("hot", "customer:*"), { blocked: true });
  await everywhere("hot", key, { success: false, reason: "blocked", override: "customer:*" });
  await call(1, "DELETE", overrideAt("hot", "customer:*"));
  await everywhere("hot", key, { success: true, limit: 100_000 });
  const { remaining } = await limit(0, "hot", key, 0);
  expect(remaining).toBeLessThanOrEqual(100_000 - 120);
});

test("an override begins at its instant in every isolate and client, however many units these have", async () => {
  const key = "customer:9";
  const clients = [0, 1, 2].map((isolate) =>
    createLimiter({ url: serving.urls[isolate] ?? "", token: TOKENS.full, deadlineMs: 10_000 }),
  );
  const startsAtMs = Date.now() + 12_000;
  const later = { limit: 7, startsAt: new Date(startsAtMs).toISOString() };
  expect((await call(0, "PUT", overrideAt("hot", key), later)).status).toBe(200);
  const counts = { here: 0, before: 0, after: 0 };
  const note = (sentAtMs: number, { success, source }: Pick<Decision, "success" | "source">) => {
    if (success && sentAtMs >= startsAtMs) counts.after += 1;
    else if (success) counts.before += 1;
    if (success && source === "isolate") counts.here += 1;
  };
  const calling = async (decide: () => Promise<Pick<Decision, "success" | "source">>) => {
    for (let nowMs = Date.now(); nowMs < startsAtMs + 4_000; nowMs = Date.now()) {
      note(nowMs, await decide());
      await new Promise((done) => setTimeout(done, PAUSE_MS));
    }
  };
  await Promise.all([
    ...clients.map((client) => calling(() => client.limit({ policy: "hot", key }))),
    ...[0, 1, 2].map((isolate) =>
      calling(async () => (await limit(isolate, "hot", key)) as unknown as Decision),
    ),
  ]);
  expect(counts.here).toBeGreaterThan(counts.before / 2);
  // Units that were used before count, so the bucket that shrinks begins empty.
  expect(counts.after).toBeLessThanOrEqual(7);
  // Also denials that clients repeat by themselves.
  const denials: Decision[] = [];
  for (const client of [...clients, ...clients, ...clients])
    denials.push(await client.limit({ policy: "hot", key }));
  expect(denials.map(({ success, override }) => ({ success, override }))).toEqual(
    denials.map(() => ({ success: false, override: key })),
  );
  expect(denials.map(({ source }) => source)).toContain("isolate");
  await Promise.all(clients.map((client) => client.close()));
  // Nor does it owe what clients and isolates had reserved: one unit is back after a seventh of the window.
  const { retryAfterMs } = (await limit(0, "hot", key)) as unknown as Decision;
  expect(retryAfterMs).toBeLessThanOrEqual(Math.ceil(WINDOW_MS / 7));
});

test("a hold of a bucket that shrinks leaves no debt, also when the limiter was killed meanwhile", async () => {
  const hold = async (key: string) =>
    (await call(0, "POST", "/v1/holds", { policy: "plan", key, units: 90, ttlMs: 60_000 })).body["hold"] as {
      id: string;
    };
  const settle = async (id: string, used: number) =>
    expect((await call(1, "POST", `/v1/holds/${id}/settle`, { used })).status).toBe(200);
  const keys = ["shrunk", "overrun"] as const;
  const [held, overrun] = [await hold(keys[0]), await hold(keys[1])];
  for (const key of keys) await call(0, "PUT", overrideAt("plan", key), { limit: 10 });
  await serving.stop("SIGKILL");
  serving = await serveBundle(state, POLICIES, { isolates: 3 });
  expect(await limit(2, "plan", "shrunk")).toMatchObject({ success: false, limit: 10 });
  await settle(held.id, 90);
  const waitMs = async (key: string) =>
    ((await limit(0, "plan", key)) as unknown as Decision).retryAfterMs ?? Infinity;
  expect(await waitMs("shrunk")).toBeLessThanOrEqual(WINDOW_MS / 10);
  // What was used beyond the hold is owed.
  await settle(overrun.id, 95);
  expect(Math.ceil((await waitMs("overrun")) / (WINDOW_MS / 10))).toBe(6);
  // And all counts when the bucket grows again.
  await call(0, "DELETE", overrideAt("plan", "shrunk"));
  expect(await limit(0, "plan", "shrunk", 0)).toMatchObject({ limit: 100, remaining: 10 });
});

test("what was changed outlives SIGKILL, and what was consumed stays consumed", async () => {
  await limit(0, "plan", "killed", 60);
  await call(0, "PUT", overrideAt("plan", "killed"), { limit: 200, burst: 200 });
  await call(0, "PUT", "/v1/policies/made", { algorithm: "sliding-log", limit: 10, window: "30d" });
  expect(await limit(0, "plan", "killed", 20)).toMatchObject({ limit: 200, remaining: 120 });
  expect(await limit(0, "made", "killed", 4)).toMatchObject({ remaining: 6 });
  await serving.stop("SIGKILL");
  serving = await serveBundle(state, POLICIES, { isolates: 3 });
  expect(await limit(2, "plan", "killed", 0)).toMatchObject({
    limit: 200,
    remaining: 120,
    override: "killed",
  });
  expect(await limit(1, "made", "killed", 0)).toMatchObject({ limit: 10, remaining: 6 });
  await call(0, "DELETE", overrideAt("plan", "killed"));
  expect(await limit(0, "plan", "killed", 0)).toMatchObject({ limit: 100, remaining: 20 });
});

test("two that change one thing at once: one is told, and nothing is half done", async () => {
  const path = overrideAt("plan", "raced");
  const put = (figure: number) =>
    fetch(`${serving.urls[figure % 3] ?? ""}${path}`, {
      method: "PUT",
      headers: {
        authorization: `Bearer ${TOKENS.full}`,
        "content-type": "application/json",
        "if-match": '"0"',
      },
      body: JSON.stringify({ limit: figure, burst: figure }),
    });
  const statuses = await Promise.all(
    Array.from({ length: 9 }, (_, each) => put(10 + each).then((got) => got.status)),
  );
  expect(statuses.toSorted((a, b) => a - b)).toEqual([200, ...Array.from({ length: 8 }, () => 412)]);
  const { body } = await call(0, "GET", path);
  expect(body["limit"]).toBe(body["burst"]);
});

test("keys that share an object with one whose override is tighter are decided by their own policy", async () => {
  await call(0, "PUT", overrideAt("shared", "tight"), { limit: 1, burst: 1 });
  const keys = Array.from({ length: 40 }, (_, each) => (each % 2 === 0 ? "tight" : `free:${each}`));
  const told = await Promise.all(keys.map((key) => limit(0, "shared", key)));
  for (const [index, key] of keys.entries())
    if (key !== "tight") expect(told[index]).toMatchObject({ success: true, limit: 100 });
  expect(told.filter((_, index) => keys[index] === "tight").filter(({ success }) => success)).toHaveLength(1);
  expect(await limit(1, "shared", "free:1", 0)).toMatchObject({ limit: 100, remaining: 99 });
});

test("all of it lives in a file: pull, diff and push", async () => {
  const run = (...args: string[]) =>
    spawnSync(
      process.execPath,
      [join(ROOT, "scripts", "with-packages.mjs"), "scripts/policies.ts", ...args],
      {
        cwd: ROOT,
        encoding: "utf8",
        env: { ...process.env, TOKEN: TOKENS.full, INIT_CWD: folder },
      },
    );
  const url = serving.urls[0] ?? "";
  await call(0, "PUT", overrideAt("plan", "filed"), { multiply: 3 });
  const planned = { algorithm: "token-bucket", limit: 5, window: "1s" };
  await call(0, "PUT", "/v1/policies/planned", {
    ...planned,
    plans: { pro: { limit: 9 }, max: { limit: 20 } },
  });
  expect(run("pull", url)).toMatchObject({
    status: 0,
    stdout: expect.stringContaining("overrides") as string,
  });
  const file = join(folder, "catalog.json");
  const document = JSON.parse(readFileSync(file, "utf8")) as {
    overrides: { plan: Record<string, object> };
    policies: Record<string, object>;
  };
  expect(document.overrides.plan["filed"]).toEqual({ multiply: 3 });
  expect(run("diff", url)).toMatchObject({ status: 0, stdout: "nothing differs\n" });
  document.overrides.plan["filed"] = { multiply: 4 };
  writeFileSync(file, JSON.stringify(document));
  const told = '~ override plan filed: {"multiply":3} -> {"multiply":4}';
  expect(run("diff", url)).toMatchObject({ status: 1, stdout: expect.stringContaining(told) as string });
  document.policies["planned"] = { ...planned, plans: { max: { limit: 20 } } };
  writeFileSync(file, JSON.stringify(document));
  const gone = "\n! policy planned: calls that name the plan pro are refused\n";
  expect(run("diff", url)).toMatchObject({ status: 1, stdout: expect.stringContaining(gone) as string });
  expect(run("push", url)).toMatchObject({ status: 0, stdout: expect.stringContaining("10 s") as string });
  expect((await call(0, "GET", overrideAt("plan", "filed"))).body).toMatchObject({ multiply: 4 });
  document.overrides.plan["filed"] = { multiply: -4 };
  writeFileSync(file, JSON.stringify(document));
  expect(run("push", url)).toMatchObject({
    status: 2,
    stderr: expect.stringContaining("multiply is -4") as string,
  });
  const { status, stderr } = run("pull", "https://weir.invalid");
  expect([status, stderr]).toEqual([
    2,
    expect.stringMatching(/^https:\/\/weir\.invalid does not answer: \w/),
  ]);
});
