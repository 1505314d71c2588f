/** How large a message is, and how many queues there are. */
import { expect, test } from "vitest";
import { BatchQueue, BatchQueues, QueuedCall } from "../../client/transports/batch-queue.ts";
import { type BatchedCall, MAX_BATCH_LENGTH, MAX_BATCHED } from "../../core/protocol/messages.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

const DEADLINE_MS = 300;
const callOf = (key: string): BatchedCall => ({ limit: { policy: "api", key, cost: 1 } });

test("a message has so many calls and characters, and no more", async () => {
  const history = new History();
  const long = "k".repeat(MAX_BATCH_LENGTH / 4);
  history.time.at(0, () => {
    for (let call = 0; call < 8; call += 1) void history.call(`${long}${call}`, () => ({ backMs: 1 }));
  });
  await history.time.run(1_000, () => undefined);
  expect(history.messages.map(({ keys }) => keys.length)).toEqual([3, 3, 2]);
  const many = new History();
  many.time.at(0, () => {
    for (let call = 0; call < MAX_BATCHED + 1; call += 1) void many.call(`${call}`, () => ({ backMs: 1 }));
  });
  await many.time.run(1_000, () => undefined);
  expect(many.messages.map(({ keys }) => keys.length)).toEqual([MAX_BATCHED, 1]);
});

test("queues are forgotten when nobody calls, those of requests that have ended too, and there are so many at most", () => {
  const queues = new BatchQueues();
  expect(queues.open("a", 0)).toBe(queues.open("a", 0));
  queues.release("a", 0);
  expect(queues.size).toBe(0);
  const time = new VirtualTime().clock({ ms: 0 }, () => true);
  const dead = {
    time,
    deadlineMs: DEADLINE_MS,
    send: () => new Promise<undefined>(() => undefined),
    inBackground: () => undefined,
  };
  for (let index = 0; index < 10_000; index += 1) void queues.open(`${index}`, 0)?.post(callOf("key"), dead);
  const most = queues.size;
  expect(queues.open("one more", 0)).toBeUndefined();
  expect(queues.open("one more", 5_000)).toBeDefined();
  expect(queues.size).toBeLessThan(most);
});
