import { describe, expect, test } from "vitest";
import { decisionsOf, withConcurrency, withRateLimit } from "../../../package/fetch.ts";
import { assertAsked, assertNotAsked, memoryLimiter } from "../../../package/testing.ts";

const POLICIES = {
  api: { algorithm: "token-bucket", limit: 2, window: "1m" },
  jobs: { algorithm: "concurrency", limit: 1 },
};

interface Bindings {
  readonly prefix: string;
}
const ENV: Bindings = { prefix: "user:" };

const ask = (method = "GET") => new Request("https://example.com/?user=ann", { method });
const userOf = ({ url }: Request) => new URL(url).searchParams.get("user") ?? "";

describe("a plain handler", () => {
  test("is called if the cost fits, with all that its runtime gives", async () => {
    const limiter = memoryLimiter({ policies: POLICIES });
    const handler = withRateLimit(
      { limiter, policy: "api", key: (request, env) => env.prefix + userOf(request) },
      (request: Request, env: Bindings) =>
        Response.json([env.prefix, decisionsOf(request)["api"]?.remaining]),
    );
    const first = await handler(ask(), ENV);
    expect(await first.json()).toEqual(["user:", 1]);
    expect(first.headers.get("ratelimit-policy")).toBe('"api";q=2;w=60');
    await handler(ask(), ENV);
    const denied = await handler(ask(), ENV);
    expect([denied.status, denied.headers.get("retry-after")]).toEqual([429, "30"]);
    assertAsked(limiter, "limit", { key: "user:ann" }, 3);
  });

  test("answers a denied request as it likes", async () => {
    const limiter = memoryLimiter({ policies: POLICIES });
    const handler = withRateLimit(
      { limiter, policy: "api", key: "a", cost: 3, onDenied: ([denied]) => new Response(denied?.reason) },
      () => new Response("never"),
    );
    expect(await (await handler(ask())).text()).toBe("cost-over-limit");
  });

  test("may be within several: the headers are those of the limit with the fewest units left", async () => {
    const limiter = memoryLimiter({ policies: POLICIES });
    const handler = withRateLimit(
      { limiter, policy: "api", key: "a" },
      withConcurrency(
        { limiter, policy: "jobs", key: "a" },
        // An answer of `fetch` has headers that cannot be changed.
        (request: Request) => fetch(`data:,${Object.keys(decisionsOf(request)).join("+")}`),
      ),
    );
    const response = await handler(ask());
    expect(response.headers.get("ratelimit")).toBe('"jobs";r=0;t=60');
    expect(await response.text()).toBe("api+jobs");
    expect(await limiter.peek({ policy: "jobs", key: "a" })).toMatchObject({ leases: 0 });
  });
});

/** What the types allow: `tsc` checks it here, and TypeScript 5 in the package. */
describe("options are functions of what the handler is called with", () => {
  const limiterOf = () => memoryLimiter({ policies: POLICIES });
  const skipOf = ({ method }: Request) => method === "HEAD";
  const named = (request: Request, env: Bindings, context: object) =>
    new Response(`${env.prefix}${userOf(request)} ${Object.keys(context).length}`);

  test("and may take fewer of them", async () => {
    const options = { limiter: limiterOf(), key: userOf, skip: skipOf };
    const onDenied = (_: unknown, request: Request) => new Response(request.url);
    const inner = withConcurrency({ ...options, policy: "jobs", onDenied }, named);
    const handler = withRateLimit({ ...options, policy: "api", onDenied }, inner);
    expect(await (await handler(ask(), ENV, {})).text()).toBe("user:ann 0");
  });

  test("or more of them", async () => {
    const options = {
      limiter: limiterOf(),
      key: (request: Request, { prefix }: Bindings) => prefix + userOf(request),
    };
    const inner = withConcurrency(
      { ...options, policy: "jobs" },
      (request: Request) => new Response(request.method),
    );
    const handler = withRateLimit({ ...options, policy: "api" }, inner);
    expect(await (await handler(ask(), ENV)).text()).toBe("GET");
    assertAsked(options.limiter, "acquire", { key: "user:ann" });
  });

  test("and say of a handler without types what it is called with", async () => {
    const options = { limiter: limiterOf(), policy: "api", key: userOf };
    const worker: { fetch(request: Request, env: Bindings): Promise<Response> } = {
      fetch: withRateLimit(options, (_, { prefix }) => new Response(prefix)),
    };
    expect(await (await worker.fetch(ask(), ENV)).text()).toBe("user:");
    // @ts-expect-error there is no such binding
    withRateLimit({ ...options, cost: (_, { suffix }) => suffix }, named);
  });
});

describe("a handler with a slot", () => {
  test("has it until its stream has ended, and its runtime is told of the release", async () => {
    const limiter = memoryLimiter({ policies: POLICIES });
    const kept: Promise<unknown>[] = [];
    const handler = withConcurrency({ limiter, policy: "jobs", key: "a" }, async () => new Response("body"));
    const context = { waitUntil: (work: Promise<unknown>) => void kept.push(work) };
    const first = await handler(ask(), {}, context);
    const second = await handler(ask(), {}, context);
    expect([second.status, kept.length]).toEqual([503, 0]);
    assertNotAsked(limiter, "release");
    await first.text();
    await Promise.all(kept);
    expect([kept.length, (await handler(ask(), {}, context)).status]).toEqual([1, 200]);
  });

  test.each([
    ["throws", "GET", () => Promise.reject(new Error("broken"))],
    ["answers HEAD", "HEAD", () => Promise.resolve(new Response("body"))],
    ["answers without a body", "GET", () => Promise.resolve(new Response(null, { status: 204 }))],
  ])("gives it back when it %s", async (_, method, handle) => {
    const limiter = memoryLimiter({ policies: POLICIES });
    const handler = withConcurrency({ limiter, policy: "jobs", key: "a" }, handle);
    await handler(ask(method)).catch((error: Error) => expect(error.message).toBe("broken"));
    assertAsked(limiter, "release", {}, 1);
    expect(await limiter.peek({ policy: "jobs", key: "a" })).toMatchObject({ leases: 0 });
  });
});
