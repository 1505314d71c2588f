import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import { KeyCache, MemoryBudget } from "../../../durable-objects/keys/key-cache.ts";
import { KeyStore } from "../../../durable-objects/keys/key-store.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { Database } from "../../simulation/database.ts";

const policies = parsePolicies({ p: { algorithm: "token-bucket", limit: 5, window: "30d" } });
const NOW_MS = 1_000_000;
const MAX_KEYS = 300;

/** An object that takes a unit of each key it opens. */
function makeObject(memory: MemoryBudget) {
  const storage = new Storage(new Database().storage);
  const cache = new KeyCache(storage, memory);
  const store = new KeyStore(policies, storage, cache, () => undefined);
  const call = (key: string) => {
    const keyState = store.open("p", key, NOW_MS);
    const [each] = keyState.ruleStates;
    if (each === undefined) throw new Error("no rule");
    const { rule, account } = each;
    const state = rule.algorithm.debit(rule.config, account.state, NOW_MS, 1);
    store.commit(keyState, { accounts: [{ ...account, state }] }, NOW_MS);
  };
  return {
    cache,
    call,
    callAll: (count: number) => {
      for (let key = 0; key < count; key += 1) call(`key ${key}`);
    },
  };
}

test("one object may have all of the memory", () => {
  const object = makeObject(new MemoryBudget(MAX_KEYS, Infinity));
  object.callAll(2 * MAX_KEYS);
  expect(object.cache.size).toBe(MAX_KEYS);
});

test("objects that share the memory have as much together as one would, and each an even part", () => {
  const memory = new MemoryBudget(MAX_KEYS, Infinity);
  const objects = [1, 2, 3].map(() => makeObject(memory));
  for (const object of objects) object.callAll(MAX_KEYS);
  // Whoever has more than its part gives it up when it is called.
  for (const object of objects) object.callAll(MAX_KEYS);
  const sizes = objects.map(({ cache }) => cache.size);
  expect(sizes.reduce((sum, size) => sum + size, 0)).toBeLessThanOrEqual(MAX_KEYS);
  expect(Math.min(...sizes)).toBeGreaterThanOrEqual(MAX_KEYS / 3 - 1);
});

test("an object that is never called keeps what it has, and the others grow to their part all the same", () => {
  const memory = new MemoryBudget(MAX_KEYS, Infinity);
  const [idle, busy] = [makeObject(memory), makeObject(memory)];
  idle.callAll(MAX_KEYS);
  busy.callAll(MAX_KEYS);
  expect(idle.cache.size).toBe(MAX_KEYS);
  expect(busy.cache.size).toBe(MAX_KEYS / 2);
});

test("large states of one object leave for those of another", () => {
  const memory = new MemoryBudget(1_000, 4_000);
  const shares = [memory.join(), memory.join()] as const;
  memory.add(shares[0], 2, 3_500);
  memory.add(shares[1], 1, 1_000);
  expect(shares.map((share) => memory.hasTooManyBytes(share))).toEqual([true, false]);
});

test("keys that leave memory make room for others", () => {
  const memory = new MemoryBudget(MAX_KEYS, Infinity);
  const [one, two] = [makeObject(memory), makeObject(memory)];
  one.callAll(MAX_KEYS);
  for (let key = 0; key < MAX_KEYS; key += 1) one.cache.forget(`key ${key}`);
  two.callAll(MAX_KEYS);
  expect(two.cache.size).toBe(MAX_KEYS);
});

test("an object that the runtime dropped counts no more", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const memory = new MemoryBudget(MAX_KEYS, Infinity);
  // In a function of its own: a frame that goes on may keep what it has made.
  const makeAndDrop = () => {
    makeObject(memory).callAll(MAX_KEYS);
  };
  makeAndDrop();
  const object = makeObject(memory);
  // When the engine collects, and tells of it, is its own affair; it is found out after some calls.
  const sizeAfterCalls = () => {
    collect();
    for (let round = 0; round < 5; round += 1) object.callAll(MAX_KEYS);
    return object.cache.size;
  };
  await expect.poll(sizeAfterCalls, { timeout: 30_000 }).toBe(MAX_KEYS);
});

test("an object whose storage is deleted gives back its journal's part of the memory", async () => {
  let length = 0;
  const room = { add: (more: number) => void (length += more), isShort: () => false };
  const storage = new Storage(new Database().storage, undefined, room);
  for (const id of ["one", "two"])
    storage.claims.write("a", { id, kind: "lease", units: { p: 1 }, ttlMs: 1, expiresAtMs: 1 }, true);
  expect(length).toBeGreaterThan(0);
  await storage.removeAll();
  expect(length).toBe(0);
});
