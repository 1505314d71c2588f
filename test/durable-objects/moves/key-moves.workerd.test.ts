/** Keys that move between real objects, and calls that come to the wrong one. */
import { evictDurableObject, runInDurableObject } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { expect, test } from "vitest";
import { readAnswer } from "../../../client/transports/send-batch.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import type { Answer, Decided, Peeked } from "../../../core/protocol/answers.ts";
import { objectNames } from "../../../core/protocol/names.ts";
import { type Attached, type HandedOver, MOVE_PROTOCOL } from "../../../core/protocol/object-methods.ts";
import { policies } from "../../../durable-objects/deployment.ts";
import { KeyCache } from "../../../durable-objects/keys/key-cache.ts";
import { KeyStore } from "../../../durable-objects/keys/key-store.ts";
import type { LimiterObject } from "../../../durable-objects/limiter-object.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { freshKey } from "../../support/limiter.ts";

const { OBJECTS } = env as unknown as { OBJECTS: DurableObjectNamespace<LimiterObject> };

/** A key that is in another object than before, and stubs of both. */
function movedKey(name: string) {
  const policy = policies.get(name) as Policy;
  for (;;) {
    const key = freshKey();
    const [to, from] = objectNames(policy, key);
    if (to === undefined || from === undefined) continue;
    return { policy, key, to: () => OBJECTS.getByName(to), from: () => OBJECTS.getByName(from) };
  }
}

/** Takes units of a key in its object of before, as a version of before has. */
async function takeBefore({ policy, key, from }: ReturnType<typeof movedKey>, units: number): Promise<void> {
  await runInDurableObject(from(), (_, { storage: given }) => {
    const storage = new Storage(given);
    const cache = new KeyCache(storage);
    const store = new KeyStore(policies, storage, cache, () => undefined);
    const nowMs = Date.now();
    const keyState = store.open(policy.name, key, nowMs);
    const accounts = keyState.ruleStates.map(({ rule, account }) => ({
      ...account,
      state: rule.algorithm.debit(rule.config, account.state, nowMs, units),
    }));
    store.commit(keyState, { accounts, isExact: true }, nowMs);
  });
  // It has not heard of what was written beside it.
  await evictDurableObject(from());
}

const read = async (text: Promise<string>) => readAnswer<Decided>(await text);
const remaining = ({ rules: [rule] }: Decided) => rule?.remaining;

test("a key brings what it has consumed, and its old object has nothing of it any more", async () => {
  const moving = movedKey("moved");
  const { key, to, from } = moving;
  await takeBefore(moving, 3);
  expect(remaining(await read(to().limit("moved", key, 1)))).toBe(1);
  await expect
    .poll(() =>
      runInDurableObject(from(), (_, { storage }) => {
        const stored = new Storage(storage);
        return [stored.read(key), stored.moves.read(key)];
      }),
    )
    .toEqual([undefined, undefined]);
  expect(remaining(await read(from().limit("moved", key, 1)))).toBe(0);
  const denied = await read(to().limit("moved", key, 1));
  expect(denied.rules[0]?.success).toBe(false);
});

test("what was handed over is handed over again, until its new object says that it has arrived", async () => {
  const moving = movedKey("moved");
  const { key, to, from } = moving;
  await takeBefore(moving, 4);
  const ask = async () => {
    const handOver = { policy: "moved", layout: 8, keys: [{ key, move: 0 }] };
    const text = await from().reserve({ protocol: MOVE_PROTOCOL, handOver });
    return (JSON.parse(text) as HandedOver).keys;
  };
  const first = await ask();
  expect(first).toMatchObject([{ moved: { rules: { moved: { algorithm: "token-bucket" } } } }]);
  expect(await ask()).toEqual(first);
  // Nobody has said that it has arrived, and whoever is asked there fetches it.
  expect(remaining(await read(from().limit("moved", key, 0)))).toBe(1);
  expect(await ask()).toEqual(["nothing"]);
  expect(remaining(await read(to().limit("moved", key, 0)))).toBe(1);
});

test("every kind of call is answered by the key's object, whichever is called", async () => {
  const { key, to, from } = movedKey("moved");
  const of = { policy: "moved", key };
  const wrong = from();
  expect(remaining(await read(wrong.limitCall({ ...of, cost: 1 })))).toBe(4);
  const { hold } = await read(wrong.hold({ ...of, cost: 2, ttlMs: 60_000 }));
  expect(remaining(await read(wrong.settle("moved", key, hold?.id ?? "", 1)))).toBe(3);
  const rules = { moved: { used: 0, kept: 0, wanted: 0 } };
  const asking = { ...of, cost: 1, holder: "holder", turn: 1, ttlMs: 1_000, isShort: false, rules };
  expect(remaining(await read(wrong.reserve(asking)))).toBe(2);
  const calls = JSON.stringify([{ limit: { ...of, cost: 1 } }, { limit: { ...of, cost: 0 } }]);
  const batch = JSON.parse(await wrong.reserve({ protocol: 3, calls })) as Decided[];
  expect(batch.map(remaining)).toEqual([1, 1]);
  await wrong.giveBack("moved", [{ key, holder: "holder", turn: 2, used: { moved: 0 } }]);
  expect(remaining(await read(wrong.refund("moved", key, 2, "once")))).toBe(3);
  expect(remaining(await read(wrong.setUsed({ ...of, used: 5 })))).toBe(0);
  expect(remaining(await to().peek("moved", key))).toBe(0);
  await wrong.reset("moved", key);
  expect(remaining(await wrong.peek("moved", key))).toBe(5);
});

test("leases are granted, waited for, renewed and released through an object that does not have the key", async () => {
  const { key, to, from } = movedKey("moved-export");
  const of = { policy: "moved-export", key, cost: 1, ttlMs: 60_000 };
  const wrong = from();
  const attached = await wrong.acquire({ ...of, waitMs: 0, id: "first" });
  expect(readAnswer<Decided>(attached.answer).lease).toMatchObject({ id: "first" });
  expect(await attached.renew?.({ ttlMs: 50_000 })).toHaveProperty("fencingToken");
  const waiting = wrong.fetch("https://object/acquire", {
    method: "POST",
    body: JSON.stringify({ ...of, waitMs: 20_000, id: "second" }),
  });
  await expect.poll(async () => (await to().peek("moved-export", key)).queueLength).toBe(1);
  await attached.release?.();
  expect((await (await waiting).json<Decided>()).lease).toMatchObject({ id: "second" });
  expect(JSON.parse(await wrong.renew("moved-export", key, "second", 30_000))).toMatchObject({
    id: "second",
  });
  expect(await wrong.release("moved-export", key, "second")).toBe(true);
  const call = encodeURIComponent(JSON.stringify({ ...of, waitMs: 0, id: "third" }));
  const { webSocket } = await wrong.fetch(`https://object/socket?call=${call}`, {
    headers: { upgrade: "websocket" },
  });
  webSocket?.accept();
  await expect.poll(async () => (await to().peek("moved-export", key)).leases).toBe(1);
  webSocket?.close();
  await expect.poll(async () => (await to().peek("moved-export", key)).leases).toBe(0);
});

test("callers that wait for a key that is handed over are granted nothing there", async () => {
  const { policy, key, to, from } = movedKey("moved-export");
  const mayBeAt = objectNames(policy, key);
  const of = { policy: "moved-export", key, cost: 1, ttlMs: 60_000, mayBeAt };
  // As another version passes it on: this object fetches the key, though it is not to have it.
  const acquire = async (id: string) => {
    const body = JSON.stringify({ ...of, waitMs: 20_000, id });
    const response = await from().fetch("https://object/acquire", { method: "POST", body });
    return (await response.json()) as Answer;
  };
  expect(await acquire("first")).toHaveProperty("lease");
  const second = acquire("second").then(
    () => "granted",
    () => "failed",
  );
  const look = { policy: "moved-export", key, method: "peek", args: ["moved-export", key], mayBeAt };
  const queueLength = async () => {
    const passed = (await from().reserve({ protocol: MOVE_PROTOCOL, passedOn: look } as never)) as unknown;
    return (passed as { returned: Peeked }).returned.queueLength;
  };
  await expect.poll(queueLength).toBe(1);
  expect(await to().release("moved-export", key, "first")).toBe(true);
  expect(await second).toBe("failed");
  expect(await to().peek("moved-export", key)).toMatchObject({ leases: 0, queueLength: 0 });
});

test("a link that breaks when its key has moved shortens its lease there, and none that another link has", async () => {
  for (const isResumed of [false, true]) {
    const { policy, key, to, from } = movedKey("moved-export");
    const of = { policy: policy.name, key, cost: 1, ttlMs: 60_000, waitMs: 0, graceMs: 10_000 };
    const passedOn = {
      policy: policy.name,
      key,
      method: "acquire",
      args: [{ ...of, id: "first" }],
      mayBeAt: objectNames(policy, key),
    };
    const passed = (await from().reserve({ protocol: MOVE_PROTOCOL, passedOn } as never)) as unknown;
    const before = (passed as { returned: Attached }).returned;
    expect(readAnswer<Decided>(before.answer).lease).toMatchObject({ id: "first" });
    const resumed = isResumed ? await to().acquire({ ...of, id: "second", resume: "first" }) : undefined;
    if (resumed) expect(readAnswer<Decided>(resumed.answer).lease).toMatchObject({ id: "first" });
    else expect((await to().peek(policy.name, key)).leases).toBe(1);
    (passed as Disposable)[Symbol.dispose]();
    const leftMs = async () => (await to().peek(policy.name, key)).rules[0]?.resetAfterMs;
    if (isResumed) await new Promise((done) => setTimeout(done, 200));
    else await expect.poll(leftMs).toBeLessThanOrEqual(10_000);
    expect(((await leftMs()) ?? 0) > 10_000).toBe(isResumed);
  }
});
