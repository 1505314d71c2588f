/** Processes that lease slots of one hot key by their own clients, over real HTTP to a real worker. */
import { build } from "esbuild";
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { BUNDLING } from "../../scripts/package-build.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const LIMIT = 20;
const PAIRS = 1_000;
const HELD = 4;
/** Were a slot kept until then, no test would see it free. */
const ttl = 3_600_000;
const policies = { hot: { algorithm: "concurrency", limit: LIMIT, ttl, deadlineMs: 5_000 } };
const PATIENT = { timeout: 60_000 };

const state = makeState();
const program = join(state, "process.js");
const running: ChildProcess[] = [];
let serving: Serving;
beforeAll(async () => {
  const entry = join(import.meta.dirname, "..", "support", "lease-process.ts");
  // As the package's entry is bundled.
  await build({ ...BUNDLING, entryPoints: [entry], outfile: program });
  serving = await serveBundle(join(state, "objects"), policies);
}, 60_000);
afterAll(async () => {
  for (const child of running) child.kill("SIGKILL");
  await serving.stop();
  removeState(state);
});

interface Running {
  readonly child: ChildProcess;
  readonly lines: string[];
  readonly isOver: Promise<unknown>;
}

function start(key: string, pairs: number, held: number): Running {
  const args = [program, serving.urls[0] ?? "", TOKENS.full, "hot", key, String(pairs), String(held)];
  const child = spawn(process.execPath, args, { stdio: ["pipe", "pipe", "inherit"] });
  running.push(child);
  const lines: string[] = [];
  let rest = "";
  child.stdout.on("data", (data: Buffer) => {
    const all = (rest + data.toString()).split("\n");
    rest = all.pop() ?? "";
    lines.push(...all);
  });
  return { child, lines, isOver: new Promise((done) => child.on("close", done)) };
}

/** The most leases at one instant. */
function mostAtOnce(lines: readonly string[]): number {
  const times = lines.filter((line) => /^\d+ \d+$/.test(line)).map((line) => line.split(" ").map(Number));
  const changes = times.flatMap(([begin = 0, end = 0]) => [[begin, 1] as const, [end, -1] as const]);
  let [now, most] = [0, 0];
  for (const [, by] of changes.toSorted((a, b) => a[0] - b[0] || a[1] - b[1])) {
    now += by;
    most = Math.max(most, now);
  }
  return most;
}

async function outstandingOf(key: string): Promise<number> {
  const headers = { authorization: `Bearer ${TOKENS.full}` };
  const response = await fetch(`${serving.urls[0]}/v1/policies/hot/keys/${key}`, { headers });
  const { outstanding } = (await response.json()) as { readonly outstanding: number };
  return outstanding;
}

async function acquired(key: string): Promise<boolean> {
  const headers = { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" };
  const body = JSON.stringify({ policy: "hot", key });
  const response = await fetch(`${serving.urls[0]}/v1/leases`, { method: "POST", headers, body });
  const { success } = (await response.json()) as { readonly success: boolean };
  return success;
}

test("two processes make 1,000 pairs each on a hot key, nearly all without a message", PATIENT, async () => {
  const both = [start("pairs", PAIRS, 0), start("pairs", PAIRS, 0)];
  await vi.waitUntil(() => both.every(({ lines }) => lines.some((line) => line.startsWith("{"))), PATIENT);
  for (const { child } of both) child.stdin?.end();
  await Promise.all(both.map(({ isOver }) => isOver));
  for (const { lines } of both) {
    const counts = JSON.parse(lines.find((line) => line.startsWith("{")) ?? "{}") as Record<string, number>;
    console.info(JSON.stringify(counts));
    expect(counts).toMatchObject({ denied: 0, lost: 0 });
    expect(counts["pairs"]).toBeGreaterThanOrEqual(PAIRS);
    expect(counts["here"]).toBeGreaterThan(0.9 * PAIRS);
    expect(counts["requests"]).toBeLessThan(0.2 * PAIRS);
  }
  expect(mostAtOnce(both.flatMap(({ lines }) => lines))).toBeLessThanOrEqual(LIMIT);
  // A closed limiter has given its slots back.
  expect(await outstandingOf("pairs")).toBe(0);
});

test(
  "the slots of a killed process are free when its time ends, long before its leases would",
  PATIENT,
  async () => {
    const { child, lines, isOver } = start("killed", 0, HELD);
    await vi.waitUntil(() => lines.includes("holding"), PATIENT);
    expect(await outstandingOf("killed")).toBeGreaterThanOrEqual(HELD);
    child.kill("SIGKILL");
    await isOver;
    await vi.waitUntil(async () => (await outstandingOf("killed")) === 0, { timeout: 30_000, interval: 100 });
  },
);

test(
  "the slots of a killed process are free also when nobody has called since, and the object has left memory",
  PATIENT,
  async () => {
    const { child, lines, isOver } = start("quiet", 30, 7);
    await vi.waitUntil(() => lines.includes("holding"), PATIENT);
    child.kill("SIGKILL");
    await isOver;
    await new Promise((done) => setTimeout(done, 14_000));
    const leases = Array.from({ length: LIMIT }, () => acquired("quiet"));
    expect(await Promise.all(leases)).toEqual(leases.map(() => true));
  },
);

test("closing the limiter aborts the signals of its leases, and frees their slots", PATIENT, async () => {
  const { child, lines, isOver } = start("closed", 0, HELD);
  await vi.waitUntil(() => lines.includes("holding"), PATIENT);
  child.stdin?.end();
  await isOver;
  expect(JSON.parse(lines.at(-1) ?? "")).toEqual({ aborted: Array.from({ length: HELD }, () => true) });
  expect(await outstandingOf("closed")).toBe(0);
});
