/** What the console says while the limiter does not answer. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { overHttp } from "../../client/transports/http.ts";
import { Objects } from "../../client/transports/objects.ts";
import { type Failure, FailureLog, type LimiterNamespace } from "../../client/transports/send-batch.ts";
import type { LimiterTransport } from "../../client/transports/transport.ts";
import { SYSTEM_TIME } from "../../core/clock.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { manualClock } from "../../package/testing.ts";
import { parsePolicies } from "../support/milliseconds.ts";

let said: string[] = [];
beforeEach(() => {
  said = [];
  vi.spyOn(console, "warn").mockImplementation((line: string) => void said.push(line));
});
afterEach(() => void vi.restoreAllMocks());

function failuresOf() {
  const clock = manualClock();
  return { clock, failures: new FailureLog(clock) };
}

test("an outage is told at once, and then at most every 10 s, with all calls that it concerned", async () => {
  const { clock, failures } = failuresOf();
  for (let call = 0; call < 500; call += 1) failures.note("refused");
  expect(said).toEqual(["weir: no answer from the limiter: refused"]);
  await clock.advance("9999ms");
  failures.note("refused");
  expect(said).toHaveLength(1);
  await clock.advance("1ms");
  failures.note("reset");
  expect(said.slice(1)).toEqual([
    "weir: 501 calls were answered without the limiter in the last 10 s: reset",
  ]);
  await clock.advance("10s");
  failures.note("reset");
  expect(said.slice(2)).toEqual(["weir: no answer from the limiter: reset"]);
});

test("what was not told when the limiter answers again is told then, once", async () => {
  const { clock, failures } = failuresOf();
  for (let call = 0; call < 3; call += 1) failures.note("refused");
  failures.flush();
  expect(said).toHaveLength(1);
  await clock.advance("25s");
  failures.flush();
  failures.flush();
  expect(said.slice(1)).toEqual([
    "weir: 2 calls were answered without the limiter in the last 25 s: refused",
  ]);
});

test("a call that waited for another's message has that one's cause, but none of an earlier outage", async () => {
  const { clock, failures } = failuresOf();
  failures.note("refused");
  failures.note("reset");
  failures.note(undefined);
  await clock.advance("10s");
  failures.flush();
  await clock.advance("1h");
  failures.note(undefined);
  expect(said.slice(1)).toEqual([
    "weir: 2 calls were answered without the limiter in the last 10 s: reset",
    "weir: no answer from the limiter: the message that asked for units was not answered in time",
  ]);
});

test("one that comes and goes is not told with every call", () => {
  const { failures } = failuresOf();
  for (let call = 0; call < 100; call += 1) {
    failures.note("refused");
    failures.flush();
  }
  expect(said).toHaveLength(1);
});

const CALLS = {
  "that name a policy": (limiter: RemoteLimiter) => limiter.limit({ policy: "api", key: "a" }),
  "with an idempotency key": (limiter: RemoteLimiter) =>
    limiter.limit({ policy: "api", key: "a", idempotencyKey: "b" }),
  "on leases": (limiter: RemoteLimiter) => limiter.acquire({ policy: "api", key: "a" }),
};

test.each(Object.keys(CALLS))("each of 40 calls %s counts once, whatever fails under it", async (name) => {
  const clock = manualClock();
  const down = () => Promise.reject(new TypeError("fetch failed", { cause: new Error("ECONNREFUSED") }));
  const transport: LimiterTransport = overHttp({ url: "https://weir.test", token: "t", fetch: down });
  const limiter = new RemoteLimiter({ transport, time: clock, inBackground: () => undefined });
  const call = () => CALLS[name as keyof typeof CALLS](limiter);
  for (let calls = 0; calls < 39; calls += 1) expect(await call()).toMatchObject({ reason: "degraded" });
  expect(said).toEqual(["weir: no answer from the limiter: TypeError: fetch failed (ECONNREFUSED)"]);
  await clock.advance("12s");
  await call();
  expect(said.slice(1)).toEqual([
    "weir: 39 calls were answered without the limiter in the last 12 s: TypeError: fetch failed (ECONNREFUSED)",
  ]);
});

// A process that was stopped and went on said "no answer from the limiter: ", without a cause.
test("a call whose deadline has passed before it could be sent is told as such, not with an earlier failure", async () => {
  const clock = manualClock();
  let jumpedMs = 0;
  const time = { ...clock, nowMs: () => clock.nowMs() + jumpedMs };
  const silent = { call: () => new Promise<never>(() => undefined) };
  const limiter = new RemoteLimiter({ transport: silent, time, inBackground: () => undefined });
  // The first is under way for as long as the limiter says nothing; the second waits for its answer.
  const calls = [limiter.limit({ policy: "api", key: "a" })];
  await clock.advance("1ms");
  calls.push(limiter.limit({ policy: "api", key: "b" }));
  await clock.advance("1ms");
  // The process is stopped: its timers come later than its deadlines.
  jumpedMs = 60_000;
  await clock.advance("1s");
  calls.push(limiter.limit({ policy: "api", key: "c" }));
  await clock.advance("60s");
  for (const { reason } of await Promise.all(calls)) expect(reason).toBe("degraded");
  expect(said.length).toBeGreaterThan(0);
  for (const line of said) expect(line).toMatch(/: no answer within \d+ ms$/);
});

test("an error of a call that is no decision says why too", async () => {
  const down = () => Promise.reject(new TypeError("fetch failed", { cause: new Error("ECONNREFUSED") }));
  const transport = overHttp({ url: "https://weir.test", token: "t", fetch: down });
  const limiter = new RemoteLimiter({ transport, time: manualClock(), inBackground: () => undefined });
  const asked = limiter.peek({ policy: "api", key: "a" });
  await expect(asked).rejects.toThrow("the limiter did not answer (fetch failed: ECONNREFUSED)");
});

test("of a message of several calls that fails each call counts", async () => {
  const failures: Failure[] = [];
  const down = new Proxy({}, { get: () => () => Promise.reject(new Error("gone")) });
  const namespace = { getByName: () => down } as unknown as LimiterNamespace;
  const together = { queues: new BatchQueues(), inBackground: () => undefined };
  const unanswered = (failure: Failure) => void failures.push(failure);
  const objects = new Objects(namespace, SYSTEM_TIME, together, { unanswered });
  const policy = parsePolicies({ api: { algorithm: "token-bucket", limit: 5, window: 1_000 } }).get("api");
  const limit = { policy: "api", key: "a", cost: 1 };
  const calls = Array.from({ length: 7 }, () => objects.call(policy as Policy, "a", { limit }));
  expect(new Set(await Promise.all(calls))).toEqual(new Set([undefined]));
  expect(failures).toEqual([{ cause: "Error: gone", calls: 7, seconds: undefined }]);
});
