/** Requests whose answers nobody waits for any more: a limiter that hangs keeps no process alive. */
import { buildSync } from "esbuild";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import type { Limiter } from "../../client/limiter.ts";
import { createLimiter } from "../../package/client.ts";
import { depth } from "../support/depth.ts";

const folder = mkdtempSync(join(tmpdir(), "weir-unanswered-"));
const program = join(folder, "caller.mjs");
let hanging: Server;
beforeAll(async () => {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const entry = join(import.meta.dirname, "..", "support", "unanswered-process.ts");
  buildSync({ entryPoints: [entry], outfile: program, bundle: true, format: "esm", platform: "node" });
  hanging = createServer(() => undefined);
  await new Promise<void>((done) => hanging.listen(0, "127.0.0.1", done));
});
afterAll(() => {
  hanging.closeAllConnections();
  hanging.close();
  rmSync(folder, { recursive: true, force: true });
});

const ALL = ["limit", "acquire", "hold", "limitAll", "limitAny", "settle", "peek", "policies"];
const NAMES = depth(ALL.slice(0, 3), ALL);

// The limiter never answers, so a process that waited for it would wait for as long as a request may take.
test.concurrent.each(NAMES.flatMap((call) => [`${call} close`, call]))(
  "a process whose limiter does not answer ends: %s",
  async (args) => {
    const { port } = hanging.address() as AddressInfo;
    const given = [program, `http://127.0.0.1:${port}`, ...args.split(" ")];
    const child = spawn(process.execPath, given, { stdio: ["ignore", "pipe", "inherit"] });
    let said = "";
    child.stdout.on("data", (data: Buffer) => (said += data.toString()));
    const code = await new Promise((done) => child.on("close", done));
    expect([code, said]).toEqual([0, "answered\n"]);
  },
);

/** A request that is under way. */
interface Asked {
  readonly path: string;
  readonly signal: AbortSignal;
  readonly answer: (body: object) => void;
}

/** A limiter over requests that the test answers, or does not. */
function asking(deadlineMs: number, headers = {}): { readonly limiter: Limiter; readonly requests: Asked[] } {
  const requests: Asked[] = [];
  const fetch = (url: string, { signal }: { readonly signal: AbortSignal }) =>
    new Promise<Response>((done, failed) => {
      signal.addEventListener("abort", () => failed(signal.reason as Error));
      requests.push({
        path: new URL(url).pathname,
        signal,
        answer: (body) => done(Response.json(body, { headers })),
      });
    });
  return { limiter: createLimiter({ url: "https://weir.test", token: "t", deadlineMs, fetch }), requests };
}

const ASKED = { policy: "api", key: "a" };
const LEASE = { id: "lease_a", expiresAfterMs: 1_000 };
const GRANTED = { success: true, ...ASKED, rules: [], lease: LEASE };

test("closing aborts what nobody waits for, and only that", async () => {
  const { limiter, requests } = asking(200);
  const checks = [ASKED];
  await Promise.all([limiter.limit(ASKED), limiter.acquire(ASKED), limiter.limitAll({ checks })]);
  await limiter.close();
  expect(requests.map(({ path }) => path).toSorted()).toEqual([
    "/v1/leases",
    "/v1/limit/all",
    "/v1/reservations",
  ]);
  await vi.waitUntil(() => requests.every(({ signal }) => signal.aborted), { interval: 1 });
  const patient = asking(600_000);
  const peeking = patient.limiter.peek(ASKED);
  await vi.waitFor(() => expect(patient.requests).toHaveLength(1), { interval: 1 });
  await patient.limiter.close();
  patient.requests[0]?.answer({ success: true, rules: [] });
  expect(await peeking).toMatchObject({ success: true });
});

test("a lease that is granted soon after the deadline is released, which somebody has to hear of", async () => {
  const { limiter, requests } = asking(200);
  expect(await limiter.acquire(ASKED)).toMatchObject({ reason: "degraded" });
  // Beside it the client has asked for the policy.
  const leases = () => requests.filter(({ path }) => path !== "/v1/reservations");
  expect(leases().map(({ signal }) => signal.aborted)).toEqual([false]);
  leases()[0]?.answer(GRANTED);
  await vi.waitFor(() => expect(leases()).toHaveLength(2), { interval: 1 });
  // Nobody waits for this one either, but what it says counts.
  await limiter.close();
  expect(leases()[1]).toMatchObject({ path: "/v1/leases/lease_a/release", signal: { aborted: false } });
  leases()[1]?.answer({});
});

/** Aborts an acquire that waits for a minute, and returns its request three seconds later. */
async function leave({ limiter, requests }: ReturnType<typeof asking>): Promise<Asked | undefined> {
  // What the limiter has answered before says where it runs.
  const before = limiter.hold({ ...ASKED, units: 1 });
  await vi.waitUntil(() => requests.some(({ path }) => path === "/v1/holds"), { interval: 1 });
  requests.find(({ path }) => path === "/v1/holds")?.answer({ success: false, rules: [] });
  await before;
  const caller = new AbortController();
  const acquired = limiter.acquire({ ...ASKED, waitMs: 60_000, signal: caller.signal }).catch(String);
  await vi.waitUntil(() => requests.some(({ path }) => path === "/v1/leases"), { interval: 1 });
  caller.abort("gone");
  expect(await acquired).toBe("gone");
  await new Promise((done) => setTimeout(done, 3_000));
  return requests.find(({ path }) => path === "/v1/leases");
}

// On plain workerd a caller that closes its connection stays in the queue, and its lease would last for the whole ttl.
test("a call that waited is heard to its end, where the limiter does not see that its caller has left", async () => {
  const { limiter, requests } = asking(600_000);
  const left = await leave({ limiter, requests });
  expect(left?.signal.aborted).toBe(false);
  left?.answer(GRANTED);
  const released = () => requests.find(({ path }) => path === "/v1/leases/lease_a/release");
  await vi.waitUntil(released, { interval: 1 });
  released()?.answer({});
});

test("on Cloudflare, whose runtime sees it, the request ends soon, and the call leaves the queue", async () => {
  expect((await leave(asking(600_000, { "cf-ray": "8f0c6a7b2d" })))?.signal.aborted).toBe(true);
});
