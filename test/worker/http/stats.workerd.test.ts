import { SELF } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { beforeAll, describe, expect, test } from "vitest";
import { instantText } from "../../../core/clock.ts";
import { STATS_NAME } from "../../../core/stats/messages.ts";
import type { StatsObject } from "../../../durable-objects/stats/stats-object.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { call } from "../../support/limiter.ts";
import { parsedMetrics } from "../../support/metrics.ts";

const { STATS } = env as unknown as { STATS: DurableObjectNamespace<StatsObject> };
const HOUR_MS = 3_600_000;

async function metrics(token: string, accept?: string) {
  const headers = { authorization: `Bearer ${token}`, ...(accept !== undefined && { accept }) };
  const response = await SELF.fetch("https://weir.test/metrics", { headers });
  return { status: response.status, type: response.headers.get("content-type"), text: await response.text() };
}

beforeAll(async () => {
  await STATS.getByName(STATS_NAME).push({
    sender: "test",
    number: 1,
    counts: {
      "decisions api admitted ok isolate": 40,
      "decisions api denied quota object": 3,
      "decisions api denied blocked object": 1,
      "decisions api denied degraded fallback": 2,
      "decisions slow admitted ok object": 7,
      "decisions planned admitted ok isolate": 9,
      "decisions planned denied quota object": 2,
      "plan_decisions planned pro admitted": 6,
      "plan_decisions planned pro denied": 2,
      "plan_decisions planned max admitted": 1,
      rows_written: 5,
    },
    keys: [
      {
        policy: "api",
        denied: {
          keys: [
            ["tenant-a:1", 2, 0],
            ["tenant-b:1", 1, 1],
          ],
          least: 0,
        },
        active: { keys: [["tenant-a:1", 30, 4]], least: 0 },
      },
      {
        policy: "fair~groups",
        denied: { keys: [["flood", 2, 0]], least: 0 },
        active: {
          keys: [
            ["flood", 30, 4],
            ["small", 1, 0],
          ],
          least: 0,
        },
      },
      {
        policy: "planned",
        active: {
          keys: [
            ["a", 8, 0, "pro"],
            ["b", 3, 0],
          ],
          least: 0,
        },
      },
    ],
  });
});

describe("GET /metrics", () => {
  test("is OpenMetrics, for whoever has the scope metrics or admin", async () => {
    for (const token of [TOKENS.metrics, TOKENS.admin]) {
      const { status, type, text } = await metrics(token);
      expect([status, type]).toEqual([200, "application/openmetrics-text; version=1.0.0; charset=utf-8"]);
      const { samples } = parsedMetrics(text);
      const name = 'weir_decisions_total{policy="api",outcome="admitted",reason="ok",source="isolate"}';
      expect(samples.get(name)).toBe(40);
      expect(samples.get("weir_rows_written_total")).toBeGreaterThanOrEqual(5);
    }
    for (const token of [TOKENS.limit, TOKENS.tenant]) expect((await metrics(token)).status).toBe(403);
    expect((await metrics("weir_guess")).status).toBe(401);
  });

  test("is the older format for whoever takes no other", async () => {
    const prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    expect((await metrics(TOKENS.metrics, prometheus)).type).toMatch(/^application\/openmetrics-text/);
    expect((await metrics(TOKENS.metrics, "*/*")).type).toMatch(/^application\/openmetrics-text/);
    const plain = await metrics(TOKENS.metrics, "text/plain");
    expect(plain.type).toMatch(/^text\/plain/);
    expect(plain.text).toContain("# TYPE weir_decisions_total counter");
  });

  test("has no key in it", async () => {
    expect((await metrics(TOKENS.metrics)).text).not.toContain("tenant-a");
  });
});

describe("GET /v1/stats", () => {
  const stats = (query: string, token: string = TOKENS.admin) => call(`/v1/stats?${query}`, { token });

  test("says by step what was admitted, denied and degraded, and why", async () => {
    for (const step of ["minute", "hour"]) {
      const { status, body } = await stats(`policy=api&step=${step}`);
      expect(status).toBe(200);
      expect(body).toMatchObject({ policy: "api", step, since: expect.stringMatching(/^\d{4}-.*Z$/) });
      const points = body["points"] as {
        admitted: number;
        denied: number;
        degraded: number;
        reasons: object;
      }[];
      const sums = { admitted: 0, denied: 0, degraded: 0 };
      for (const point of points)
        for (const name of ["admitted", "denied", "degraded"] as const) sums[name] += point[name];
      expect(sums).toEqual({ admitted: 40, denied: 6, degraded: 2 });
      expect(points[0]?.reasons).toEqual({ quota: 3, blocked: 1, degraded: 2 });
    }
    expect((await stats("policy=login-of-nobody")).status).toBe(404);
    expect((await stats("policy=several")).body["points"]).toEqual([]);
  });

  test.each([
    ["", "policy", "policy is missing"],
    ["policy=api&step=second", "step", 'step is "second": must be one of "minute", "hour"'],
    ["policy=api&since=60", "since", 'since is "60": must be a duration such as'],
    ["policy=api&since=2026-11-22", "since", 'since is "2026-11-22": must be a duration'],
    [
      "policy=api&since=2026-02-30T18:00:00Z",
      "since",
      'since is "2026-02-30T18:00:00Z": must be a duration such as .*Z"$',
    ],
    ["policy=api&since=2d", "since", 'since is "2d": must be a duration .*, not before 1d ago by the minute'],
    ["policy=api&step=hour&since=31d", "since", "not before 30d ago by the hour"],
    [`policy=api&since=${instantText(Date.now() + HOUR_MS)}`, "since", "not after now"],
    ["policy=api&sinze=1h", "sinze", "sinze is not a field: .*did you mean since"],
  ])("refuses %j, and says what is allowed", async (query, field, detail) => {
    const { status, body } = await stats(query);
    expect(status).toBe(422);
    const [error] = body["errors"] as { pointer: string; detail: string }[];
    expect(error?.pointer).toBe(`/${field}`);
    expect(error?.detail).toMatch(new RegExp(detail));
  });

  test("says how many of them each plan decided, and nothing of plans where calls have named none", async () => {
    const { body } = await stats("policy=planned&step=hour");
    const [point] = body["points"] as { admitted: number; denied: number; plans?: object }[];
    expect(point).toMatchObject({
      admitted: 9,
      denied: 2,
      plans: { pro: { admitted: 6, denied: 2 }, max: { admitted: 1, denied: 0 } },
    });
    const [plain] = (await stats("policy=api&step=hour")).body["points"] as object[];
    expect(plain).not.toHaveProperty("plans");
  });

  test("takes a duration or an instant", async () => {
    for (const since of ["2m", "90s", "1d", instantText(Date.now() - HOUR_MS)])
      expect((await stats(`policy=api&since=${since}`)).status).toBe(200);
  });

  test("needs the scope admin, and another method is answered with 405", async () => {
    expect((await stats("policy=api", TOKENS.metrics)).status).toBe(403);
    expect((await call("/v1/stats?policy=api", { method: "POST" })).status).toBe(405);
    expect((await call("/metrics", { method: "POST" })).headers.get("allow")).toBe("GET, HEAD");
  });
});

test("GET /v1/stats/groups has the groups that were denied most often, of all keys together", async () => {
  const groups = (query: string, token: string = TOKENS.admin) =>
    call(`/v1/stats/groups?${query}`, { token });
  const { status, body } = await groups("policy=fair");
  expect([status, body]).toMatchObject([200, { policy: "fair", by: "denied" }]);
  expect(body["groups"]).toEqual([{ group: "flood", count: 2, error: 0 }]);
  expect((await groups("policy=fair&by=active")).body["groups"]).toEqual([
    { group: "flood", count: 30, error: 4 },
    { group: "small", count: 1, error: 0 },
  ]);
  expect((await groups("policy=slow")).body["groups"]).toEqual([]);
  expect((await groups("policy=fair&by=most")).body["errors"]).toMatchObject([{ pointer: "/by" }]);
  expect((await groups("policy=nowhere")).status).toBe(404);
  expect((await groups("policy=fair", TOKENS.limit)).status).toBe(403);
});

describe("GET /v1/stats/keys", () => {
  const keys = (query: string, token: string = TOKENS.admin) => call(`/v1/stats/keys?${query}`, { token });

  test("has the keys that were denied most often, each with its error; or that came most often", async () => {
    const { status, body } = await keys("policy=api");
    expect(status).toBe(200);
    expect(body).toMatchObject({
      policy: "api",
      by: "denied",
      keys: [
        { key: "tenant-a:1", count: 2, error: 0 },
        { key: "tenant-b:1", count: 1, error: 1 },
      ],
    });
    expect((await keys("policy=planned&by=active")).body["keys"]).toEqual([
      { key: "a", count: 8, error: 0, plan: "pro" },
      { key: "b", count: 3, error: 0 },
    ]);
    expect((await keys("policy=api&by=active")).body["keys"]).toEqual([
      { key: "tenant-a:1", count: 30, error: 4 },
    ]);
    expect((await keys("policy=slow")).body["keys"]).toEqual([]);
  });

  test("refuses what it does not know, and whoever has not the scope admin", async () => {
    expect((await keys("policy=api&by=most")).body["errors"]).toEqual([
      { pointer: "/by", detail: 'by is "most": must be one of "denied", "active"' },
    ]);
    expect((await keys("policy=api", TOKENS.limit)).status).toBe(403);
    expect((await keys("policy=nowhere")).status).toBe(404);
  });
});
