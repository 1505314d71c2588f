/** Bounds on what callers keep in an object. Rows are put into storage by hand: a test cannot make 20,000 calls. */
import { runInDurableObject } from "cloudflare:test";
import { expect, test } from "vitest";
import { readAnswer } from "../../../client/read-answer.ts";
import type { Answer } from "../../../core/protocol/answers.ts";
import {
  MOST_CLAIMS_OF_CALLER,
  MOST_CLAIMS_OF_KEY,
  MOST_CLAIMS_OF_OBJECT,
} from "../../../durable-objects/keys/room.ts";
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
    await fill(object, key, MOST_CLAIMS_OF_KEY - 1);
    expect(await hold(object, key)).toHaveProperty("hold");
    expect(await hold(object, key)).toEqual(full("key-claims", MOST_CLAIMS_OF_KEY));
    expect(await object.stub.peek("crowd", key)).toMatchObject({
      holds: MOST_CLAIMS_OF_KEY,
      outstanding: MOST_CLAIMS_OF_KEY,
    });
    // Other keys, and calls that keep nothing, go on.
    expect(await hold(object, `${key} other`)).toHaveProperty("hold");
    expect(readAnswer(await object.stub.limit("crowd", key, 1))).toHaveProperty("rules");
    await object.evict();
    expect(await hold(object, key)).toEqual(full("key-claims", MOST_CLAIMS_OF_KEY));
    await object.stub.cancel("crowd", key, `${key} 1`.padEnd(22, "x"));
    expect(await hold(object, key)).toHaveProperty("hold");
    expect(await hold(object, key)).toEqual(full("key-claims", MOST_CLAIMS_OF_KEY));
    await object.stub.reset("crowd", `${key} other`);
  });
}, 60_000);

test("no caller takes all places of an object, and an object has no more than so many", async () => {
  const keys = [freshKey(), freshKey(), freshKey()] as const;
  await emptied(keys, async (object) => {
    await fill(object, keys[0], 4_000, "one");
    await fill(object, keys[1], MOST_CLAIMS_OF_CALLER - 4_000, "one");
    expect(await hold(object, keys[2], "one")).toEqual(full("caller-claims", MOST_CLAIMS_OF_CALLER));
    expect(await hold(object, keys[2], "other")).toHaveProperty("hold");
    await fill(object, keys[2], MOST_CLAIMS_OF_OBJECT - MOST_CLAIMS_OF_CALLER - 1, "many");
    expect(await hold(object, keys[2], "third")).toEqual(full("key-claims", MOST_CLAIMS_OF_KEY));
    const fresh = freshKey();
    expect(await hold(object, fresh, "third")).toEqual(full("object-claims", MOST_CLAIMS_OF_OBJECT));
    await object.stub.reset("crowd", keys[0]);
    expect(await hold(object, fresh, "third")).toHaveProperty("hold");
    expect(await hold(object, fresh, "one")).toHaveProperty("hold");
    await object.stub.reset("crowd", fresh);
  });
}, 60_000);
