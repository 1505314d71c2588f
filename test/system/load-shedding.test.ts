/** Load shedding on plain workerd, over HTTP: what is shed, in which words, and that nothing is taken for it. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

/** The quickest that is allowed: all `low` calls are shed after 9 s of trouble. */
const shed = { good: 0.05, bad: 0.95, after: "1ms", over: "9s" };
const priorities = ["critical", "low"];
const policies = {
  fleet: { algorithm: "unlimited", priorities, shed },
  api: { algorithm: "token-bucket", limit: 1_000_000, window: "1s", priorities, shed },
  plan: { algorithm: "fixed-window", limit: 1_000, window: "1d", priorities, shed, shadow: true },
  slots: { algorithm: "concurrency", limit: 4, priorities, shed: { ...shed, by: "reports" }, ttl: "60s" },
  exports: { algorithm: "concurrency", limit: 4, shed: true },
  plain: { algorithm: "unlimited" },
};
const KEY = "checkout";

const state = makeState();
let serving: Serving;
let client: HttpClient;

const limit = (policy: string, fields: object) => client.limit(policy, KEY, { ...fields });
const acquire = (priority: string, fields: object = {}) =>
  client.call("POST", "/v1/leases", { policy: "slots", key: KEY, priority, ...fields });
const chanceOf = async (policy: string): Promise<number> => {
  const { body } = await client.peek(policy, KEY);
  return (body["shedding"] as { chances: { low: number } }).chances.low;
};

beforeAll(async () => {
  serving = await serveBundle(state, policies);
  client = new HttpClient(serving.url, 16);
  // Before there is trouble: a charge that is made again later, and slots that are taken.
  await limit("api", { priority: "low", idempotencyKey: "early", cost: 3 });
  await Promise.all(Array.from({ length: 4 }, () => acquire("critical")));
  // Trouble, until every low call is shed.
  for (let least = 0; least < 1;) {
    for (const policy of ["fleet", "api", "plan"]) await limit(policy, { cost: 0, utilization: 1 });
    await acquire("critical", { utilization: 1 });
    await sleep(250);
    least = Math.min(...(await Promise.all(["fleet", "api", "plan", "slots"].map(chanceOf))));
  }
  // Isolates know it within a second.
  await Promise.all(["fleet", "api", "plan"].map((policy) => limit(policy, { cost: 0, utilization: 1 })));
  await acquire("critical", { utilization: 1 });
  await sleep(1_100);
  await acquire("critical", { utilization: 1 });
  await Promise.all(["fleet", "api", "plan"].map((policy) => limit(policy, { cost: 0, utilization: 1 })));
  await sleep(100);
});
afterAll(async () => {
  client.close();
  await serving.stop();
  removeState(state);
});

describe("when all low calls are shed", () => {
  test.each(["fleet", "api"])("a limit of %s is denied, a critical one is not", async (policy) => {
    const { body } = await limit(policy, { priority: "low" });
    expect(body).toMatchObject({ success: false, reason: "shed", source: "isolate", rules: [] });
    expect(body).not.toHaveProperty("remaining");
    expect(body["retryAfterMs"]).toBeGreaterThan(8_000);
    expect((await limit(policy, { priority: "critical" })).body).toMatchObject({ success: true });
  });

  test("with ?deny=429 it is a 503 with a wait", async () => {
    const denied = await client.call("POST", "/v1/limit?deny=429", {
      policy: "fleet",
      key: KEY,
      priority: "low",
    });
    expect(denied).toMatchObject({
      status: 503,
      body: {
        type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        detail:
          "the machines behind this policy are too busy, and less important calls are turned away first",
        decision: { reason: "shed" },
      },
    });
  });

  test("nothing is taken for it, and looks are not shed", async () => {
    const look = () => limit("plan", { cost: 0, priority: "critical" });
    const before = (await look()).body;
    // In shadow it passes, and says why it would not.
    const { body } = await limit("plan", { priority: "low", cost: 5 });
    expect(body).toMatchObject({ success: true, reason: "shadow" });
    expect((await look()).body).toMatchObject({ success: true, remaining: before["remaining"] });
    expect((await limit("api", { cost: 0, priority: "low" })).body).toMatchObject({
      success: true,
      reason: "ok",
    });
  });

  test("a call that was admitted before is answered as it was; another key is shed, and nothing is remembered", async () => {
    const again = { priority: "low", cost: 3 };
    expect((await limit("api", { ...again, idempotencyKey: "early" })).body).toMatchObject({ success: true });
    expect((await limit("api", { ...again, idempotencyKey: "late" })).body).toMatchObject({ reason: "shed" });
    const important = { priority: "critical", cost: 3, idempotencyKey: "late" };
    expect((await limit("api", important)).body).toMatchObject({ success: true });
  });

  test("leases are shed, sockets too, and holds and checks on several keys", async () => {
    expect((await acquire("low")).body).toMatchObject({ success: false, reason: "shed", rules: [] });
    expect((await acquire("low", { waitMs: 5_000, idempotencyKey: "x" })).body).toMatchObject({
      reason: "shed",
    });
    expect((await acquire("critical")).body).toMatchObject({ success: false, reason: "quota" });
    const socket = new WebSocket(
      `${serving.url.replace("http", "ws")}/v1/leases/socket?policy=slots&key=${KEY}&priority=low`,
      { headers: { authorization: `Bearer ${TOKENS.full}` } } as unknown as string[],
    );
    const first = await new Promise<MessageEvent>((heard) => socket.addEventListener("message", heard));
    expect(JSON.parse(String(first.data))).toMatchObject({ success: false, reason: "shed" });
    const hold = { policy: "api", key: KEY, units: 1, priority: "low" };
    expect((await client.call("POST", "/v1/holds", hold)).body).toMatchObject({ reason: "shed" });
    const checks = [
      { policy: "api", key: KEY },
      { policy: "plain", key: KEY },
    ];
    const all = await client.call("POST", "/v1/limit/all", { checks, priority: "low" });
    expect(all.body).toMatchObject({ success: false, decisions: [{ reason: "shed" }, { success: true }] });
    const each = await client.call("POST", "/v1/limit/all", { checks, priority: "low", atomic: false });
    expect(each.body).toMatchObject({ decisions: [{ reason: "shed" }, { success: true }] });
  });

  test("a forced debit is not shed", async () => {
    expect((await limit("api", { force: true, priority: "low" })).body).toMatchObject({ success: true });
  });

  test("a reset lets all come back at once", async () => {
    expect((await client.call("DELETE", `/v1/policies/fleet/keys/${KEY}`)).status).toBe(204);
    expect((await limit("fleet", { priority: "low" })).body).toMatchObject({ success: true });
    expect(await chanceOf("fleet")).toBe(0);
  });
});

test("a utilization that is none, or that nobody asked for, is refused", async () => {
  const refused = await limit("fleet", { utilization: 85 });
  expect(refused.status).toBe(422);
  expect(JSON.stringify(refused.body)).toContain("utilization is 85: must be a number from 0 to 1");
  for (const policy of ["plain", "exports"])
    expect(JSON.stringify((await limit(policy, { cost: 0, utilization: 0.5 })).body)).toContain(
      "must be left out: this policy has no shed",
    );
});

test("without reports a policy's own leases tell how busy it is", async () => {
  const take = () => client.call("POST", "/v1/leases", { policy: "exports", key: KEY });
  for (let lease = 0; lease < 5; lease += 1) await take();
  await sleep(1_100);
  await take();
  await expect
    .poll(async () => (await client.peek("exports", KEY)).body["shedding"], { timeout: 10_000 })
    .toMatchObject({ chances: { critical: 0, low: 0 } });
  const { utilization } = (await client.peek("exports", KEY)).body["shedding"] as { utilization: number };
  expect(utilization).toBeGreaterThan(0.3);
});
