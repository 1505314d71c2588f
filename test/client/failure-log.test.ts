/** What the console says while the limiter does not answer. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { overHttp } from "../../client/transports/http.ts";
import { FailureLog } from "../../client/transports/send-batch.ts";
import type { LimiterTransport } from "../../client/transports/transport.ts";
import { manualClock } from "../../package/testing.ts";

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
