/** Calls that travel together, on plain workerd: clients are cut with a TCP reset under load, and nobody hangs. */
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { HttpClient } from "../support/http-client.ts";
import { send } from "../support/leaving-client.ts";
import { announcedSeed, seededRandom } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const DEADLINE_MS = 2_000;
const RATE = {
  algorithm: "token-bucket",
  limit: 1_000_000,
  window: "30d",
  reservation: "off",
  deadlineMs: DEADLINE_MS,
};
const policies = { one: { ...RATE, objects: 1 }, four: { ...RATE, objects: 4 }, keyed: RATE };
const LOAD_MS = depth(3_000, 15_000);
const CONNECTIONS = 24;

const state = makeState();
let serving: Serving;
let client: HttpClient;
beforeAll(async () => {
  const main = join(import.meta.dirname, "..", "support", "batched-object.mjs");
  serving = await serveBundle(state, policies, { main });
  client = new HttpClient(serving.url, 2 * CONNECTIONS);
});
afterAll(async () => {
  client.close();
  await serving.stop("SIGKILL");
  removeState(state);
});
const counts = async () =>
  (await (await fetch(`${serving.url}/messages`)).json()) as { messages: number; calls: number };

test("nobody waits for longer than the deadline when those who send are cut off, and each has its own answer", async () => {
  const random = seededRandom(announcedSeed("outbox-resets"));
  const untilMs = Date.now() + LOAD_MS;
  const tally = { answered: 0, degraded: 0, cut: 0, longestMs: 0 };
  const stay = async () => {
    while (Date.now() < untilMs) {
      const [policy, key] = [
        ["one", "four", "keyed"][Math.floor(random() * 3)] ?? "one",
        `key-${Math.floor(random() * 20)}`,
      ];
      const sentAtMs = performance.now();
      const { status, body } = await client.limit(policy, key);
      tally.longestMs = Math.max(tally.longestMs, performance.now() - sentAtMs);
      expect({ status, policy: body["policy"], key: body["key"] }).toEqual({ status: 200, policy, key });
      if (body["reason"] === "degraded") tally.degraded += 1;
      else tally.answered += 1;
    }
  };
  const leave = async () => {
    while (Date.now() < untilMs) {
      const leaving = send(serving.url, "/v1/limit", {
        policy: "one",
        key: `key-${Math.floor(random() * 20)}`,
      });
      await sleep(random() * 12);
      leaving.leave();
      tally.cut += 1;
      // One caller may have 1,000 calls at once, and whose request was cut off counts until its deadline is over.
      await sleep(20);
    }
  };
  await Promise.all([...Array.from({ length: CONNECTIONS }, stay), ...Array.from({ length: 4 }, leave)]);
  expect(tally.cut).toBeGreaterThan(100);
  expect(tally.answered).toBeGreaterThan(100);
  // A message that was cut off with its sender has no answers, and those are few.
  expect(tally.degraded).toBeLessThan(tally.answered / 10);
  // The deadline, and what a busy machine takes beside it.
  expect(tally.longestMs).toBeLessThan(2 * DEADLINE_MS);
  const { messages, calls } = await counts();
  expect(calls).toBeGreaterThan(messages);
});

test("every charge is counted once: what was admitted is missing, and no more than was asked for", async () => {
  const before = await counts();
  const answers = await Promise.all(Array.from({ length: 200 }, () => client.limit("one", "counted")));
  expect(answers.map(({ body }) => body["success"])).toEqual(answers.map(() => true));
  expect((await client.peek("one", "counted")).body["remaining"]).toBe(1_000_000 - 200);
  const after = await counts();
  expect(after.messages - before.messages).toBeLessThan(100);
});
