/** How a handler hears that the lease of its request is lost. */
import { Hono } from "hono";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setImmediate } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { keepLease } from "../../middleware/leased.ts";
import * as node from "../../package/express.ts";
import { leasesOf, withConcurrency } from "../../package/fetch.ts";
import { concurrency, type LimitVariables } from "../../package/hono.ts";
import { manualClock, memoryLimiter } from "../../package/testing.ts";

const JOBS = { algorithm: "concurrency", limit: 1, ttl: "30s", maxTtl: "1m" };
const POLICIES = { jobs: JOBS, open: { ...JOBS, onFailure: "open" } };

type Leases = LimitVariables["leases"];
interface Started {
  readonly clock: ReturnType<typeof manualClock>;
  readonly limiter: ReturnType<typeof memoryLimiter>;
}

/** By middleware: makes a request, and gives the leases that its handler sees. The request goes on. */
const WAYS: Readonly<Record<string, (with_: Started, policy: string) => Promise<Leases>>> = {
  hono: ({ clock, limiter }, policy) =>
    new Promise((done) => {
      const app = new Hono().get("/", concurrency({ limiter, policy, key: "k", time: clock }), (c) => {
        done(c.var.leases);
        return new Response(new ReadableStream());
      });
      void app.request("/");
    }),
  fetch: ({ clock, limiter }, policy) =>
    new Promise((done) => {
      const handler = withConcurrency({ limiter, policy, key: "k", time: clock }, (request: Request) => {
        done(leasesOf(request));
        return new Response(new ReadableStream());
      });
      void handler(new Request("http://a.test"));
    }),
  node: async ({ clock, limiter }, policy) => {
    const limit = node.concurrency({ limiter, policy, key: "k", time: clock });
    const { promise: seen, resolve } = Promise.withResolvers<Leases>();
    const server = createServer((req, res) => void limit(req, res, () => resolve(node.leasesOf(req))));
    onTestFinished(() => server.close().closeAllConnections());
    await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
    const { port } = server.address() as AddressInfo;
    void fetch(`http://127.0.0.1:${port}`).catch(() => undefined);
    return await seen;
  },
};

function start(): Started {
  const clock = manualClock();
  return { clock, limiter: memoryLimiter({ policies: POLICIES, clock }) };
}

test.each(Object.entries(WAYS))(
  "%s: the handler's signal is aborted when a renewal finds no lease",
  async (_, request) => {
    const started = start();
    const { clock, limiter } = started;
    const { jobs } = await request(started, "jobs");
    expect(jobs).toMatchObject({ fencingToken: expect.any(Number) as number });
    await clock.advance("50s");
    expect(jobs?.signal.aborted).toBe(false);
    await limiter.reset({ policy: "jobs", key: "k" });
    await clock.advance("10s");
    expect(jobs?.signal.aborted).toBe(true);
  },
);

test.each(Object.entries(WAYS))("%s: a handler without a lease sees none", async (_, request) => {
  const started = start();
  started.limiter.fail();
  expect(await request(started, "open")).toEqual({});
});

async function keep(mostMs?: number) {
  const { clock, limiter } = start();
  const { lease } = await limiter.acquire({ policy: "jobs", key: "k" });
  if (lease === undefined) throw new Error("no lease");
  const kept = keepLease(limiter, lease, { time: clock, ...(mostMs !== undefined && { mostMs }) });
  return { clock, limiter, ...kept };
}

test("a lease that cannot be renewed is lost at its end, and not before", async () => {
  const { clock, limiter, lease } = await keep();
  await clock.advance("15s");
  limiter.fail();
  // It was renewed after 10 s.
  await clock.advance("24s");
  expect(lease.signal.aborted).toBe(false);
  await clock.advance("1s");
  expect(lease.signal.aborted).toBe(true);
  const asked = limiter.asked("renew").length;
  await clock.advance("1m");
  expect(limiter.asked("renew").length).toBe(asked);
});

test("a lease whose first renewal comes after its end, as in a process that stood still, is lost then", async () => {
  const { limiter } = start();
  let nowMs = 0;
  const timers: { readonly ms: number; readonly work: () => void }[] = [];
  const after = (ms: number, work: () => void) => {
    timers.push({ ms, work });
    return () => {};
  };
  keepLease(
    limiter,
    { id: "lease_a", fencingToken: 1, expiresAfterMs: 30_000 },
    { time: { nowMs: () => nowMs, after } },
  );
  await setImmediate();
  nowMs = 40_000;
  timers[0]?.work();
  expect(timers.map(({ ms }) => ms)).toEqual([10_000, 0]);
});

test("who asks for the signal of a lease after it was lost gets its reason", async () => {
  const kept = await keep();
  kept.limiter.fail();
  await kept.clock.advance("1m");
  const { reason } = kept.lease.signal as unknown as AbortSignal;
  expect(String(reason)).toContain("is lost");
});

test("a lease that is not renewed any more is lost when it expires", async () => {
  const { clock, lease } = await keep(60_000);
  await clock.advance("80s");
  expect(lease.signal.aborted).toBe(false);
  await clock.advance("11s");
  expect(lease.signal.aborted).toBe(true);
});

test("a lease that was released is not lost", async () => {
  const { clock, lease, release } = await keep();
  await release("complete");
  await clock.advance("2m");
  expect(lease.signal.aborted).toBe(false);
});

test("a lease of the process is lost with its own signal, for its reason", async () => {
  const { clock, limiter } = start();
  const own = new AbortController();
  const granted = { id: "lease_a", fencingToken: 1, expiresAfterMs: 30_000, signal: own.signal as never };
  const { lease } = keepLease(limiter, granted, { time: clock });
  const reason = new Error("the limiter was closed");
  own.abort(reason);
  expect([lease.signal.aborted, (lease.signal as unknown as AbortSignal).reason]).toEqual([true, reason]);
});
