/** Each row of docs/migrating/hono-rate-limiter.md, beside the real one: one request after the other to both. */
import { type Context, Hono } from "hono";
import { type ConfigProps, rateLimiter } from "hono-rate-limiter";
import { expect, test } from "vitest";
import { type LimitVariables, rateLimit, type RateLimitOptions } from "../../package/hono.ts";
import { manualClock, memoryLimiter } from "../../package/testing.ts";

const MINUTE = { algorithm: "fixed-window", window: "1m", align: "first" };
const POLICIES = {
  api: { ...MINUTE, limit: 2, headers: "draft-7" },
  pro: { ...MINUTE, limit: 4 },
};

type App = { Variables: LimitVariables };
type Ours = Omit<RateLimitOptions<App>, "limiter" | "policy" | "key" | "limits" | "mode">;
const keyOf = (c: Context) => c.req.header("x-user") ?? "anonymous";

/** Both applications. */
function start(theirs: Partial<ConfigProps>, ours: Ours & { readonly policy?: (c: Context) => string } = {}) {
  const limiter = memoryLimiter({ policies: POLICIES, clock: manualClock() });
  const there = new Hono<{ Variables: { rateLimit: { remaining: number } } }>();
  there.use(
    rateLimiter({
      windowMs: 60_000,
      limit: 2,
      standardHeaders: "draft-7",
      keyGenerator: keyOf,
      ...theirs,
    }),
  );
  there.get("*", (c) => c.json(c.get("rateLimit")?.remaining ?? null));
  const here = new Hono<App>();
  here.use(rateLimit<App>({ limiter, policy: "api", key: keyOf, ...ours } as RateLimitOptions<App>));
  here.get("*", (c) => c.json(c.var.limits?.["api"]?.remaining ?? null));
  const both = async (path = "/", user = "ann") => {
    const init = { headers: { "x-user": user } };
    return [await there.request(path, init), await here.request(path, init)] as const;
  };
  return { limiter, both };
}

test("windowMs, limit, keyGenerator and the decision: as many pass of each key, with what is left", async () => {
  const { both } = start({});
  for (const [user, remaining] of [
    ["ann", 1],
    ["ann", 0],
    ["bob", 1],
  ] as const) {
    const [theirs, ours] = await both("/", user);
    expect([theirs.status, ours.status]).toEqual([200, 200]);
    expect([await theirs.json(), await ours.json()]).toEqual([remaining, remaining]);
  }
  const [theirs, ours] = await both();
  expect([theirs.status, ours.status]).toEqual([429, 429]);
});

test("standardHeaders: the same header fields", async () => {
  const { both } = start({});
  const [theirs, ours] = await both();
  const parts = (response: Response) =>
    (response.headers.get("ratelimit") ?? "").replace(/reset=\d+/, "reset=");
  expect(parts(ours)).toBe(parts(theirs));
  expect(parts(ours)).toContain("remaining=1");
});

test("limit as a function: a policy for each plan", async () => {
  const isPro = (c: Context) => keyOf(c) === "pro";
  const { both } = start(
    { limit: (c) => (isPro(c as Context) ? 4 : 2) },
    { policy: (c) => (isPro(c) ? "pro" : "api") },
  );
  for (const [user, admitted] of [
    ["pro", 4],
    ["ann", 2],
  ] as const) {
    const counts = [0, 0];
    for (let call = 0; call < 6; call += 1)
      for (const [index, { status }] of (await both("/", user)).entries())
        if (status === 200) counts[index] = (counts[index] ?? 0) + 1;
    expect(counts).toEqual([admitted, admitted]);
  }
});

test("handler, message and statusCode: onDenied; without it there is text there, a problem document here", async () => {
  const own = start(
    { message: "slow down", statusCode: 418 },
    { onDenied: (_, c) => c.text("slow down", 418) },
  );
  const plain = start({});
  for (let call = 0; call < 2; call += 1) {
    await own.both();
    await plain.both();
  }
  for (const response of await own.both())
    expect([response.status, await response.text()]).toEqual([418, "slow down"]);
  const types = (await plain.both()).map(({ headers }) => headers.get("content-type"));
  expect(types).toEqual([expect.stringContaining("text/plain"), "application/problem+json"]);
});

test("skip: what is skipped counts nothing", async () => {
  const skip = (c: { readonly req: { readonly path: string } }) => c.req.path === "/health";
  const { both } = start({ skip }, { skip });
  for (let call = 0; call < 5; call += 1)
    expect((await both("/health")).map(({ status }) => status)).toEqual([200, 200]);
  expect(await Promise.all((await both()).map((response) => response.json()))).toEqual([1, 1]);
});

test("an empty key is one client there, and an error here", async () => {
  const { both } = start({});
  expect((await both("/", "")).map(({ status }) => status)).toEqual([200, 500]);
});
