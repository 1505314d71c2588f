import { Hono } from "hono";
import { describe, expect, test } from "vitest";
import { rateLimit } from "../../../package/hono.ts";
import { manualClock, memoryLimiter } from "../../../package/testing.ts";

const POLICIES = {
  api: { algorithm: "token-bucket", limit: 3, window: "1m" },
  day: { algorithm: "fixed-window", limit: 5, window: "1 day" },
  old: { algorithm: "token-bucket", limit: 2, window: "1m", headers: "x-ratelimit" },
  open: { algorithm: "token-bucket", limit: 1, window: "1m", onFailure: "open" },
  slow: { algorithm: "token-bucket", limit: 1, window: "1s", maxWait: "5s" },
  planned: {
    algorithm: "token-bucket",
    limit: 3,
    window: "1m",
    limitInCall: { max: 50 },
    plans: { pro: { limit: 30 } },
  },
  paced: { algorithm: "leaky-bucket", limit: 1, window: "1s", burst: 3 },
};

function start() {
  const clock = manualClock();
  return { clock, limiter: memoryLimiter({ policies: POLICIES, clock }) };
}
const limitHeaders = (response: Response) =>
  Object.fromEntries([...response.headers].filter(([name]) => /ratelimit|retry/.test(name)));

describe("one limit", () => {
  test("admits, tells what is left, and denies with the wait and a problem document", async () => {
    const { limiter, clock } = start();
    const app = new Hono()
      .use(rateLimit({ limiter, policy: "api", key: (c) => c.req.header("x-user") ?? "", time: clock }))
      .get("/", (c) => c.text(`left: ${c.var.limits["api"]?.remaining}`));
    const get = () => app.request("/", { headers: { "x-user": "ann" } });
    const first = await get();
    expect([first.status, await first.text()]).toEqual([200, "left: 2"]);
    expect(limitHeaders(first)).toEqual({
      ratelimit: '"api";r=2;t=20',
      "ratelimit-policy": '"api";q=3;w=60',
    });
    expect(first.headers.get("cache-control")).toBeNull();
    await get();
    await get();
    const denied = await get();
    expect(denied.status).toBe(429);
    expect(limitHeaders(denied)).toEqual({
      ratelimit: '"api";r=0;t=60',
      "ratelimit-policy": '"api";q=3;w=60',
      "retry-after": "20",
    });
    expect(denied.headers.get("content-type")).toBe("application/problem+json");
    expect(denied.headers.get("cache-control")).toBe("no-store");
    expect(await denied.json()).toMatchObject({
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      status: 429,
      "violated-policies": ["api"],
      decision: { policy: "api", success: false, retryAfterMs: 20_000 },
    });
    await clock.advance("20s");
    expect((await get()).status).toBe(200);
  });

  test("a request has the limits of its plan, or its own", async () => {
    const { limiter } = start();
    const app = new Hono();
    const of = { limiter, policy: "planned", key: "ann" };
    app.use("/plan", rateLimit({ ...of, plan: (c) => c.req.query("plan") ?? "" }));
    app.use("/own", rateLimit({ ...of, ownLimits: () => ({ requests: 50 }) }));
    app.use("/both", rateLimit({ limiter, limits: [{ policy: "planned", key: "ann", plan: "pro" }] }));
    app.get("*", (c) => c.text("passed"));
    const headersOf = async (path: string) => limitHeaders(await app.request(path));
    expect(await headersOf("/plan?plan=pro")).toEqual({
      ratelimit: '"planned";r=29;t=2',
      "ratelimit-policy": '"planned";q=30;w=60;plan="pro"',
    });
    expect(await headersOf("/plan")).toMatchObject({ ratelimit: '"planned";r=1;t=40' });
    expect(await headersOf("/own")).toMatchObject({
      ratelimit: expect.stringContaining('"planned";r=47') as string,
      "ratelimit-policy": '"planned";q=50;w=60',
    });
    expect(await headersOf("/both")).toMatchObject({
      ratelimit: expect.stringContaining('"planned";r=26') as string,
    });
    expect((await app.request("/plan?plan=gold")).status).toBe(500);
  });

  test("key and cost may be functions, also those that wait", async () => {
    const { limiter } = start();
    const app = new Hono();
    app.post(
      "/:user",
      rateLimit({
        limiter: () => Promise.resolve(limiter),
        policy: (c) => Promise.resolve(c.req.query("policy") ?? "api"),
        key: async (c) => `user:${c.req.param("user")}:${(await c.req.json<{ id: string }>()).id}`,
        cost: async (c) => (await c.req.text()).length,
      }),
      async (c) => c.json(await c.req.json()),
    );
    const body = '{"id":"a"}';
    expect((await app.request("/ann?policy=day", { method: "POST", body })).status).toBe(429);
    expect(limiter.asked("limit")[0]?.asked).toEqual({ policy: "day", key: "user:ann:a", cost: body.length });
  });

  test("headers are as the policy wants them", async () => {
    const { limiter, clock } = start();
    const app = new Hono().use(rateLimit({ limiter, policy: "old", key: "a", time: clock }));
    const response = await app.request("/");
    const reset = String(clock.nowMs() / 1_000 + 30);
    expect(limitHeaders(response)).toEqual({
      "x-ratelimit-limit": "2",
      "x-ratelimit-remaining": "1",
      "x-ratelimit-reset": reset,
    });
  });

  test("who denies may answer by itself, and without an answer the document is sent", async () => {
    const { limiter } = start();
    const seen: number[] = [];
    const app = new Hono();
    const shared = { limiter, policy: "open", key: "a" } as const;
    app.get(
      "/own",
      rateLimit({ ...shared, onDenied: ([denied], c) => c.text(`${denied?.retryAfterMs} ms`, 420 as never) }),
    );
    app.get("/looks", rateLimit({ ...shared, onDenied: (all) => void seen.push(all.length) }));
    app.get("*", (c) => c.text("ok"));
    await app.request("/own");
    const own = await app.request("/own");
    expect([own.status, await own.text()]).toEqual([420, expect.stringMatching(/^\d+ ms$/)]);
    expect(limitHeaders(own)).toMatchObject({ ratelimit: '"open";r=0;t=60', "retry-after": "60" });
    expect([(await app.request("/looks")).status, seen]).toEqual([429, [1]]);
  });

  test("a skipped request asks nobody", async () => {
    const { limiter } = start();
    const app = new Hono().use(
      rateLimit({ limiter, policy: "api", key: "a", skip: (c) => c.req.path === "/health" }),
    );
    app.get("*", (c) => c.json(c.var.limits));
    const response = await app.request("/health");
    expect([await response.json(), limitHeaders(response), limiter.calls]).toEqual([{}, {}, []]);
  });

  test("it waits for its turn, and as long as a policy that paces tells it to", async () => {
    const { limiter, clock } = start();
    const app = new Hono();
    app.get("/turn", rateLimit({ limiter, policy: "slow", key: "a", waitMs: 3_000, time: clock }));
    app.get("/pace", rateLimit({ limiter, policy: "paced", key: "a", time: clock }));
    app.get("*", (c) => c.text(String(clock.nowMs())));
    const beganMs = clock.nowMs();
    const waited = async (path: string) => Number(await (await app.request(path)).text()) - beganMs;
    const turns = [waited("/turn"), waited("/turn"), waited("/turn")];
    const paces = [waited("/pace"), waited("/pace"), waited("/pace")];
    await clock.advance("4s");
    expect(await Promise.all(turns)).toEqual([0, 1_000, 2_000]);
    expect(await Promise.all(paces)).toEqual([0, 1_000, 2_000]);
  });
});

describe("failure", () => {
  test("a degraded decision is used as it says: 503, or on without figures", async () => {
    const { limiter } = start();
    const app = new Hono();
    app.get("/closed", rateLimit({ limiter, policy: "api", key: "a" }));
    app.get("/open", rateLimit({ limiter, policy: "open", key: "a" }));
    app.get("*", (c) => c.text("ok"));
    limiter.fail();
    const closed = await app.request("/closed");
    expect([closed.status, limitHeaders(closed)]).toEqual([503, {}]);
    expect(await closed.json()).toMatchObject({
      type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    });
    const open = await app.request("/open");
    expect([open.status, limitHeaders(open)]).toEqual([200, {}]);
  });

  test("what the limiter refuses is the application's error", async () => {
    const { limiter } = start();
    const app = new Hono().use(rateLimit({ limiter, policy: "nowhere", key: "a" }));
    let thrown: unknown;
    app.onError((error, c) => {
      thrown = error;
      return c.text("bug", 500);
    });
    app.get("/", (c) => c.text("ok"));
    expect((await app.request("/")).status).toBe(500);
    expect(thrown).toMatchObject({ status: 500, cause: { status: 404, code: "policy-not-found" } });
  });

  test("a handler that fails is answered as it would be, with the headers", async () => {
    const { limiter } = start();
    const app = new Hono().use(rateLimit({ limiter, policy: "api", key: "a" }));
    app.get("/", () => {
      throw new Error("broken");
    });
    app.onError((error, c) => c.text(error.message, 500));
    const response = await app.request("/");
    expect([response.status, await response.text()]).toEqual([500, "broken"]);
    expect(limitHeaders(response)).toMatchObject({ ratelimit: '"api";r=2;t=20' });
  });

  test("without a key nothing goes on", async () => {
    const { limiter } = start();
    const app = new Hono().use(rateLimit({ limiter, policy: "api", key: () => undefined as never }));
    app.onError((error, c) => c.text(error.message, 500));
    app.get("/", (c) => c.text("ok"));
    const response = await app.request("/");
    expect([response.status, await response.text()]).toEqual([
      500,
      expect.stringContaining("key is missing"),
    ]);
  });
});

describe("several limits", () => {
  test("of one route: the one with the fewest units left is told, and all are in the context", async () => {
    const { limiter, clock } = start();
    const app = new Hono();
    app.use(rateLimit({ limiter, policy: "day", key: "a", time: clock }));
    app.get("/", rateLimit({ limiter, policy: "api", key: "a", time: clock }), (c) =>
      c.json(Object.entries(c.var.limits).map(([name, { remaining }]) => [name, remaining])),
    );
    const first = await app.request("/");
    expect(await first.json()).toEqual([
      ["day", 4],
      ["api", 2],
    ]);
    expect(limitHeaders(first)["ratelimit"]).toBe('"api";r=2;t=20');
    await clock.advance("1h");
    await limiter.limit({ policy: "day", key: "a", cost: 3 });
    expect(limitHeaders(await app.request("/"))["ratelimit"]).toMatch(/^"day";r=0;/);
    await limiter.reset({ policy: "day", key: "a" });
    await limiter.limit({ policy: "api", key: "a", cost: 2 });
    const denied = await app.request("/");
    expect([denied.status, limitHeaders(denied)["ratelimit"]]).toEqual([429, '"api";r=0;t=60']);
    // What the first one took stays taken.
    expect(await limiter.peek({ policy: "day", key: "a" })).toMatchObject({ remaining: 4 });
  });

  test("of one route: a denial is told though another limit has fewer units left", async () => {
    const { limiter, clock } = start();
    await limiter.limit({ policy: "day", key: "a", cost: 4 });
    const app = new Hono();
    app.use(rateLimit({ limiter, policy: "day", key: "a", time: clock }));
    app.get("/", rateLimit({ limiter, policy: "api", key: "a", cost: 4, time: clock }));
    const denied = await app.request("/");
    expect([denied.status, limitHeaders(denied)]).toEqual([
      429,
      { ratelimit: '"api";r=3;t=0', "ratelimit-policy": '"api";q=3;w=60' },
    ]);
  });

  test("at once: all or nothing, and the longest wait is told", async () => {
    const { limiter, clock } = start();
    const app = new Hono().use(
      rateLimit({
        limiter,
        limits: [
          { policy: "day", key: (c) => c.req.query("user") ?? "" },
          { policy: "api", key: "all", cost: 2 },
        ],
        time: clock,
      }),
    );
    app.get("/", (c) => c.json(Object.keys(c.var.limits)));
    const first = await app.request("/?user=a");
    expect([await first.json(), limitHeaders(first)["ratelimit"]]).toEqual([
      ["day", "api"],
      '"api";r=1;t=40',
    ]);
    const denied = await app.request("/?user=a");
    expect([denied.status, limitHeaders(denied)["retry-after"]]).toEqual([429, "20"]);
    expect(await denied.json()).toMatchObject({
      "violated-policies": ["api"],
      decisions: [
        { policy: "day", success: true },
        { policy: "api", success: false },
      ],
    });
    expect(await limiter.peek({ policy: "day", key: "a" })).toMatchObject({ remaining: 4 });
  });

  test("any of them: the first that admits is charged, and the headers are its own", async () => {
    const { limiter, clock } = start();
    const limits = [
      { policy: "api", key: "a" },
      { policy: "day", key: "a", cost: 2 },
    ];
    const app = new Hono().use(rateLimit({ limiter, limits, mode: "any", time: clock }));
    app.get("/", (c) => c.json(Object.keys(c.var.limits)));
    const all = [];
    for (let call = 0; call < 6; call += 1) all.push(await app.request("/"));
    expect(all.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200, 429]);
    expect(all.map((each) => limitHeaders(each)["ratelimit"])).toEqual([
      '"api";r=2;t=20',
      '"api";r=1;t=40',
      '"api";r=0;t=60',
      '"day";r=3;t=86400',
      '"day";r=1;t=86400',
      '"api";r=0;t=60',
    ]);
    expect(await all[0]?.json()).toEqual(["api"]);
    expect(await all[4]?.json()).toEqual(["api", "day"]);
    expect(limitHeaders(all[5] as Response)["retry-after"]).toBe("20");
    expect(await all[5]?.json()).toMatchObject({
      "violated-policies": ["api", "day"],
      decision: { policy: "api" },
      decisions: [{ policy: "api" }, { policy: "day" }],
    });
  });

  test("of a group and of what is beside it", async () => {
    const { limiter } = start();
    const group = new Hono().use(rateLimit({ limiter, policy: "open", key: "a" }));
    group.get("/", (c) => c.text("in"));
    const app = new Hono().route("/group", group).get("/beside", (c) => c.text("out"));
    const statuses = [];
    for (const path of ["/group", "/group", "/beside"]) statuses.push((await app.request(path)).status);
    expect(statuses).toEqual([200, 429, 200]);
  });
});
