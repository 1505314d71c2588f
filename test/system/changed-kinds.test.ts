/**
 * Policies that change under load, with clients far away that hold units of their own: from a rate to slots and back,
 * by candidates that become the policy, and by overrides. Each call ends as the documentation says, nothing is over the
 * loosest limit, and neither the clients nor the server have more connections for it.
 */
import { readdirSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { PROCESS_BOUNDS } from "../../client/transports/http.ts";
import { createLimiter, LimiterError, type Limiter } from "../../package/client.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { worstExcess, type AdmittedCall } from "../support/interval-bound.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

/** One way, in milliseconds, for each client. A call by itself would need a connection for twice as long. */
const DELAYS_MS = [60, 150];
/** Calls a second of each client, in steps of some milliseconds. By themselves they would need 300 connections. */
const CALLS_PER_SECOND = depth(1_000, 2_000);
/** On a busy machine: a client refuses what is over 10,000 calls under way. */
const MAX_UNDER_WAY = 5_000;
const STEP_MS = 5;
const PHASE_MS = depth(600, 6_000);

const bucket = (limit: number) => ({
  algorithm: "token-bucket",
  limit,
  burst: limit,
  window: "1s",
  deadlineMs: 20_000,
});
const slots = (limit: number) => ({ algorithm: "concurrency", limit, ttl: "20s", deadlineMs: 20_000 });
const [RATE, MAX_RATE, SLOTS, MAX_SLOTS] = [200, 300, 2, 3];
/** By key: what its overrides say while there are some. Nothing bounds who is unlimited. */
const OVERRIDES: Readonly<Record<string, object>> = {
  twice: { multiply: 2 },
  tight: { limit: 50, burst: 50 },
  bad: { blocked: true },
  free: { unlimited: true },
};
const KEYS = ["plain", ...Object.keys(OVERRIDES)];
const loosest = (key: string) => {
  const limit = key === "twice" ? 2 * MAX_RATE : MAX_RATE;
  return { limit, burst: limit, windowMs: 1_000 };
};

/** A line to a server that takes its time in both directions. */
class FarLine {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  most = 0;

  constructor(url: string, delayMs: number) {
    this.#server = createServer((near) => {
      const far = connect(Number(new URL(url).port), "127.0.0.1");
      this.#sockets.add(near);
      this.most = Math.max(this.most, this.#sockets.size);
      for (const [from, to] of [
        [near, far],
        [far, near],
      ] as const) {
        from.setNoDelay(true);
        from.on("data", (data) => setTimeout(() => to.writable && to.write(data), delayMs));
        from.on("error", () => undefined);
        from.on("close", () => {
          this.#sockets.delete(near);
          setTimeout(() => to.destroy(), delayMs);
        });
      }
    });
  }

  async open(): Promise<string> {
    await new Promise<void>((done) => this.#server.listen(0, "127.0.0.1", done));
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }
}

/** A client with load, and what became of its calls. */
class Loaded {
  readonly #limiter: Limiter;
  readonly admitted: Record<string, AdmittedCall[]> = {};
  /** When slots were surely held, in milliseconds. */
  readonly held: { readonly fromMs: number; readonly untilMs: number }[] = [];
  /** How often calls ended in which way. */
  readonly ends: Record<string, number> = {};
  underWay = 0;
  here = 0;
  #isOver = false;

  constructor(url: string) {
    this.#limiter = createLimiter({ url, token: TOKENS.full, policy: "api", deadlineMs: 20_000 });
  }

  async run(): Promise<void> {
    const leasing = this.#lease();
    let [lastMs, owed, made] = [Date.now(), 0, 0];
    while (!this.#isOver) {
      await sleep(STEP_MS);
      const nowMs = Date.now();
      // A machine that has paused need not make up for it.
      owed += (Math.min(100, nowMs - lastMs) * CALLS_PER_SECOND) / 1_000;
      lastMs = nowMs;
      for (; owed >= 1; owed -= 1)
        if (this.underWay < MAX_UNDER_WAY) void this.#call(KEYS[made++ % KEYS.length] ?? "");
    }
    await leasing;
    await vi.waitUntil(() => this.underWay === 0, { timeout: 60_000 });
    await this.#limiter.close();
  }

  stop(): void {
    this.#isOver = true;
  }

  async #call(key: string): Promise<void> {
    const sentAtMs = Date.now();
    this.underWay += 1;
    try {
      const { success, reason, source } = await this.#limiter.limit({ key });
      this.#note(reason);
      if (source === "isolate") this.here += 1;
      if (success) (this.admitted[key] ??= []).push({ sentAtMs, receivedAtMs: Date.now(), units: 1 });
    } catch (error) {
      this.#note(error);
    } finally {
      this.underWay -= 1;
    }
  }

  /** Takes a slot of a key again and again, while the policy has slots. */
  async #lease(): Promise<void> {
    const work = async () => {
      while (!this.#isOver) {
        try {
          const { reason, lease } = await this.#limiter.acquire({ key: "leased" });
          const fromMs = Date.now();
          this.#note(reason);
          await sleep(20);
          if (lease === undefined) continue;
          this.held.push({ fromMs, untilMs: Date.now() });
          await this.#limiter.release({ id: lease.id });
        } catch (error) {
          this.#note(error);
        }
      }
    };
    await Promise.all(Array.from({ length: 2 * MAX_SLOTS }, work));
  }

  #note(end: unknown): void {
    const name = end instanceof LimiterError ? `${end.status} ${end.code}` : String(end);
    this.ends[name] = (this.ends[name] ?? 0) + 1;
  }
}

const state = makeState();
let serving: Serving;
let lines: FarLine[];
let admin: HttpClient;
beforeAll(async () => {
  serving = await serveBundle(state, { api: bucket(RATE) }, { isolates: DELAYS_MS.length });
  lines = DELAYS_MS.map((delayMs, index) => new FarLine(serving.urls[index] ?? "", delayMs));
  admin = new HttpClient(serving.url, 2);
});
afterAll(async () => {
  for (const line of lines) line.close();
  admin.close();
  await serving.stop();
  removeState(state);
});

async function change(method: string, path: string, body?: object): Promise<void> {
  const { status, body: answer } = await admin.call(method, `/v1/policies/api${path}`, body);
  expect(status, `${method} ${path}: ${JSON.stringify(answer)}`).toBeLessThan(300);
}

const filesOf = ({ process: { pid } }: Serving) => readdirSync(`/proc/${pid}/fd`).length;

/** The most slots that were surely held at one time. */
function maxHeld(held: readonly { readonly fromMs: number; readonly untilMs: number }[]): number {
  const at = (ms: number) => held.filter(({ fromMs, untilMs }) => fromMs <= ms && ms < untilMs).length;
  return Math.max(0, ...held.map(({ fromMs }) => at(fromMs)));
}

/** The admitted calls of a key, by all clients. */
const admittedOf = (clients: readonly Loaded[], key: string) =>
  clients.flatMap(({ admitted }) => admitted[key] ?? []);

/** How a call of a client may end here. Nobody degrades: the limiter can be reached all the time. */
const ENDS = ["ok", "quota", "cost-over-limit", "blocked", "422 not-allowed"];

test("from a rate to slots and back, with candidates and overrides: each call ends well, bounded in every way", async () => {
  await change("PUT", "", bucket(RATE));
  const clients = await Promise.all(lines.map(async (line) => new Loaded(await line.open())));
  const runs = clients.map((client) => client.run());
  await vi.waitUntil(() => clients.every(({ here }) => here > 0), { timeout: 60_000 });
  const before = filesOf(serving);
  let most = before;
  const watch = setInterval(() => (most = Math.max(most, filesOf(serving))), 20);
  const phase = () => sleep(PHASE_MS);
  await change("PUT", "", slots(SLOTS));
  await phase();
  await change("PUT", "/candidate", slots(MAX_SLOTS));
  await change("POST", "/candidate/promote");
  await phase();
  await change("PUT", "", bucket(RATE));
  await phase();
  for (const [key, fields] of Object.entries(OVERRIDES)) await change("PUT", `/overrides/${key}`, fields);
  await phase();
  await change("PUT", "/candidate", bucket(MAX_RATE));
  await change("POST", "/candidate/promote");
  await phase();
  for (const key of Object.keys(OVERRIDES)) await change("DELETE", `/overrides/${key}`);
  await change("PUT", "", slots(SLOTS));
  await phase();
  await change("PUT", "", bucket(RATE));
  const here = clients.map((client) => client.here);
  await vi.waitUntil(() => clients.every((client, index) => client.here > (here[index] ?? 0) + 1_000), {
    timeout: 60_000,
  });
  for (const client of clients) client.stop();
  await Promise.all(runs);
  clearInterval(watch);

  const ends = clients.map((client) => client.ends);
  console.info(
    JSON.stringify(ends),
    `files ${before}, at most ${most};`,
    lines.map((line) => line.most),
  );
  for (const end of ends) expect(Object.keys(end).filter((name) => !ENDS.includes(name))).toEqual([]);
  expect(ends[0]).toMatchObject({ "422 not-allowed": expect.any(Number), blocked: expect.any(Number) });
  for (const key of KEYS.filter((each) => each !== "free"))
    expect(worstExcess(admittedOf(clients, key), loosest(key)), key).toBeLessThanOrEqual(0);
  const held = maxHeld(clients.flatMap((client) => client.held));
  expect(held).toBeGreaterThan(0);
  expect(held).toBeLessThanOrEqual(MAX_SLOTS);
  for (const line of lines) expect(line.most).toBeLessThanOrEqual(PROCESS_BOUNDS.asking);
  expect(most - before).toBeLessThanOrEqual(lines.length * PROCESS_BOUNDS.asking);
  await vi.waitUntil(() => filesOf(serving) <= before, { timeout: 60_000, interval: 200 });
});
