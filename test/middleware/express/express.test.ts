/** Over Node's own server, whose objects are those that Express extends. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { concurrency, decisionsOf, rateLimit, type NodeMiddleware } from "../../../package/express.ts";
import { memoryLimiter } from "../../../package/testing.ts";

const POLICIES = {
  api: { algorithm: "token-bucket", limit: 2, window: "1m" },
  day: { algorithm: "token-bucket", limit: 9, window: "1d" },
  jobs: { algorithm: "concurrency", limit: 1 },
};

type Middleware = NodeMiddleware<IncomingMessage, ServerResponse>;

let server: Server | undefined;
afterEach(() => void server?.close());

/** Serves a handler behind middleware, as Express does: an error is answered 500. */
async function serve(
  middleware: readonly Middleware[],
  handler: (req: IncomingMessage, res: ServerResponse) => void,
): Promise<string> {
  server = createServer((req, res) => {
    const run = (index: number, error?: unknown): void => {
      if (error !== undefined) {
        res.writeHead(500).end(error instanceof Error ? error.message : "");
        return;
      }
      const each = middleware[index];
      if (each === undefined) handler(req, res);
      else void each(req, res, (problem) => run(index + 1, problem));
    };
    run(0);
  });
  await new Promise<void>((done) => void server?.listen(0, "127.0.0.1", done));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}

const limiterOf = () => memoryLimiter({ policies: POLICIES });
const leasesOf = async (limiter: ReturnType<typeof limiterOf>) =>
  (await limiter.peek({ policy: "jobs", key: "k" })).leases;
async function until(holds: () => Promise<boolean> | boolean): Promise<void> {
  while (!(await holds())) await new Promise((done) => setTimeout(done, 2));
}

describe("rateLimit", () => {
  test("lets through with headers, and denies with the problem document", async () => {
    const limiter = limiterOf();
    const limit: Middleware = rateLimit({
      limiter,
      policy: "api",
      key: (req) => String(req.headers["x-user"]),
    });
    const url = await serve([limit], (req, res) => void res.end(JSON.stringify(decisionsOf(req)["api"])));
    const get = () => fetch(url, { headers: { "x-user": "ann" } });
    const first = await get();
    expect(await first.json()).toMatchObject({ policy: "api", key: "ann", remaining: 1 });
    expect(first.headers.get("ratelimit")).toBe('"api";r=1;t=30');
    await get();
    const denied = await get();
    expect([denied.status, denied.headers.get("retry-after"), denied.headers.get("content-type")]).toEqual([
      429,
      "30",
      "application/problem+json",
    ]);
    expect(await denied.json()).toMatchObject({ status: 429, decision: { policy: "api" } });
  });

  test("of several the one with the fewest units left is told, in either order", async () => {
    const limiter = limiterOf();
    const of = (policy: string): Middleware => rateLimit({ limiter, policy, key: "k" });
    for (const order of [
      ["api", "day"],
      ["day", "api"],
    ]) {
      const url = await serve(order.map(of), (_, res) => void res.end());
      expect((await fetch(url)).headers.get("ratelimit")).toMatch(/^"api"/);
      server?.close();
    }
  });

  test("an answer of one's own, a skipped request, and an error that is the application's", async () => {
    const limiter = limiterOf();
    const limit: Middleware = rateLimit({
      limiter,
      policy: (req) => (req.url === "/nowhere" ? "nowhere" : "api"),
      key: "k",
      cost: 3,
      skip: (req) => req.url === "/health",
      onDenied: ([denied], _, res) => res.writeHead(420).end(denied?.reason),
    });
    const url = await serve([limit], (_, res) => void res.end("ok"));
    const answers = [];
    for (const path of ["", "health", "nowhere"]) {
      const response = await fetch(url + path);
      answers.push([response.status, (await response.text()).slice(0, 51)]);
    }
    expect(answers).toEqual([
      [420, "cost-over-limit"],
      [200, "ok"],
      [500, "the limiter refused the call (There is no such poli"],
    ]);
  });

  test.each([rateLimit, concurrency])(
    "an onDenied that answers nothing leaves the answer to the problem document",
    async (limit) => {
      const [policy, status] = limit === rateLimit ? ["api", 429] : ["jobs", 503];
      const denied: string[] = [];
      const options = {
        limiter: limiterOf(),
        policy,
        key: "a",
        onDenied: ([decision]: readonly { readonly policy: string }[]) =>
          void denied.push(decision?.policy ?? ""),
      };
      const url = await serve([limit(options), limit(options), limit(options)], (_, res) => res.end("ok"));
      const answer = await fetch(url);
      expect([answer.status, answer.headers.get("content-type")]).toEqual([
        status,
        "application/problem+json",
      ]);
      expect(denied).toEqual([policy]);
    },
  );

  test("an error of the handler is the handler's: it is called once", async () => {
    const limit = rateLimit<object>({ limiter: limiterOf(), policy: "api", key: "k" });
    const calls: unknown[] = [];
    const response = { setHeader: () => undefined, headersSent: false } as unknown as ServerResponse;
    const next = (error?: unknown) => {
      calls.push(error);
      throw new Error("broken");
    };
    await expect(limit({}, response, next)).rejects.toThrow("broken");
    expect(calls).toEqual([undefined]);
  });
});

describe("concurrency", () => {
  test("holds the slot until the answer has been sent", async () => {
    const limiter = limiterOf();
    let last: ServerResponse | undefined;
    const slot: Middleware = concurrency({ limiter, policy: "jobs", key: "k" });
    const url = await serve([slot], (_, res) => {
      last = res;
      res.write("one ");
    });
    const first = await fetch(url);
    const denied = await fetch(url);
    expect([denied.status, denied.headers.get("retry-after")]).toEqual([503, "60"]);
    expect(await leasesOf(limiter)).toBe(1);
    last?.end("two");
    expect(await first.text()).toBe("one two");
    await until(async () => (await leasesOf(limiter)) === 0);
    expect(limiter.asked("release", { outcome: undefined })).toHaveLength(1);
  });

  test("gives it back when the client leaves", async () => {
    const limiter = limiterOf();
    const slot: Middleware = concurrency({ limiter, policy: "jobs", key: "k" });
    const url = await serve([slot], (_, res) => void res.write("one"));
    const aborting = new AbortController();
    await fetch(url, { signal: aborting.signal });
    expect(await leasesOf(limiter)).toBe(1);
    aborting.abort();
    await until(async () => (await leasesOf(limiter)) === 0);
    expect(limiter.asked("release", { outcome: "ignore" })).toHaveLength(1);
  });
});
