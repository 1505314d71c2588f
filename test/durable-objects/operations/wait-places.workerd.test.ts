/** Calls that wait, as many as there may be. */
import { expect, test } from "vitest";
import { readAnswer } from "../../../client/transports/send-batch.ts";
import type { Answer } from "../../../core/protocol/answers.ts";
import { MAX_WAITS_OF_CALLER, MAX_WAITS_OF_OBJECT } from "../../../durable-objects/operations/wait-queue.ts";
import { freshKey } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const POLICY = "crowd-slots";
const { stub } = objectOf(POLICY, "any");
let names = 0;

async function post(path: string, call: object, signal: AbortSignal): Promise<Answer | undefined> {
  const body = JSON.stringify({ policy: POLICY, ...call });
  try {
    const response = await stub.fetch(`https://object/${path}`, { method: "POST", body, signal });
    return readAnswer(await response.text());
  } catch (error) {
    if (signal.aborted) return undefined;
    throw error;
  }
}

function acquire(key: string, caller: string, signal: AbortSignal): Promise<Answer | undefined> {
  const call = { key, caller, cost: 1, ttlMs: 60_000, waitMs: 20_000, id: `lease ${(names += 1)}` };
  return post("acquire", call, signal);
}

/** Makes so many calls of a caller that wait, on as many keys as their queues take. */
async function wait(caller: string, count: number, signal: AbortSignal): Promise<string> {
  const key = freshKey();
  await acquire(key, caller, signal);
  for (let call = 0; call < count; call += 1) void acquire(key, caller, signal);
  await expect.poll(async () => (await stub.peek(POLICY, key)).queueLength, { timeout: 30_000 }).toBe(count);
  return key;
}

test("waiting calls are bounded by caller and by object, and one that leaves makes room", async () => {
  const [one, other, third] = [new AbortController(), new AbortController(), new AbortController()];
  const key = await wait("one", MAX_WAITS_OF_CALLER, one.signal);
  const theirs = freshKey();
  await acquire(theirs, "other", other.signal);
  expect(await acquire(theirs, "one", one.signal)).toEqual({
    full: { bound: "caller-waits", most: MAX_WAITS_OF_CALLER },
  });
  expect((await stub.peek(POLICY, theirs)).queueLength).toBe(0);

  await wait("other", MAX_WAITS_OF_OBJECT - MAX_WAITS_OF_CALLER, other.signal);
  const full = { full: { bound: "object-waits", most: MAX_WAITS_OF_OBJECT } };
  expect(await acquire(theirs, "third", third.signal)).toEqual(full);
  expect(await post("idle", { key: theirs, caller: "third", waitMs: 1_000 }, third.signal)).toEqual(full);
  // What needs no waiting is answered.
  expect(await acquire(freshKey(), "third", third.signal)).toHaveProperty("lease");

  one.abort();
  await expect.poll(async () => (await stub.peek(POLICY, key)).queueLength, { timeout: 30_000 }).toBe(0);
  const waiting = acquire(theirs, "third", third.signal);
  await expect.poll(async () => (await stub.peek(POLICY, theirs)).queueLength).toBe(1);
  third.abort();
  other.abort();
  await waiting;
});

test("as many calls may wait for a key to be idle as may wait for its units", async () => {
  const key = freshKey();
  const { stub: object } = objectOf("export", key);
  const leave = new AbortController();
  const ask = async (path: string, call: object) => {
    const body = JSON.stringify({ policy: "export", key, caller: "one", waitMs: 20_000, ...call });
    const init = { method: "POST", body, signal: leave.signal };
    return readAnswer(await (await object.fetch(`https://object/${path}`, init)).text());
  };
  expect(await ask("acquire", { id: "lease", cost: 1, ttlMs: 60_000 })).toHaveProperty("lease");
  // Whichever arrives last is refused.
  const four = Array.from({ length: 4 }, () => ask("idle", {}));
  const full = { full: { bound: "key-watchers", most: 3 } };
  expect(await Promise.race(four)).toEqual(full);
  expect(await object.release("export", key, "lease")).toBe(true);
  const answers = await Promise.all(four);
  expect(answers.filter((answer) => "full" in answer)).toEqual([full]);
  expect(answers.filter((answer) => "leases" in answer && answer.leases === 0)).toHaveLength(3);
  expect(await ask("idle", {})).toMatchObject({ leases: 0 });
});
