/** Slots over real objects, with the streams and the contexts that workerd has. */
import { createExecutionContext, waitOnExecutionContext } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { Hono } from "hono";
import { expect, test, vi } from "vitest";
import { withConcurrency, withRateLimit } from "../../package/fetch.ts";
import { concurrency, type LimitVariables, rateLimit } from "../../package/hono.ts";
import { createObjectsLimiter } from "../../package/objects.ts";
import { TEST_POLICIES } from "../support/fixtures.ts";
import { freshKey } from "../support/limiter.ts";

const namespace: unknown = (env as unknown as Record<string, unknown>)["OBJECTS"];
const limiterOf = () => createObjectsLimiter({ namespace, policies: TEST_POLICIES });
const leasesOf = async (key: string, policy: "export" | "hot-slots" = "export") =>
  (await limiterOf().peek({ policy, key })).leases;

/** An application with a slot around a stream, which a test feeds. */
function start(key: string) {
  const { readable, writable } = new IdentityTransformStream();
  const app = new Hono();
  app.use(rateLimit({ limiter: limiterOf, policy: "slow", key }));
  app.get("/", concurrency({ limiter: limiterOf, policy: "export", key }), () => new Response(readable));
  const ctx = createExecutionContext();
  return {
    ask: (method = "GET") => app.request("/", { method }, {}, ctx),
    ctx,
    writer: writable.getWriter(),
  };
}

test("in Hono: until the stream of bytes has been read to its end", async () => {
  const key = freshKey();
  const { ask, ctx, writer } = start(key);
  const response = await ask();
  expect([response.status, await leasesOf(key)]).toEqual([200, 1]);
  expect(response.headers.get("ratelimit")).toMatch(/^"export";r=1;/);
  const text = response.text();
  await writer.write(new TextEncoder().encode("one "));
  await writer.write(new TextEncoder().encode("two"));
  await writer.close();
  expect(await text).toBe("one two");
  await waitOnExecutionContext(ctx);
  expect(await leasesOf(key)).toBe(0);
});

test("in Hono: until it is cancelled", async () => {
  const key = freshKey();
  const { ask, ctx, writer } = start(key);
  const reader = (await ask()).body?.getReader();
  const first = reader?.read();
  await writer.write(new TextEncoder().encode("one"));
  await first;
  expect(await leasesOf(key)).toBe(1);
  await reader?.cancel("enough");
  await waitOnExecutionContext(ctx);
  expect(await leasesOf(key)).toBe(0);
});

test("in a plain handler: an answer of a web socket is handed on as it is, and holds nothing", async () => {
  const key = freshKey();
  const handler = withRateLimit(
    { limiter: limiterOf, policy: "slow", key },
    withConcurrency({ limiter: limiterOf, policy: "export", key }, () => {
      const { 0: client, 1: server } = new WebSocketPair();
      server.accept();
      server.send("hello");
      return new Response(null, { status: 101, webSocket: client });
    }),
  );
  const ctx = createExecutionContext();
  const { status, webSocket } = await handler(new Request("https://example.com/"), {}, ctx);
  const said = new Promise((done) => webSocket?.addEventListener("message", ({ data }) => done(data)));
  webSocket?.accept();
  await waitOnExecutionContext(ctx);
  expect([status, await said, await leasesOf(key)]).toEqual([101, "hello", 0]);
});

test("in both: a caller that leaves the queue gets no slot, and its handler does not run", async () => {
  const key = freshKey();
  const logged = vi.spyOn(console, "warn");
  const held = await Promise.all([1, 2].map(() => limiterOf().acquire({ policy: "export", key })));
  const served: string[] = [];
  const options = { limiter: limiterOf, policy: "export" as const, key, waitMs: 15_000 };
  const app = new Hono().get("/", concurrency(options), (c) => c.text(String(served.push("hono"))));
  const plain = withConcurrency(options, () => Response.json(served.push("plain")));
  const leaving = new AbortController();
  const ask = () => new Request("https://example.com/", { signal: leaving.signal });
  const answers = [Promise.resolve(app.request(ask())), plain(ask())];
  const peek = async () => await limiterOf().peek({ policy: "export", key });
  await expect.poll(async () => (await peek()).queueLength).toBe(2);
  leaving.abort();
  await expect.poll(async () => (await peek()).queueLength).toBe(0);
  for (const { lease } of held) await limiterOf().release({ id: lease?.id ?? "" });
  expect((await Promise.all(answers)).map(({ status }) => status)).toEqual([499, 499]);
  expect([(await peek()).leases, served]).toEqual([0, []]);
  // It is no failure of the object.
  expect(logged.mock.calls).toEqual([]);
});

test("each request frees its slot once, whether the isolate still has it or has handed it over", async () => {
  const key = freshKey();
  const app = new Hono<{ Variables: LimitVariables }>();
  const granted: string[] = [];
  app.get("/:ms", concurrency({ limiter: limiterOf, policy: "hot-slots", key }), async (c) => {
    granted.push(String(c.var.limits["hot-slots"]?.source));
    const ms = Number(c.req.param("ms"));
    if (ms > 0) await scheduler.wait(ms);
    return c.text("done");
  });
  const ask = async (ms: number) => {
    const ctx = createExecutionContext();
    const { status } = await app.request(`/${ms}`, {}, {}, ctx);
    await waitOnExecutionContext(ctx);
    return status;
  };
  // An isolate has slots after some calls, and hands over what is older than half a second.
  for (let call = 0; call < 30; call += 1) await ask(0);
  const long = Array.from({ length: 5 }, () => ask(1_200));
  for (let call = 0; call < 200; call += 1) expect(await ask(call % 10 === 0 ? 5 : 0)).toBe(200);
  expect(await Promise.all(long)).toEqual(Array(5).fill(200));
  expect(granted.filter((source) => source === "isolate").length).toBeGreaterThan(100);
  await expect.poll(async () => await leasesOf(key, "hot-slots")).toBe(0);
});
