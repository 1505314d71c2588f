/**
 * Processes that hold units of one key, beside isolates of the limiter's worker. Some are killed. The bound holds in
 * every interval, nearly all of it is admitted, and hardly anybody is asked.
 */
import { buildSync } from "esbuild";
import { spawn, type ChildProcess } from "node:child_process";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { worstExcess, type AdmittedCall } from "../support/interval-bound.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

/** A holder has a sixteenth of the burst at most. */
const RATE = { limit: 5_000, windowMs: 1_000, burst: 5_000 };
const HIGH = { limit: 500_000, windowMs: 1_000, burst: 500_000 };
const bucket = ({ limit, windowMs: window, burst }: typeof RATE) => ({
  algorithm: "token-bucket",
  limit,
  window,
  burst,
  deadlineMs: 5_000,
});
const policies = { hot: bucket(RATE), high: bucket(HIGH) };
const PROCESSES = 8;
const ISOLATES = 4;
// A second is the window, and every lifetime of a reservation is as long.
const LOAD_MS = depth(3_000, 12_000);
/** Of the process at a high rate. */
const CALLS = depth(30_000, 300_000);
const MIN_SHARE = 0.98;

const state = makeState();
const program = join(state, "caller.mjs");
let serving: Serving;
beforeAll(async () => {
  const entry = join(import.meta.dirname, "..", "support", "client-process.ts");
  buildSync({ entryPoints: [entry], outfile: program, bundle: true, format: "esm", platform: "node" });
  serving = await serveBundle(join(state, "objects"), policies, { isolates: ISOLATES });
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

interface Client {
  readonly child: ChildProcess;
  /** The first call has been admitted. */
  readonly isReady: Promise<unknown>;
  /** Tells it to stop. */
  readonly end: () => void;
  readonly admitted: AdmittedCall[];
  readonly counts: Promise<
    { readonly calls: number; readonly requests: number; readonly here: number } | undefined
  >;
}

function startClient(url: string, policy: string, paceMs: number): Client {
  const args = [program, url, TOKENS.full, policy, "key", String(paceMs)];
  const child = spawn(process.execPath, args, { stdio: ["pipe", "pipe", "inherit"] });
  const admitted: AdmittedCall[] = [];
  let rest = "";
  let last: string | undefined;
  child.stdout.on("data", (data: Buffer) => {
    const lines = (rest + data.toString()).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const [sentAtMs, receivedAtMs] = line.split(" ").map(Number);
      if (line.startsWith("{")) last = line;
      else admitted.push({ sentAtMs: sentAtMs ?? 0, receivedAtMs: receivedAtMs ?? 0, units: 1 });
    }
  });
  const counts = new Promise<string | undefined>((done) => child.on("close", () => done(last)));
  return {
    child,
    admitted,
    isReady: new Promise((done) => child.stdout.once("data", done)),
    end: () => child.stdin.end(),
    counts: counts.then((text) => (text === undefined ? undefined : (JSON.parse(text) as never))),
  };
}

/** Asks the isolates themselves until then. */
async function askIsolates(urls: readonly string[], isOver: () => boolean): Promise<AdmittedCall[]> {
  const admitted: AdmittedCall[] = [];
  const clients = urls.map((url) => new HttpClient(url, 2));
  const worker = async (client: HttpClient) => {
    while (!isOver()) {
      const { body, sentAtMs, receivedAtMs } = await client.limit("hot", "key");
      if (body["success"] === true) admitted.push({ sentAtMs, receivedAtMs, units: 1 });
    }
  };
  await Promise.all(clients.map((client) => worker(client)));
  for (const client of clients) client.close();
  return admitted;
}

test("eight processes and four isolates, some of them killed: no interval is over the bound, and nearly all is admitted", async () => {
  const { urls } = serving;
  const start = (index: number) => startClient(urls[index % ISOLATES] ?? "", "hot", 1);
  const clients = Array.from({ length: PROCESSES }, (_, index) => start(index));
  let isOver = false;
  const isolates = askIsolates(urls, () => isOver);
  await Promise.all(clients.map((client) => client.isReady));
  for (const index of [0, 3]) {
    clients[index]?.child.kill("SIGKILL");
    clients.push(start(index));
  }
  await Promise.all(clients.map((client) => client.isReady));
  // What the killed ones held comes back within two lifetimes.
  await sleep(2_000);
  const fromMs = Date.now();
  await sleep(LOAD_MS);
  const untilMs = Date.now();
  isOver = true;
  for (const client of clients) client.end();
  const counts = (await Promise.all(clients.map((client) => client.counts))).flatMap((each) => each ?? []);
  const admitted = [...(await isolates), ...clients.flatMap((client) => client.admitted)];
  expect(worstExcess(admitted, RATE)).toBeLessThanOrEqual(0);
  const sum = (field: "calls" | "requests") => counts.reduce((total, each) => total + each[field], 0);
  const there = admitted.filter((call) => call.sentAtMs >= fromMs && call.receivedAtMs <= untilMs).length;
  const share = there / (((untilMs - fromMs) * RATE.limit) / RATE.windowMs);
  console.info(`${sum("calls")} calls, ${sum("requests")} requests, ${(100 * share).toFixed(1)} % admitted`);
  expect(share).toBeGreaterThan(MIN_SHARE);
});

test("at a high rate a process asks at most once for 1,000 decisions", async () => {
  const client = startClient(serving.urls[0] ?? "", "high", 0);
  await vi.waitUntil(() => client.admitted.length > CALLS, { timeout: 120_000 });
  client.end();
  const { calls = 0, requests = 0, here = 0 } = (await client.counts) ?? {};
  console.info(`${calls} calls, ${requests} requests, ${here} decided in the process`);
  expect(requests).toBeLessThanOrEqual(calls / 1_000);
});
