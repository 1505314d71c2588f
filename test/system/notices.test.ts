/** Notices on plain workerd, with a receiver over HTTP: who is told, once, whatever the receiver does. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { type Manner, NOTICES_SECRET, NoticeReceiver } from "../support/notice-receiver.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const policies = {
  bucket: { algorithm: "token-bucket", limit: 10, window: "30d", notify: [0.8, 1], reservation: "off" },
  quick: { algorithm: "token-bucket", limit: 10, window: "1s", notify: [0.5], reservation: "off" },
  shared: { algorithm: "sliding-log", limit: 10, window: "30d", notify: [0.5], objects: 2 },
  slots: { algorithm: "concurrency", limit: 4, ttl: "60s", notify: [0.5, 1], order: "strict" },
  shadow: { algorithm: "token-bucket", limit: 2, window: "30d", notify: [1], shadow: true },
  monthly: { algorithm: "fixed-window", limit: 10, window: "1 month", notify: [0.5] },
  hot: { algorithm: "token-bucket", limit: 20_000, window: "30d", notify: [0.25, 0.5] },
  silent: { algorithm: "token-bucket", limit: 10, window: "30d" },
};

const state = makeState();
const receiver = new NoticeReceiver();
let target = { webhook: "" };
let serving: Serving;
const serve = (isolates = 2) =>
  serveBundle(state, policies, { isolates, notices: { target, secret: NOTICES_SECRET } });
beforeAll(async () => {
  target = { webhook: await receiver.listen() };
  serving = await serve();
});
afterAll(async () => {
  await serving.stop("SIGKILL");
  receiver.close();
  removeState(state);
});

async function call(path: string, body: object, url = serving.url, method = "POST") {
  const response = await fetch(`${url}/v1/${path}`, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    ...(method === "POST" && { body: JSON.stringify(body) }),
  });
  return (response.status === 204 ? {} : await response.json()) as {
    success: boolean;
    source: string;
    lease?: { id: string };
  };
}
const limit = (policy: string, key: string, cost = 1, url?: string) =>
  call("limit", { policy, key, cost }, url);
const thresholds = (key: string) =>
  receiver
    .of(key)
    .map(({ data }) => data.threshold)
    .toSorted((one, other) => one - other);

test("a threshold is told once, with what there is to know", async () => {
  for (let unit = 0; unit < 7; unit += 1) await limit("bucket", "ann");
  await limit("bucket", "ann");
  await eventually(() => expect(thresholds("ann")).toEqual([0.8]));
  const [told] = receiver.of("ann");
  expect(told).toEqual({
    id: expect.stringMatching(/^msg_[\w-]{22}$/),
    type: "limit.threshold",
    timestamp: expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/),
    data: {
      policy: "bucket",
      rule: "bucket",
      key: "ann",
      threshold: 0.8,
      limit: 10,
      used: 8,
      resetAfterMs: expect.any(Number),
    },
  });
  await limit("bucket", "ann", 2);
  await eventually(() => expect(thresholds("ann")).toEqual([0.8, 1]));
  // Denials tell nothing more.
  expect((await limit("bucket", "ann")).success).toBe(false);
  await sleep(300);
  expect(thresholds("ann")).toEqual([0.8, 1]);
  expect(new Set(receiver.of("ann").map(({ id }) => id)).size).toBe(2);
});

test.each(["shared", "monthly"])(
  "%s: keys of one object, and fixed windows, are told once each",
  async (policy) => {
    for (const key of ["a", "b", "c"]) await limit(policy, `${policy}-${key}`, 6);
    for (const key of ["a", "b", "c"]) await limit(policy, `${policy}-${key}`, 1);
    await eventually(() => {
      for (const key of ["a", "b", "c"]) expect(thresholds(`${policy}-${key}`)).toEqual([0.5]);
    });
  },
);

test("slots are told when they are leased, and again after a tenth of the limit has been free", async () => {
  const lease = async () => (await call("leases", { policy: "slots", key: "bob" })).lease?.id ?? "";
  const leases = [await lease(), await lease()];
  await eventually(() => expect(thresholds("bob")).toEqual([0.5]));
  await call(`leases/${leases[0]}`, {}, serving.url, "DELETE");
  leases.push(await lease());
  await eventually(() => expect(thresholds("bob")).toEqual([0.5, 0.5]));
  leases.push(await lease(), await lease());
  await eventually(() => expect(thresholds("bob")).toEqual([0.5, 0.5, 1]));
});

test("a bucket that has refilled is told again, with another id", async () => {
  await limit("quick", "cat", 6);
  await eventually(() => expect(thresholds("cat")).toHaveLength(1));
  await sleep(700);
  await limit("quick", "cat", 6);
  await eventually(() => expect(thresholds("cat")).toHaveLength(2));
  expect(new Set(receiver.of("cat").map(({ id }) => id)).size).toBe(2);
});

test("a shadow policy is told, and a policy without thresholds is not", async () => {
  for (let unit = 0; unit < 4; unit += 1) await limit("shadow", "dan");
  for (let unit = 0; unit < 12; unit += 1) await limit("silent", "dan2");
  await eventually(() => expect(thresholds("dan")).toEqual([1]));
  expect(thresholds("dan2")).toEqual([]);
});

test("a reset makes the key new: it is told again", async () => {
  await limit("bucket", "eve", 9);
  await eventually(() => expect(thresholds("eve")).toEqual([0.8]));
  await call("policies/bucket/keys/eve", {}, serving.url, "DELETE");
  await limit("bucket", "eve", 9);
  await eventually(() => expect(thresholds("eve")).toEqual([0.8, 0.8]));
});

test("use in two isolates' units is told when they report it, and only what was used", async () => {
  let [used, isLocal] = [0, false];
  // Of the last calls an isolate decides some by itself. Then nobody calls any more.
  for (let round = 0; used < 5_000 || !isLocal; round += 1) {
    const url = serving.urls[round % 2];
    const answers = await Promise.all(Array.from({ length: 20 }, () => limit("hot", "fay", 5, url)));
    isLocal = answers.some(({ source }) => source === "isolate");
    for (const { success } of answers) if (success) used += 5;
    expect(used).toBeLessThan(9_000);
  }
  await eventually(() => expect(thresholds("fay")).toEqual([0.25]));
  const [told] = receiver.of("fay");
  expect(told?.data.used).toBeGreaterThanOrEqual(5_000);
  expect(told?.data.used).toBeLessThanOrEqual(used);
  for (; used < 10_000; used += 100) await limit("hot", "fay", 100, serving.url);
  await eventually(() => expect(thresholds("fay")).toEqual([0.25, 0.5]));
});

describe("a receiver that does not take notices", () => {
  const bad: readonly Manner[] = ["fail", "hang", "redirect"];
  test.each(depth(bad.slice(0, 1), bad))(
    "%s: no decision notices, and what was not taken comes again with its id",
    async (manner) => {
      receiver.manner = manner;
      const key = `bad-${manner}`;
      const before = receiver.attempts.length;
      expect((await limit("bucket", key, 8)).success).toBe(true);
      await eventually(() => expect(receiver.attempts.length).toBeGreaterThan(before));
      for (let unit = 0; unit < 2; unit += 1) expect((await limit("bucket", key)).success).toBe(true);
      expect((await limit("bucket", key)).success).toBe(false);
      expect(receiver.of(key)).toEqual([]);
      receiver.manner = "ok";
      await eventually(() => expect(thresholds(key)).toEqual([0.8, 1]));
      const ids = new Set(receiver.attempts.filter(({ data }) => data.key === key).map(({ id }) => id));
      expect(ids.size).toBe(2);
      expect(receiver.elsewhere).toBe(0);
    },
  );

  test.each(["flood", "drip"] as const)("%s: an answer of 10 MB is not read", async (manner) => {
    receiver.manner = manner;
    const key = `large-${manner}`;
    expect((await limit("bucket", key, 10)).success).toBe(true);
    await eventually(() => expect(thresholds(key)).toEqual([0.8, 1]));
    receiver.manner = "ok";
    await sleep(500);
    expect(thresholds(key)).toEqual([0.8, 1]);
  });

  test("a machine that dies before a notice arrives sends it with its id when it is back", async () => {
    receiver.manner = "hang";
    await limit("bucket", "gus", 8);
    await eventually(() => expect(receiver.attempts.some(({ data }) => data.key === "gus")).toBe(true));
    await serving.stop("SIGKILL");
    receiver.manner = "ok";
    serving = await serve();
    // Nobody calls it: the alarm of its object does.
    await eventually(() => expect(thresholds("gus")).toEqual([0.8]));
    const ids = receiver.attempts.filter(({ data }) => data.key === "gus").map(({ id }) => id);
    expect(ids.length).toBeGreaterThan(1);
    expect(new Set(ids).size).toBe(1);
    // A threshold that was told is not told again after a crash.
    await serving.stop("SIGKILL");
    serving = await serve();
    await limit("bucket", "gus");
    await sleep(500);
    // That it has arrived may have been forgotten: then it comes once more, with its id.
    const all = receiver.attempts.filter(({ data }) => data.key === "gus").map(({ id }) => id);
    expect(new Set(all).size).toBe(1);
  });
});

test("/metrics counts what was sent, and what failed", async () => {
  await eventually(async () => {
    // Objects send their counts with later calls.
    await limit("silent", "tick");
    const headers = { authorization: `Bearer ${TOKENS.full}` };
    const text = await (await fetch(`${serving.url}/metrics`, { headers })).text();
    expect(text).toMatch(/^weir_notices_total\{policy="bucket",result="sent"\} [1-9]/m);
    expect(text).toMatch(/^weir_notices_total\{policy="bucket",result="failed"\} [1-9]/m);
  });
});

test("the catalog takes thresholds, shows them, and refuses bad ones", async () => {
  const put = async (fields: object, query = "") => {
    const response = await fetch(`${serving.url}/v1/policies/later${query}`, {
      method: "PUT",
      headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
      body: JSON.stringify(fields),
    });
    return { status: response.status, text: await response.text() };
  };
  const fields = { algorithm: "token-bucket", limit: 5, window: "30d" };
  for (const query of ["", "?dryRun=true"]) {
    const { status, text } = await put({ ...fields, notify: [2] }, query);
    expect([status, text]).toEqual([422, expect.stringContaining('"/notify/0"')]);
    expect(text).toContain("notify.0 is 2: must be");
  }
  expect((await put({ ...fields, notify: [1, 0.8] })).status).toBe(200);
  await eventually(async () => {
    const headers = { authorization: `Bearer ${TOKENS.full}` };
    const answer = await (await fetch(`${serving.url}/v1/policies`, { headers })).text();
    expect(answer).toContain('"name":"later"');
    expect(answer).toContain('"notify":[0.8,1]');
  });
  await eventually(async () => {
    await limit("later", "hal", 5);
    expect(thresholds("hal")).toEqual([0.8, 1]);
  });
});

test("a webhook that is not public, and thresholds without a webhook, stop the worker with what is allowed", async () => {
  const other = makeState();
  const start = (given: object, notices?: { target: object; secret?: string }) =>
    serveBundle(other, given, notices && { notices });
  const secret = NOTICES_SECRET;
  await expect(start(policies)).rejects.toThrow(/notify is .*with NOTICES, which says where notices go/);
  await expect(start(policies, { target })).rejects.toThrow("NOTICES_SECRET is missing");
  for (const webhook of ["http://example.com/", "https://10.0.0.1/", "https://user:word@example.com/"])
    await expect(start(policies, { target: { webhook }, secret })).rejects.toThrow("NOTICES.webhook is");
  removeState(other);
});
