/** What an object keeps of keys that nobody uses: nothing. */
import { afterEach, beforeEach, describe, expect, test, vi, type MockInstance } from "vitest";
import { readAnswer } from "../../../client/transports/send-batch.ts";
import { randomId } from "../../../core/clock.ts";
import type { AcquireCall } from "../../../core/protocol/calls.ts";
import { PROTOCOL } from "../../../core/protocol/messages.ts";
import { KeyCache } from "../../../durable-objects/keys/key-cache.ts";
import type { KeyState } from "../../../durable-objects/keys/key-state.ts";
import { KeyStore } from "../../../durable-objects/keys/key-store.ts";
import { WaitQueue } from "../../../durable-objects/operations/wait-queue.ts";
import { depth } from "../../support/depth.ts";
import { eventually } from "../../support/eventually.ts";
import { freshKey } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";
import { at } from "../../support/virtual-date.ts";

const HOUR_MS = 3_600_000;

let opened: MockInstance<KeyCache["open"]>;
let committed: MockInstance<KeyStore["commit"]>;

beforeEach(() => {
  opened = vi.spyOn(KeyCache.prototype, "open");
  committed = vi.spyOn(KeyStore.prototype, "commit");
});

afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

/** How many keys are in the memory of the objects that have opened keys beginning with this text. */
function keysInMemory(beginning: string): number {
  const { calls, contexts } = opened.mock;
  const memories = new Set(
    contexts.filter((_, call) => calls[call]?.[2].startsWith(beginning)) as KeyCache[],
  );
  expect(memories.size).toBeGreaterThan(0);
  return [...memories].reduce((keys, { size }) => keys + size, 0);
}

/** The `KeyState` that was opened last of a key, before the call of this number. */
function lastOpened(key: string, before = Infinity): KeyState | undefined {
  const { calls, results, invocationCallOrder } = opened.mock;
  const index = calls.findLastIndex(
    ([, , each], call) => each === key && (invocationCallOrder[call] ?? 0) < before,
  );
  return results[index]?.value as KeyState | undefined;
}

/** No call has saved in a `KeyState` after another one of the same key was made. */
function expectNeverTwice(): void {
  const { calls, invocationCallOrder } = committed.mock;
  expect(calls.length).toBeGreaterThan(0);
  for (const [call, [keyState]] of calls.entries())
    expect(lastOpened(keyState.key, invocationCallOrder[call])).toBe(keyState);
}

type Stub = ReturnType<typeof objectOf>["stub"];

function acquireOf(policy: string, key: string, waitMs: number): AcquireCall {
  return { policy, key, cost: 1, id: randomId(), ttlMs: 20_000, waitMs, protocol: PROTOCOL };
}

function send(stub: Stub, path: string, call: object): Promise<Response> {
  return stub.fetch(`https://object/${path}?call=${encodeURIComponent(JSON.stringify(call))}`);
}

async function acquire(stub: Stub, call: AcquireCall) {
  const answer = readAnswer(await (await send(stub, "acquire", call)).text());
  if (!("rules" in answer)) throw new Error("no decision");
  return answer;
}

const LOOKS: Record<string, (stub: Stub, key: string) => unknown> = {
  "a call of cost 0": (stub, key) => stub.limit("slow", key, 0),
  "a call of cost 0 with an idempotency key": (stub, key) => stub.limit("slow", key, 0, "again"),
  "a cost of no units": (stub, key) => stub.limit("slow", key, { requests: 0 }),
  "a cost over the limit": (stub, key) => stub.limit("slow", key, 6),
  "a cost over the limit, on a log": (stub, key) => stub.limit("log", key, 6),
  "a cost over the limit, of several rules": (stub, key) => stub.limit("several", key, 6),
  "a cost over the limit that counts denials": (stub, key) => stub.limit("hammered", key, 3),
  peek: (stub, key) => stub.peek("several", key),
  "a hold over the limit": (stub, key) => stub.hold({ policy: "slow", key, cost: 6, ttlMs: 1_000 }),
  "settle of no hold": (stub, key) => stub.settle("slow", key, randomId(), 1),
  "cancel of no hold": (stub, key) => stub.cancel("slow", key, randomId()),
  "renew of no lease": (stub, key) => stub.renew("export", key, randomId()),
  "release of no lease": (stub, key) => stub.release("export", key, randomId()),
  "confirm of no lease": (stub, key) => stub.confirm("export", key, randomId(), 1_000, false),
  "acquire of more than there is": (stub, key) =>
    stub.acquire({ ...acquireOf("export", key, 0), cost: 3, protocol: PROTOCOL }),
  "a wait for a key without leases": (stub, key) =>
    send(stub, "idle", { policy: "export", key, waitMs: 1_000 }),
  reset: (stub, key) => stub.reset("export", key),
};

describe("a look at a new key leaves nothing in memory", () => {
  test.each(Object.entries(LOOKS))("%s", async (_, look) => {
    const key = freshKey();
    const { stub } = objectOf("slow", key);
    // A key that is there, so that the object has a memory.
    await stub.limit("slow", `${key} is there`, 1);
    for (let again = 0; again < 3; again += 1) await look(stub, key);
    expect(keysInMemory(key)).toBe(1);
  });

  test("hundreds of them in one object leave the keys alone that are in use", async () => {
    const key = freshKey();
    const object = objectOf("slow", key);
    const { stub } = object;
    await stub.limit("slow", key, 1);
    const inUse = lastOpened(key);
    const asks = Object.values(LOOKS).slice(0, 4);
    for (let batch = 0; batch < depth(1, 20); batch += 1)
      await Promise.all(
        Array.from({ length: 100 }, (_, each) => asks[each % asks.length]?.(stub, `${key} ${batch}.${each}`)),
      );
    expect(keysInMemory(key)).toBe(1);
    expect(await object.remaining()).toBe(4);
    expect(lastOpened(key)).toBe(inUse);
  });

  test("nor when it waits for a lease that a reset ends", async () => {
    const key = freshKey();
    const { stub } = objectOf("export", key);
    // Both last longer than the test may: only the reset ends them.
    await acquire(stub, { ...acquireOf("export", key, 0), ttlMs: 120_000 });
    const untilIdle = vi.spyOn(WaitQueue.prototype, "untilIdle");
    const idle = send(stub, "idle", { policy: "export", key, waitMs: 120_000 });
    await eventually(() => expect(untilIdle).toHaveBeenCalled());
    await stub.reset("export", key);
    await (await idle).text();
    expect(keysInMemory(key)).toBe(0);
  });
});

describe("a key is never in memory twice", () => {
  test("while it is looked at and taken from at once, and admits what there is", async () => {
    const asks = Object.values(LOOKS).slice(0, 4);
    for (let round = 0; round < depth(6, 20); round += 1) {
      const key = freshKey();
      const { stub } = objectOf("slow", key);
      const taken = Array.from({ length: 24 }, async (_, each) => {
        if (each % 3 !== round % 3) return asks[each % asks.length]?.(stub, key);
        const answer = readAnswer(await stub.limit("slow", key, 1));
        return "rules" in answer && answer.rules[0]?.success;
      });
      expect((await Promise.all(taken)).filter((each) => each === true)).toHaveLength(5);
    }
    expectNeverTwice();
  });

  test("while callers wait for its leases, and each gets one in turn", async () => {
    for (let round = 0; round < depth(2, 5); round += 1) {
      const key = freshKey();
      const { stub } = objectOf("export", key);
      const release = async (id: string) => {
        for (let look = 0; look < 3; look += 1) await stub.release("export", key, randomId());
        expect((await stub.peek("export", key)).outstanding).toBeLessThanOrEqual(2);
        expect(await stub.release("export", key, id)).toBe(true);
      };
      const calls = Array.from({ length: 5 }, async () => {
        await stub.renew("export", key, randomId());
        const { lease } = await acquire(stub, acquireOf("export", key, 20_000));
        if (lease === undefined) return "denied";
        await release(lease.id);
        return "leased";
      });
      expect(await Promise.all(calls)).toEqual(Array.from({ length: 5 }, () => "leased"));
    }
    expectNeverTwice();
  });
});

test("after a flood of keys that came once, memory and storage are as before", async () => {
  const first = freshKey();
  const { stub, stored, runAlarm } = objectOf("flooded", first);
  const flood = depth(1_000, 2_500);
  // The alarm is set for an instant that does not come by itself while this test runs.
  at(HOUR_MS);
  for (let batch = 0; batch < flood / 100; batch += 1)
    await Promise.all(
      Array.from({ length: 100 }, (_, each) => stub.limit("flooded", `${first} ${batch}.${each}`, 1)),
    );
  expect(keysInMemory(first)).toBe(flood);
  // One row is enough for all of them.
  expect(await stored()).toMatchObject({
    tables: {},
    lead: [["flooded", { rules: { flooded: { units: 20 } } }]],
  });
  at(2 * HOUR_MS);
  expect(await runAlarm()).toBe(true);
  expect(keysInMemory(first)).toBe(0);
  expect(await stored()).toEqual({ tables: {}, alarmAtMs: null });
});
