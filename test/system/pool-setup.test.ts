/** What a deployment with pools needs, and who decides in which region. */
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { startRedis } from "../../scripts/redis-server.ts";
import { startBridge } from "../../scripts/upstash-bridge.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import { TEST_TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { makeState, removeState } from "../support/served.ts";

const BUCKET = { algorithm: "token-bucket", limit: 20, window: "1h", deadlineMs: 5_000 };
/** Without reservations every answer has the exact figures. */
const POLICIES = { pooled: { ...BUCKET, reservation: "off", pool: "redis" }, plain: BUCKET };
const REGIONS = {
  eu: { continents: ["EU"], locationHint: "weur" },
  asia: { continents: ["AS"], countries: ["TR"] },
};
const CALLER = join(import.meta.dirname, "..", "support", "region-caller.mjs");
const ORIGIN = "x-origin";

const stops: (() => unknown)[] = [];
afterEach(async () => {
  for (const stop of stops.splice(0).toReversed()) await stop();
});

function start(options: object): Promise<Serving> {
  const stateDir = makeState();
  stops.push(() => removeState(stateDir));
  const apiTokens = JSON.stringify(TEST_TOKENS);
  return serve({ stateDir, apiTokens, policies: POLICIES, onOutput: () => undefined, ...options });
}

async function startPool(): Promise<{ url: string; token: string }> {
  const redis = await startRedis();
  stops.push(() => redis.stop());
  const bridge = await startBridge({ redisUrl: `redis://127.0.0.1:${redis.port}`, token: "t" });
  stops.push(() => bridge.stop());
  return { url: bridge.url, token: "t" };
}

test("a policy with a pool and no secrets stops the worker from starting, and the error says what to set", async () => {
  await expect(start({})).rejects.toThrow(
    /policy \\?"pooled\\?": pool = \\?"redis\\?" needs two secrets[\s\S]*UPSTASH_REDIS_REST_URL is missing[\s\S]*wrangler secret put/,
  );
});

test("without pools nothing asks for secrets", async () => {
  const serving = await start({ policies: { plain: BUCKET } });
  stops.push(() => serving.stop());
  const client = new HttpClient(serving.url, 1, { [ORIGIN]: '{"continent":"AS"}' });
  expect((await client.limit("plain", "k")).body).toMatchObject({ success: true, source: "object" });
  client.close();
});

test("the region is of the request, or of the call over the binding, and all regions count together", async () => {
  const serving = await start({
    pool: await startPool(),
    regions: REGIONS,
    originHeader: ORIGIN,
    caller: CALLER,
  });
  stops.push(() => serving.stop());
  const clients = ["EU", "AS", "SA"].map(
    (continent) => new HttpClient(serving.url, 1, { [ORIGIN]: JSON.stringify({ continent, country: "TR" }) }),
  );
  for (const client of clients)
    expect((await client.limit("pooled", "k")).body).toMatchObject({ success: true, policy: "pooled" });
  const call = async (asked: object) => {
    const sent = { method: "POST", body: JSON.stringify(asked) };
    return (await (await fetch(serving.callerUrl, sent)).json()) as Record<string, unknown>;
  };
  expect(await call({ policy: "pooled", key: "k", region: "eu" })).toMatchObject({ remaining: 16 });
  expect(await call({ policy: "pooled", key: "k" })).toMatchObject({ remaining: 15 });
  expect(await call({ policy: "pooled", key: "k", region: "mars" })).toMatchObject({
    error: expect.stringContaining('region is "mars": must be left out, or one of "eu", "asia"'),
  });
  const report = await clients[0]?.peek("pooled", "k");
  expect(report?.body).toMatchObject({ remaining: 15, source: "pool" });
  const list = (await clients[0]?.call("GET", "/v1/policies"))?.body as { policies: object[] };
  expect(list.policies).toMatchObject([{ name: "pooled", pool: "redis" }, { name: "plain" }]);
  // The regions of a pool have no common queue.
  const waiting = await clients[0]?.limit("pooled", "k", { waitMs: 5 });
  expect(waiting?.status).toBe(422);
  const detail = "waitMs is 5: must be left out or 0, since nobody waits for units of a pool";
  expect(waiting?.body["errors"]).toEqual([{ pointer: "/waitMs", detail }]);
  // A policy's name in a region is nobody's business.
  expect((await clients[0]?.limit("pooled@eu", "k"))?.status).toBe(404);
  for (const client of clients) client.close();
});
