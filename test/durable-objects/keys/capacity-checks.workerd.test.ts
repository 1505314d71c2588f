/** Bounds on what callers keep in an object. Rows are put into storage by hand: a test cannot make 20,000 calls. */
import { runInDurableObject } from "cloudflare:test";
import { describe, expect, test } from "vitest";
import { readAnswer } from "../../../client/transports/send-batch.ts";
import type { Answer } from "../../../core/protocol/answers.ts";
import { ownKey, rangeOf } from "../../../core/protocol/names.ts";
import {
  MAX_CLAIMS_OF_CALLER,
  MAX_CLAIMS_OF_KEY,
  MAX_CLAIMS_OF_OBJECT,
} from "../../../durable-objects/keys/idempotency.ts";
import {
  MAX_ANSWERS_LENGTH,
  MAX_ANSWERS_LENGTH_OF_CALLER,
} from "../../../durable-objects/storage/answers.ts";
import { freshKey } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const HOUR_MS = 3_600_000;
type KeyObject = ReturnType<typeof objectOf>;

async function hold(object: KeyObject, key: string, caller?: string): Promise<Answer> {
  const call = { policy: "crowd", key, cost: 1, ttlMs: HOUR_MS, ...(caller !== undefined && { caller }) };
  return readAnswer(await object.stub.hold(call));
}

/** Stores so many holds of a key, and makes the object forget its memory. */
async function fill(object: KeyObject, key: string, count: number, caller?: string): Promise<void> {
  // The table, and the key's record.
  await hold(object, key, caller);
  await object.rest();
  await runInDurableObject(object.stub, (_, { storage }) => {
    storage.transactionSync(() => {
      for (let index = 1; index < count; index += 1) {
        const claim = {
          id: `${key} ${index}`.padEnd(22, "x"),
          kind: "hold",
          units: { crowd: 1 },
          ttlMs: HOUR_MS,
          expiresAtMs: Date.now() + HOUR_MS + index,
          caller,
        };
        const row = [key, claim.id, JSON.stringify(claim), caller ?? null];
        storage.sql.exec("INSERT INTO holds (key, id, claim, caller) VALUES (?, ?, ?, ?)", ...row);
      }
    });
  });
  await object.evict();
}

function full(bound: string, most: number): object {
  return { full: { bound, most } };
}

/** All keys of the policy share an object, so each test resets what it has filled. */
async function emptied(keys: readonly string[], work: (object: KeyObject) => Promise<void>): Promise<void> {
  const object = objectOf("crowd", "any");
  try {
    await work(object);
  } finally {
    for (const key of keys) await object.stub.reset("crowd", key);
  }
}

test("a key has so many holds; one that ends makes room for one, also after an eviction", async () => {
  const key = freshKey();
  await emptied([key], async (object) => {
    await fill(object, key, MAX_CLAIMS_OF_KEY - 1);
    expect(await hold(object, key)).toHaveProperty("hold");
    expect(await hold(object, key)).toEqual(full("key-claims", MAX_CLAIMS_OF_KEY));
    expect(await object.stub.peek("crowd", key)).toMatchObject({
      holds: MAX_CLAIMS_OF_KEY,
      outstanding: MAX_CLAIMS_OF_KEY,
    });
    // Other keys, and calls that keep nothing, go on.
    expect(await hold(object, `${key} other`)).toHaveProperty("hold");
    expect(readAnswer(await object.stub.limit("crowd", key, 1))).toHaveProperty("rules");
    await object.evict();
    expect(await hold(object, key)).toEqual(full("key-claims", MAX_CLAIMS_OF_KEY));
    await object.stub.cancel("crowd", key, `${key} 1`.padEnd(22, "x"));
    expect(await hold(object, key)).toHaveProperty("hold");
    expect(await hold(object, key)).toEqual(full("key-claims", MAX_CLAIMS_OF_KEY));
    await object.stub.reset("crowd", `${key} other`);
  });
});

test("no caller takes all places of an object, and an object has no more than so many", async () => {
  const keys = [freshKey(), freshKey(), freshKey()] as const;
  await emptied(keys, async (object) => {
    await fill(object, keys[0], 4_000, "one");
    await fill(object, keys[1], MAX_CLAIMS_OF_CALLER - 4_000, "one");
    expect(await hold(object, keys[2], "one")).toEqual(full("caller-claims", MAX_CLAIMS_OF_CALLER));
    expect(await hold(object, keys[2], "other")).toHaveProperty("hold");
    await fill(object, keys[2], MAX_CLAIMS_OF_OBJECT - MAX_CLAIMS_OF_CALLER - 1, "many");
    expect(await hold(object, keys[2], "third")).toEqual(full("key-claims", MAX_CLAIMS_OF_KEY));
    const fresh = freshKey();
    expect(await hold(object, fresh, "third")).toEqual(full("object-claims", MAX_CLAIMS_OF_OBJECT));
    await object.stub.reset("crowd", keys[0]);
    expect(await hold(object, fresh, "third")).toHaveProperty("hold");
    expect(await hold(object, fresh, "one")).toHaveProperty("hold");
    await object.stub.reset("crowd", fresh);
  });
});

describe("answers under idempotency keys", () => {
  const LENGTHS = "answers";
  type Lengths = [string, number][];
  const caller = (name: string) => JSON.stringify({ token: name });
  const limitBy = async (object: KeyObject, key: string, name: string, id: string) => {
    const idempotencyKey = ownKey(caller(name), id);
    return readAnswer(await object.stub.limitCall({ policy: "crowd", key, cost: 1, idempotencyKey }));
  };
  const lengths = (object: KeyObject) =>
    runInDurableObject(object.stub, (_, { storage }) => new Map(storage.kv.get<Lengths>(LENGTHS)));
  const [one] = rangeOf(ownKey(caller("one"), "any"));

  test("of one caller take half of what an object keeps, and those of all no more than that; then nothing is touched", async () => {
    const key = freshKey();
    await emptied([key], async (object) => {
      expect(await limitBy(object, key, "one", "first")).toHaveProperty("rules");
      const put = (all: Lengths) =>
        runInDurableObject(object.stub, (_, { storage }) => storage.kv.put(LENGTHS, all));
      await put([[one, MAX_ANSWERS_LENGTH_OF_CALLER]]);
      await object.evict();
      const before = (await object.stub.peek("crowd", key)).rules;
      expect(await limitBy(object, key, "one", "second")).toEqual(
        full("caller-object-answers", MAX_ANSWERS_LENGTH_OF_CALLER),
      );
      expect((await object.stub.peek("crowd", key)).rules).toMatchObject(
        before.map(({ remaining }) => ({ remaining })),
      );
      // What was answered before is still answered, and others are served.
      expect(await limitBy(object, key, "one", "first")).toHaveProperty("rules");
      expect(await limitBy(object, key, "two", "first")).toHaveProperty("rules");
      await put([[one, MAX_ANSWERS_LENGTH]]);
      await object.evict();
      expect(await limitBy(object, key, "two", "second")).toEqual(full("object-answers", MAX_ANSWERS_LENGTH));
    });
  });

  test("are counted when they are in their table, also through an eviction, and not any more when they are gone", async () => {
    const key = freshKey();
    await emptied([key], async (object) => {
      await runInDurableObject(object.stub, (_, { storage }) => storage.kv.delete(LENGTHS));
      await object.evict();
      // Each is folded by itself, and 64 segments that are written write the count.
      const call = async (id: number) => {
        await limitBy(object, key, "one", `id ${id}`);
        await object.rest();
      };
      for (let id = 0; id < 64; id += 1) await call(id);
      const counted = (await lengths(object)).get(one) ?? 0;
      expect(counted).toBeGreaterThan(64 * 100);
      await object.evict();
      for (let id = 64; id < 128; id += 1) await call(id);
      expect((await lengths(object)).get(one)).toBeGreaterThan(1.9 * counted);
      await object.stub.reset("crowd", key);
      for (let id = 128; id < 192; id += 1) await call(id);
      expect((await lengths(object)).get(one) ?? 0).toBeLessThan(1.5 * counted);
    });
  });
});
