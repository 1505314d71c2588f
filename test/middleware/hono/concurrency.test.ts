import { Hono } from "hono";
import { describe, expect, test } from "vitest";
import { keepLease } from "../../../middleware/leased.ts";
import { concurrency, rateLimit } from "../../../package/hono.ts";
import {
  assertAsked,
  assertNotAsked,
  LimiterError,
  manualClock,
  memoryLimiter,
} from "../../../package/testing.ts";

const POLICIES = {
  jobs: { algorithm: "concurrency", limit: 1, ttl: "30s", maxTtl: "1m", maxWait: "10s", maxWaiters: 1 },
  api: { algorithm: "token-bucket", limit: 3, window: "1m" },
};

/** A stream that a test feeds. */
function stream() {
  let controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  let cancelled: unknown;
  const body = new ReadableStream<Uint8Array>({
    start: (given) => void (controller = given),
    cancel: (reason) => void (cancelled = reason),
  });
  return {
    body,
    send: (text: string) => controller?.enqueue(new TextEncoder().encode(text)),
    close: () => controller?.close(),
    fail: (error: Error) => controller?.error(error),
    cancelled: () => cancelled,
  };
}

function start() {
  const clock = manualClock();
  const limiter = memoryLimiter({ policies: POLICIES, clock });
  const app = new Hono();
  const source = stream();
  app.use(concurrency({ limiter, policy: "jobs", key: "k", time: clock }));
  app.get("/stream", () => new Response(source.body, { headers: { "x-kind": "stream" } }));
  app.get("/text", (c) => c.text("ok"));
  app.get("/bytes", (c) => c.body(Uint8Array.from("ok", (letter) => letter.charCodeAt(0))));
  app.get("/json", (c) => c.json({ ok: true }));
  app.get("/html", (c) => c.html("<p>ok</p>"));
  app.get("/headed", (c) => {
    c.header("x-kind", "text");
    return c.text("ok", 201);
  });
  app.get("/made", (c) => c.body(source.body));
  app.get("/other", (c) => {
    c.text("not this one");
    return c.body(source.body);
  });
  app.get("/none", (c) => c.body(null, 204));
  app.get("/error", () => {
    throw new Error("broken");
  });
  app.onError((error, c) => c.text(error.message, 500));
  const leases = async () => (await limiter.peek({ policy: "jobs", key: "k" })).leases;
  return { clock, limiter, app, source, leases };
}

describe("a request holds its slot", () => {
  test("until its stream has been read to the end", async () => {
    const { app, source, leases, limiter } = start();
    const response = await app.request("/stream");
    expect([response.headers.get("x-kind"), await leases()]).toEqual(["stream", 1]);
    expect((await app.request("/text")).status).toBe(503);
    const text = response.text();
    source.send("one ");
    source.send("two");
    expect(await leases()).toBe(1);
    source.close();
    expect([await text, await leases()]).toEqual(["one two", 0]);
    assertAsked(limiter, "release", { outcome: undefined }, 1);
  });

  test.each(["text", "bytes", "json", "html", "headed"])(
    "and no longer when its answer is whole: %s",
    async (path) => {
      const { app, leases } = start();
      const response = await app.request(`/${path}`);
      expect([response.headers.has("ratelimit"), await leases()]).toEqual([true, 0]);
      expect(await response.text()).toContain("ok");
    },
  );

  test.each(["made", "other"])(
    "until its stream has been read, also made by the context: %s",
    async (path) => {
      const { app, source, leases } = start();
      const response = await app.request(`/${path}`);
      expect(await leases()).toBe(1);
      source.close();
      expect([await response.text(), await leases()]).toEqual(["", 0]);
    },
  );

  test("until its stream is cancelled, and the source is told", async () => {
    const { app, source, leases } = start();
    const response = await app.request("/stream");
    const reader = response.body?.getReader();
    source.send("one");
    await reader?.read();
    expect(await leases()).toBe(1);
    await reader?.cancel("enough");
    expect([source.cancelled(), await leases()]).toEqual(["enough", 0]);
  });

  test("until its stream fails", async () => {
    const { app, source, leases } = start();
    const response = await app.request("/stream");
    source.fail(new Error("torn"));
    await expect(response.text()).rejects.toThrow("torn");
    expect(await leases()).toBe(0);
  });

  test.each([
    ["has no body", "/none", "GET", 204, undefined],
    ["is to HEAD", "/stream", "HEAD", 200, undefined],
    ["is an error", "/error", "GET", 500, "ignore"],
  ])("and no longer when its answer %s", async (_, path, method, status, outcome) => {
    const { app, leases, limiter } = start();
    const response = await app.request(path, { method });
    expect(response.status).toBe(status);
    await response.text();
    expect(await leases()).toBe(0);
    assertAsked(limiter, "release", { outcome }, 1);
  });

  test("and no longer when its handler throws what is no error, which Hono passes on", async () => {
    const { app, leases, limiter } = start();
    app.get("/thrown", () => {
      throw null;
    });
    await expect(Promise.resolve(app.request("/thrown"))).rejects.toBe(null);
    expect(await leases()).toBe(0);
    assertAsked(limiter, "release", { outcome: "ignore" }, 1);
  });

  test("through renewals, for longer than a lease lives, and never for ever", async () => {
    const { app, clock, leases, limiter } = start();
    await app.request("/stream");
    await clock.advance("50m");
    expect(await leases()).toBe(1);
    expect(limiter.asked("renew").length).toBeGreaterThan(100);
    await clock.advance("15m");
    expect(await leases()).toBe(0);
    const renewals = limiter.asked("renew").length;
    await clock.advance("10m");
    expect(limiter.asked("renew").length).toBe(renewals);
  });

  test("through a limiter that is away for a moment", async () => {
    const { app, clock, leases, limiter } = start();
    await app.request("/stream");
    limiter.fail();
    await clock.advance("10s");
    limiter.recover();
    await clock.advance("35s");
    expect(await leases()).toBe(1);
  });

  test("and no longer: a slot that was given back is not renewed, and not given back again", async () => {
    const { limiter, clock } = start();
    const { lease } = await limiter.acquire({ policy: "jobs", key: "k" });
    if (lease === undefined) throw new Error("no lease");
    const { release } = keepLease(limiter, lease, { time: clock });
    await Promise.all([release("complete"), release("aborted")]);
    await clock.advance("1m");
    assertNotAsked(limiter, "renew");
    assertAsked(limiter, "release", {}, 1);
  });

  test("and a lease that is gone is not renewed again", async () => {
    const { app, clock, limiter } = start();
    await app.request("/stream");
    await limiter.reset({ policy: "jobs", key: "k" });
    await clock.advance("1m");
    assertAsked(limiter, "renew", {}, 1);
    expect(limiter.asked("renew")[0]?.error).toBeInstanceOf(LimiterError);
  });
});

describe("without a slot", () => {
  test("a request is answered 503, with the wait", async () => {
    const { app, clock, leases } = start();
    await app.request("/stream");
    await clock.advance("5s");
    const denied = await app.request("/text");
    expect([denied.status, denied.headers.get("retry-after")]).toEqual([503, "25"]);
    expect(await denied.json()).toMatchObject({
      type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
      title: "All slots are taken",
      decision: { policy: "jobs", success: false },
    });
    expect(await leases()).toBe(1);
  });

  test("it waits for one, in turn, and is refused when the queue is full or the wait is over", async () => {
    const { limiter, clock, source, app } = start();
    const waiting = new Hono().use(
      concurrency({ limiter, policy: "jobs", key: "k", waitMs: 5_000, time: clock, onDenied: told }),
    );
    waiting.get("/", (c) => c.text(`waited ${c.var.limits["jobs"]?.waitedMs}`));
    const first = await app.request("/stream");
    const inQueue = waiting.request("/");
    await clock.advance("1s");
    expect(await (await waiting.request("/")).text()).toBe("queue-full");
    await clock.advance("1s");
    const read = first.text();
    source.close();
    await read;
    expect(await (await inQueue).text()).toBe("waited 2000");
    await limiter.acquire({ policy: "jobs", key: "k" });
    const late = waiting.request("/");
    await clock.advance("5s");
    expect(await (await late).text()).toBe("wait-timeout");
  });

  test("nobody could decide: 503, and the handler has not run", async () => {
    const { app, limiter } = start();
    limiter.fail();
    const response = await app.request("/text");
    expect(response.status).toBe(503);
    expect(await response.json()).toMatchObject({ title: "The limiter could not decide" });
  });
});

test("beside a rate limit, whichever comes first, headers tell of the fewest units left", async () => {
  const { limiter, clock } = start();
  const slot = concurrency({ limiter, policy: "jobs", key: "k", time: clock });
  const rate = rateLimit({ limiter, policy: "api", key: "k", time: clock });
  const ends: (string | null)[] = [];
  for (const order of [
    [slot, rate],
    [rate, slot],
  ]) {
    const app = new Hono();
    for (const each of order) app.use(each);
    app.get("/", (c) => c.json(Object.keys(c.var)));
    const response = await app.request("/");
    ends.push(response.headers.get("ratelimit"));
    expect(await response.json()).toEqual(["limits", "leases"]);
  }
  expect(ends).toEqual(['"jobs";r=0;t=30', '"jobs";r=0;t=30']);
});

test("in a worker the release goes on after the answer", async () => {
  const { limiter, clock } = start();
  const kept: Promise<unknown>[] = [];
  const context = {
    waitUntil: (work: Promise<unknown>) => void kept.push(work),
    passThroughOnException() {},
  };
  const app = new Hono().use(concurrency({ limiter, policy: "jobs", key: "k", time: clock }));
  app.get("/", (c) => c.text("ok"));
  const response = await app.request("/", {}, {}, { ...context, props: {} });
  await response.text();
  await Promise.all(kept);
  expect(kept).toHaveLength(1);
  assertAsked(limiter, "release", {}, 1);
});

function told([denied]: readonly { readonly reason: string }[]): Response {
  return new Response(denied?.reason, { status: 503 });
}

test("a request takes a slot for its group, also beside a rate and with other keys", async () => {
  const slots = { algorithm: "concurrency", limit: 2, ttl: "30s", fair: true };
  const rate = { algorithm: "token-bucket", limit: 100, window: "1s" };
  const clock = manualClock();
  const policies = { shared: slots, both: { rules: { slots, rate } }, ...POLICIES };
  const limiter = memoryLimiter({ policies, clock });
  const app = new Hono();
  const group = (c: { req: { query: (name: string) => string | undefined } }) => c.req.query("for") ?? "";
  app.use(concurrency({ limiter, policy: "shared", key: "k", time: clock, group }));
  app.get("/", (c) => c.json((c.var as { limits?: object }).limits ?? {}));
  const said = (await (await app.request("/?for=a")).json()) as Record<string, unknown>;
  expect(said["shared"]).toMatchObject({ group: "a", share: { limit: 2, remaining: 1 } });
  const take = async (name: string) => {
    const check = { policy: "both", key: "k", group: name };
    return (await limiter.limitAll({ checks: [check, { policy: "api", key: name }] })).success;
  };
  expect(await take("a")).toBe(true);
  // Which of two at once is first is open.
  expect((await Promise.all([take("b"), take("b")])).toSorted()).toEqual([false, true]);
  const { decisions } = await limiter.limitAll({
    checks: [{ policy: "both", key: "k", group: "a", cost: 0 }],
  });
  expect(decisions[0]).toMatchObject({ group: "a", share: { limit: 1, remaining: 0 } });
});
