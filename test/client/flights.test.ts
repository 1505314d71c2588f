/** Messages to a far object, of which several are under way at once. */
import { expect, test } from "vitest";
import { BatchQueue, type QueuedCall } from "../../client/transports/batch-queue.ts";
import type { Answers } from "../../client/transports/send-batch.ts";
import { type BatchedCall, MAX_BATCH_LENGTH, MAX_BATCHED } from "../../core/protocol/messages.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

const callOf = (key: string): BatchedCall => ({ limit: { policy: "api", key, cost: 1 } });

test("full messages go at once to a far object that keeps up, and one after the other to one that does not", async () => {
  /** The most messages under way, if each is 40 ms on its way, and takes `workMs` of the object. */
  const most = async (workMs: number) => {
    const time = new VirtualTime();
    const clock = time.clock({ ms: 0 });
    const queue = new BatchQueue();
    let [underWay, maxUnderWay, answered, freeAtMs] = [0, 0, 0, 0];
    const send = (sent: readonly QueuedCall[]): Promise<Answers> => {
      underWay += 1;
      maxUnderWay = Math.max(maxUnderWay, time.nowMs < 2_000 ? 0 : underWay);
      freeAtMs = Math.max(freeAtMs, time.nowMs) + workMs;
      return new Promise((done) =>
        clock.after(40 + freeAtMs - time.nowMs, () => {
          underWay -= 1;
          done(sent.map(() => ({ rules: [] }) as never));
        }),
      );
    };
    const request = { time: clock, deadlineMs: 10_000, send, inBackground: () => undefined };
    const perMs = MAX_BATCHED / 40;
    let made = 0;
    for (let atMs = 0; atMs < 4_000; atMs += 1)
      time.at(atMs, () => {
        for (; made < atMs * perMs; made += 1)
          void queue.post(callOf(`${made}`), request).then(() => (answered += 1));
      });
    await time.run(30_000, () => undefined);
    expect(answered).toBe(made);
    return maxUnderWay;
  };
  // A full message comes every 40 ms.
  expect(await most(10)).toBeGreaterThan(1);
  expect(await most(50)).toBeLessThanOrEqual(6);
});

test("messages that are under way together when an object stands still for a moment do not make it count as overloaded", async () => {
  const time = new VirtualTime();
  const clock = time.clock({ ms: 0 });
  const queue = new BatchQueue({ maxCalls: 8, maxLength: MAX_BATCH_LENGTH });
  let underWay = 0;
  const atStop: number[] = [];
  const send = (sent: readonly QueuedCall[]): Promise<Answers> => {
    underWay += 1;
    const arrivesMs = time.nowMs + 20;
    const answersMs = arrivesMs >= 3_000 && arrivesMs < 3_200 ? 3_200 : arrivesMs;
    return new Promise((done) =>
      clock.after(answersMs + 20 - time.nowMs, () => {
        underWay -= 1;
        done(sent.map(() => ({ rules: [] }) as never));
      }),
    );
  };
  time.at(3_020, () => void atStop.push(underWay));
  const request = { time: clock, deadlineMs: 10_000, send, inBackground: () => undefined };
  const overloaded: number[] = [];
  for (let atMs = 0; atMs < 6_000; atMs += 1)
    time.at(atMs, () => {
      for (let call = 0; call < 2; call += 1)
        void queue.post(callOf(`${atMs} ${call}`), request).then(({ answer }) => {
          if (answer && "overloaded" in answer) overloaded.push(atMs);
        });
    });
  await time.run(30_000, () => undefined);
  // As many as the load needs.
  expect(atStop[0]).toBe(10);
  expect(overloaded).toEqual([]);
});
