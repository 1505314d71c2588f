/** Calls whose callers stop waiting, over a limiter in memory that never hears of it. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Limiter } from "../../client/limiter.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { SYSTEM_TIME } from "../../core/clock.ts";
import { Problem, LIMITER_PROBLEMS } from "../../core/protocol/problems.ts";
import { createMemoryLimiter } from "../../package/memory.ts";
import { manualClock, type ManualClock } from "../../testing/manual-clock.ts";
import { type Answering, transportOf } from "../support/transport.ts";

beforeEach(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterEach(() => void vi.restoreAllMocks());

const SLOT = { policy: "slot", key: "a" };
const RATE = { policy: "rate", key: "a" };
const GONE = new Error("the caller has gone");

function memory(time?: ManualClock): Limiter {
  return createMemoryLimiter({
    ...(time !== undefined && { time }),
    policies: {
      slot: { algorithm: "concurrency", limit: 1, ttl: "1m", maxTtl: "1m", maxWait: "10s" },
      rate: { algorithm: "token-bucket", limit: 1, window: "300ms", maxWait: "10s" },
    },
  });
}

/** A client of that limiter, which may hold no units, and waits for `deadlineMs`. */
function clientOf(limiter: Limiter, deadlineMs = 10_000, acquire?: Answering["acquire"]): RemoteLimiter {
  const refused = new Problem(LIMITER_PROBLEMS.forbidden, "the scope reserve is missing").toError();
  const transport = transportOf({
    reserve: () => Promise.reject(refused),
    limit: (asked) => limiter.limit(asked),
    acquire: acquire ?? ((asked) => limiter.acquire(asked)),
    release: (asked) => limiter.release(asked),
  });
  const parts = { time: SYSTEM_TIME, inBackground: (work: Promise<unknown>) => void work.catch(() => {}) };
  return new RemoteLimiter({ transport, ...parts }, { deadlineMs });
}

const waiters = async (limiter: Limiter) => (await limiter.peek(SLOT)).queueLength;

test("a call that is aborted before it is made takes nothing", async () => {
  const limiter = memory();
  for (const each of [limiter, clientOf(limiter)]) {
    const signal = AbortSignal.abort(GONE);
    await expect(each.acquire({ ...SLOT, signal })).rejects.toBe(GONE);
    await expect(each.limit({ ...RATE, signal })).rejects.toBe(GONE);
    await expect(each.limit({ ...RATE, waitMs: 10, signal })).rejects.toBe(GONE);
  }
  expect(await limiter.peek(SLOT)).toMatchObject({ remaining: 1, leases: 0 });
  expect(await limiter.peek(RATE)).toMatchObject({ remaining: 1 });
});

test("a call whose signal is never aborted is answered, and leaves no listener behind", async () => {
  const limiter = clientOf(memory());
  const { signal } = new AbortController();
  const [added, removed] = [vi.spyOn(signal, "addEventListener"), vi.spyOn(signal, "removeEventListener")];
  expect(await limiter.limit({ ...RATE, signal })).toMatchObject({ success: true });
  expect(added).toHaveBeenCalledTimes(1);
  expect(removed).toHaveBeenCalledTimes(1);
});

test.each(["in memory", "elsewhere"])(
  "who stops waiting for a slot keeps nobody waiting: %s",
  async (where) => {
    const limiter = memory();
    const first = await limiter.acquire(SLOT);
    const leaving = new AbortController();
    const asking = where === "elsewhere" ? clientOf(limiter) : limiter;
    const left = asking.acquire({ ...SLOT, waitMs: 10_000, signal: leaving.signal });
    await vi.waitUntil(async () => (await waiters(limiter)) === 1);
    const next = limiter.acquire({ ...SLOT, waitMs: 10_000 });
    leaving.abort(GONE);
    await expect(left).rejects.toBe(GONE);
    await limiter.release({ id: first.lease?.id ?? "" });
    expect(await next).toMatchObject({ success: true, lease: { id: expect.any(String) } });
  },
);

test("units that were waited for, in memory, are not taken once nobody waits", async () => {
  const clock = manualClock();
  const limiter = memory(clock);
  await limiter.limit(RATE);
  const leaving = new AbortController();
  const left = limiter.limit({ ...RATE, waitMs: 10_000, signal: leaving.signal });
  const next = limiter.limit({ ...RATE, waitMs: 10_000 });
  leaving.abort(GONE);
  await expect(left).rejects.toBe(GONE);
  await clock.advance(300);
  expect(await next).toMatchObject({ success: true, waitedMs: 300 });
});

test("a lease that is granted after the deadline is released, unless its call may be made again", async () => {
  for (const idempotencyKey of [undefined, "once"]) {
    const limiter = memory();
    let grant = () => {};
    const granted = new Promise<void>((done) => (grant = done));
    const late: Answering["acquire"] = async (asked) => {
      const decision = await limiter.acquire(asked);
      await granted;
      return decision;
    };
    const asked = idempotencyKey === undefined ? SLOT : { ...SLOT, idempotencyKey };
    const decision = await clientOf(limiter, 5, late).acquire(asked);
    expect(decision).toMatchObject({ success: false, reason: "degraded" });
    expect(await limiter.peek(SLOT)).toMatchObject({ leases: 1 });
    grant();
    await granted;
    await new Promise((done) => setImmediate(done));
    expect(await limiter.peek(SLOT)).toMatchObject({ leases: idempotencyKey === undefined ? 0 : 1 });
  }
});
