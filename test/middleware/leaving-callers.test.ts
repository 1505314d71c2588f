import expressApp from "express";
import { Hono } from "hono";
/** Callers that leave while the middleware waits for their turn, in each framework. */
import { createServer, type RequestListener, type Server } from "node:http";
import { connect, type AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import type { AcquireRequest, LimitRequest } from "../../package/client.ts";
import * as express from "../../package/express.ts";
import { withConcurrency, withRateLimit } from "../../package/fetch.ts";
import * as hono from "../../package/hono.ts";
import { manualClock, memoryLimiter } from "../../package/testing.ts";

const POLICIES = {
  slow: { algorithm: "token-bucket", limit: 1, window: "1s", maxWait: "10s" },
  jobs: { algorithm: "concurrency", limit: 1, maxWait: "10s" },
  paced: { algorithm: "leaky-bucket", limit: 1, window: "1s", burst: 5 },
};

type Kind = "limit" | "lease";
interface Options {
  readonly limiter: ReturnType<typeof memoryLimiter>;
  readonly policy: string;
  readonly key: string;
  readonly waitMs?: number;
  readonly time: ReturnType<typeof manualClock>;
}
/** A caller that has sent its request. `leave` resolves when the application may know that it has left. */
interface Caller {
  leave(): Promise<void>;
}

let server: Server | undefined;
afterEach(() => void server?.close());

async function callOver(listener: RequestListener): Promise<Caller> {
  const started = createServer(listener);
  server = started;
  await new Promise<void>((done) => void started.listen(0, "127.0.0.1", done));
  const socket = connect((started.address() as AddressInfo).port, "127.0.0.1");
  socket.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
  const isOpen = () => new Promise((done) => void started.getConnections((_, count) => done(count > 0)));
  return {
    async leave() {
      socket.resetAndDestroy();
      await until(async () => !(await isOpen()));
    },
  };
}

function callWith(ask: (request: Request) => Response | Promise<Response>): Caller {
  const leaving = new AbortController();
  const answered = Promise.resolve(ask(new Request("https://a.test/", { signal: leaving.signal })));
  return {
    async leave() {
      leaving.abort(new Error("gone"));
      // Nobody reads it, and it must be no error of the application.
      expect((await answered).status).toBe(499);
    },
  };
}

const nodeLimit = (kind: Kind, options: Options) =>
  kind === "limit" ? express.rateLimit(options) : express.concurrency(options);

/** Applications with a limit, and a caller of each. `serve` is called by the handler. */
const FRAMEWORKS: Readonly<
  Record<string, (kind: Kind, options: Options, serve: () => string) => Caller | Promise<Caller>>
> = {
  fetch: (kind, options, serve) => {
    const handler = () => new Response(serve());
    return callWith(kind === "limit" ? withRateLimit(options, handler) : withConcurrency(options, handler));
  },
  hono: (kind, options, serve) => {
    const app = new Hono().use(kind === "limit" ? hono.rateLimit(options) : hono.concurrency(options));
    app.onError((error) => {
      throw error;
    });
    app.get("/", (c) => c.text(serve()));
    return callWith((request) => app.request(request));
  },
  "node:http": (kind, options, serve) => {
    const limit = nodeLimit(kind, options);
    return callOver((req, res) => void limit(req, res, (error) => res.end(error ?? serve())));
  },
  express: (kind, options, serve) => {
    const app = expressApp();
    app.use(nodeLimit(kind, options));
    app.get("/", (_, res) => void res.end(serve()));
    return callOver(app);
  },
};

async function until(holds: () => Promise<boolean> | boolean): Promise<void> {
  while (!(await holds())) await new Promise((done) => setTimeout(done, 2));
}

describe.each(Object.keys(FRAMEWORKS))("in %s", (name) => {
  /** A request behind a limit of these options. */
  async function start(kind: Kind, policy: string, waitMs?: number) {
    const time = manualClock();
    const limiter = memoryLimiter({ policies: POLICIES, clock: time });
    const place = { policy, key: "k" };
    const first = await (kind === "limit" ? limiter.limit(place) : limiter.acquire(place));
    let served = 0;
    const options = { limiter, ...place, time, ...(waitMs !== undefined && { waitMs }) };
    const caller = await FRAMEWORKS[name]?.(kind, options, () => `served ${(served += 1)}`);
    if (caller === undefined) throw new Error("no such framework");
    const queue = async () => (await limiter.peek(place)).queueLength;
    return { limiter, time, place, first, caller, queue, served: () => served };
  }

  test("who leaves the queue of a rate is not charged and not served", async () => {
    const { limiter, time, place, caller, queue, served } = await start("limit", "slow", 9_000);
    await until(async () => (await queue()) === 1);
    await caller.leave();
    await until(async () => (await queue()) === 0);
    await time.advance("1s");
    expect((await limiter.limit(place)).success).toBe(true);
    await time.advance("10s");
    expect(served()).toBe(0);
  });

  test("who leaves the queue for a slot gets none, and is not served", async () => {
    const { limiter, time, place, first, caller, queue, served } = await start("lease", "jobs", 9_000);
    await until(async () => (await queue()) === 1);
    await caller.leave();
    await until(async () => (await queue()) === 0);
    await limiter.release({ id: first.lease?.id ?? "" });
    await time.advance("10s");
    expect([(await limiter.peek(place)).leases, served()]).toEqual([0, 0]);
  });

  test("who leaves during the delay of an admitted call is not served", async () => {
    const { limiter, time, caller, served } = await start("limit", "paced");
    await until(() => limiter.asked("limit").length === 2);
    await new Promise((done) => setTimeout(done, 5));
    await caller.leave();
    await time.advance("10s");
    expect(limiter.asked("limit")[1]?.answer).toMatchObject({ success: true, delayMs: 1_000 });
    expect(served()).toBe(0);
  });

  test("who stays is served when its turn comes", async () => {
    const { limiter, time, first, queue, served } = await start("lease", "jobs", 9_000);
    await until(async () => (await queue()) === 1);
    await limiter.release({ id: first.lease?.id ?? "" });
    await time.advance("1s");
    await until(() => served() === 1);
  });
});

test("what a limiter grants to a caller that has left is given back, and its handler does not run", async () => {
  const time = manualClock();
  const limiter = memoryLimiter({ policies: POLICIES, clock: time });
  const place = { policy: "jobs", key: "k" };
  const held = await limiter.acquire(place);
  const deaf = {
    policies: () => limiter.policies(),
    renew: limiter.renew,
    release: limiter.release,
    acquire: (call: AcquireRequest) => limiter.acquire({ ...call, signal: undefined }),
  };
  let served = 0;
  const handler = withConcurrency({ limiter: deaf, ...place, waitMs: 9_000, time }, () => {
    served += 1;
    return new Response();
  });
  const leaving = new AbortController();
  const answer = handler(new Request("https://a.test/", { signal: leaving.signal }));
  await until(async () => (await limiter.peek(place)).queueLength === 1);
  leaving.abort();
  await limiter.release({ id: held.lease?.id ?? "" });
  await time.advance("1s");
  expect([(await answer).status, (await limiter.peek(place)).leases, served]).toEqual([499, 0, 0]);
  expect(limiter.asked("release", { outcome: "ignore" })).toHaveLength(1);
});

test.each(["limit", "lease"] as const)(
  "a denial of a caller that has left is told to nobody: %s",
  async (kind) => {
    const limiter = memoryLimiter({ policies: POLICIES });
    const leaving = new AbortController();
    const place = { policy: kind === "limit" ? "slow" : "jobs", key: "k" };
    await (kind === "limit" ? limiter.limit(place) : limiter.acquire(place));
    let told = 0;
    const options = {
      limiter: {
        ...limiter,
        limit: async (call: LimitRequest) => {
          leaving.abort();
          return await limiter.limit({ ...call, waitMs: 0, signal: undefined });
        },
        acquire: async (call: AcquireRequest) => {
          leaving.abort();
          return await limiter.acquire({ ...call, waitMs: 0, signal: undefined });
        },
      },
      policy: kind === "limit" ? "slow" : "jobs",
      key: "k",
      waitMs: 9_000,
      onDenied: () => void (told += 1),
    };
    const handler = () => new Response("served");
    const limited = kind === "limit" ? withRateLimit(options, handler) : withConcurrency(options, handler);
    const { status } = await limited(new Request("https://a.test/", { signal: leaving.signal }));
    expect([status, told]).toEqual([499, 0]);
  },
);
