import { runInDurableObject } from "cloudflare:test";
import { afterEach, describe, expect, test, vi } from "vitest";
import { readAnswer } from "../../client/transports/send-batch.ts";
import { UNTOUCHED } from "../../core/accounts/account.ts";
import { KNOWN_PROTOCOL } from "../../core/protocol/messages.ts";
import { KeyCache } from "../../durable-objects/keys/key-cache.ts";
import { freshKey } from "../support/limiter.ts";
import { keyBeside, objectOf } from "../support/objects.ts";

const DAY_MS = 86_400_000;
/** About when the tests of a moved clock play; any instant ahead of the machine's would do. */
const LATER_MS = Date.now() + DAY_MS;

/** Moves the clock that objects read; timers stay real, since faked ones break objects. */
function at(nowMs: number): void {
  vi.useFakeTimers({ toFake: ["Date"], now: nowMs });
}

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

describe("what is stored is all that counts", () => {
  test("a small limit survives an eviction exactly", async () => {
    const object = objectOf("slow", freshKey());
    for (const remaining of [4, 3, 2]) expect(await object.limit()).toMatchObject({ remaining });
    await object.evict();
    expect(await object.remaining()).toBe(2);
  });

  test("corrupted memory counts for nothing after an eviction", async () => {
    const object = objectOf("slow", freshKey());
    await object.limit(3);
    const open = vi.spyOn(KeyCache.prototype, "open");
    await object.remaining();
    const [book] = open.mock.results[0]?.value.ruleStates ?? [];
    if (book === undefined) throw new Error("the key is not in memory");
    // Memory now believes that nothing was ever taken.
    book.account = UNTOUCHED;
    expect(await object.remaining()).toBe(5);
    await object.evict();
    expect(await object.remaining()).toBe(2);
  });

  test("a crash loses at most the units memory was ahead by, and admits none twice", async () => {
    const object = objectOf("ahead", freshKey());
    for (let call = 0; call < 50; call += 1) await object.limit();
    await object.crash();
    const remaining = Number(await object.remaining());
    expect(remaining).toBeLessThanOrEqual(10_000 - 50);
    expect(remaining).toBeGreaterThanOrEqual(10_000 - 50 - 200);
  });

  test("an object that leaves memory after a few calls loses nothing of a key with a record", async () => {
    const object = objectOf("ahead", freshKey());
    await object.limit(5_000);
    for (let call = 1; call <= 5; call += 1) {
      await object.limit();
      await object.evict();
      expect(await object.remaining()).toBe(5_000 - call);
    }
  });

  test("units lost to a crash are lost once, however often it crashes again", async () => {
    const object = objectOf("ahead", freshKey());
    for (let call = 0; call < 50; call += 1) await object.limit();
    await object.crash();
    const after = Number(await object.remaining());
    expect(after).toBeLessThan(10_000 - 50);
    expect(after).toBeGreaterThanOrEqual(10_000 - 50 - 10);
    for (let crash = 0; crash < 3; crash += 1) {
      await object.crash();
      expect(await object.remaining()).toBe(after);
    }
  });

  test("a key that comes once writes no row of its own, and shows no dent when it has come back", async () => {
    const [first, second] = [freshKey(), freshKey()];
    const object = objectOf("brief", first);
    at(LATER_MS);
    for (const key of [first, second]) await object.stub.limit("brief", key, 1);
    expect((await object.stored()).tables).toEqual({});
    await object.crash();
    const remaining = async (key: string) => (await object.stub.peek("brief", key)).rules[0]?.remaining;
    const [most = 0] = await Promise.all([first, second].map(remaining));
    at(LATER_MS + 60_000);
    await object.crash();
    const whole = await remaining(second);
    expect(most).toBeLessThan(Number(whole));
    expect(await remaining(freshKey())).toBe(whole);
  });

  test("200 simultaneous first calls all see each other", async () => {
    const object = objectOf("slow", freshKey());
    const answers = await Promise.all(Array.from({ length: 200 }, () => object.limit()));
    expect(answers.filter((answer) => answer && "success" in answer && answer.success)).toHaveLength(5);
  });

  test("a save that fails takes nothing", async () => {
    const object = objectOf("slow", freshKey());
    await object.limit(2, "order-1");
    await object.rest();
    await runInDurableObject(
      object.stub,
      (_, { storage }) => void storage.sql.exec("ALTER TABLE keys RENAME TO gone"),
    );
    await expect(object.limit(1)).rejects.toThrow("no such table");
    await runInDurableObject(
      object.stub,
      (_, { storage }) => void storage.sql.exec("ALTER TABLE gone RENAME TO keys"),
    );
    // An object knows the tables that it found when it started.
    await object.crash();
    expect(await object.limit(1)).toMatchObject({ success: true, remaining: 2 });
  });
});

describe("what is written", () => {
  test("denials, looks and peeks write nothing", async () => {
    const object = objectOf("slow", freshKey());
    await object.limit(6);
    await object.limit(0);
    await object.remaining();
    expect(await object.stored()).toEqual({ tables: {}, alarmAtMs: null });
    await object.limit(5);
    const before = await object.stored();
    await object.limit(1);
    expect(await object.stored()).toEqual(before);
  });

  test("a hot key writes once for the units that a crash may cost: 10 of 10,000 in 30 days", async () => {
    const object = objectOf("ahead", freshKey());
    const write = vi.spyOn(KeyCache.prototype, "write");
    for (let call = 0; call < 602; call += 1) await object.limit();
    expect(write.mock.calls.length).toBeLessThanOrEqual(602 / 8);
    expect(write.mock.calls.length).toBeGreaterThanOrEqual(602 / 11);
  });
});

describe("forgetting", () => {
  test("an object whose keys are whole deletes everything it stored", async () => {
    const object = objectOf("slow", freshKey());
    await object.limit();
    expect(await object.stored()).toMatchObject({ tables: { record: [{ policy: "slow" }] } });
    at(LATER_MS + 31 * DAY_MS);
    expect(await object.runAlarm()).toBe(true);
    vi.useRealTimers();
    expect(await object.stored()).toEqual({ tables: {}, alarmAtMs: null });
  });

  test("an alarm keeps what is not whole yet, and comes again", async () => {
    const object = objectOf("slow", freshKey());
    await object.limit(2);
    at(LATER_MS);
    await object.runAlarm();
    const { tables, alarmAtMs } = await object.stored();
    expect(tables["record"]).toHaveLength(1);
    expect(alarmAtMs).toBeGreaterThan(LATER_MS + 10 * DAY_MS);
    expect(await object.remaining()).toBe(3);
  });

  test("one object forgets its keys one by one", async () => {
    const first = freshKey();
    const second = keyBeside("shared", first);
    const object = objectOf("shared", first);
    await object.stub.limit("shared", first, 1);
    await object.stub.limit("shared", second, 5);
    at(LATER_MS + 7 * DAY_MS);
    await object.runAlarm();
    expect((await object.stored()).tables["keys"]).toMatchObject([{ key: second }]);
    expect((await object.stub.peek("shared", second)).rules[0]).toMatchObject({ remaining: 1 });
  });

  test("a key of a policy that is not known is forgotten 30 days after it was due", async () => {
    const object = objectOf("slow", freshKey());
    await object.limit(1, "order-1");
    await object.rest();
    await runInDurableObject(
      object.stub,
      (_, { storage }) => void storage.sql.exec("UPDATE keys SET policy = 'gone'"),
    );
    at(LATER_MS + 31 * DAY_MS);
    await object.runAlarm();
    expect(await object.stored()).toMatchObject({ tables: { keys: [{ policy: "gone" }] } });
    at(LATER_MS + 37 * DAY_MS);
    await object.runAlarm();
    expect(await object.stored()).toEqual({ tables: {}, alarmAtMs: null });
  });
});

describe("the clock", () => {
  test("running backwards gains nothing, in memory and after an eviction", async () => {
    const object = objectOf("slow", freshKey());
    at(LATER_MS);
    await object.limit(5);
    at(LATER_MS - 20 * DAY_MS);
    expect(await object.limit()).toMatchObject({ success: false });
    await object.evict();
    expect(await object.limit()).toMatchObject({ success: false });
    at(LATER_MS + 6 * DAY_MS);
    expect(await object.limit()).toMatchObject({ success: true, remaining: 0 });
  });

  test("the promised wait is exact through the object", async () => {
    const object = objectOf("slow", freshKey());
    at(LATER_MS);
    await object.limit(5);
    const denied = await object.limit(3);
    const retryAfterMs = Number(denied && "retryAfterMs" in denied && denied.retryAfterMs);
    at(LATER_MS + retryAfterMs - 1);
    expect(await object.limit(3)).toMatchObject({ success: false, retryAfterMs: 1 });
    at(LATER_MS + retryAfterMs);
    expect(await object.limit(3)).toMatchObject({ success: true });
  });
});

describe("keys", () => {
  test.each([
    ["__proto__", "constructor"],
    ["\u00e9", "e\u0301"],
    ["a\u0000b", "a"],
    ["a/b", "a%2Fb"],
    ["a", "A"],
    ["'; DROP TABLE keys; --", "' OR 1=1"],
    ["\u{1f512}".repeat(128), "\u{1f512}".repeat(127)],
  ])("%j and %j are two keys, in one object too", async (one, other) => {
    const shared = objectOf("shared", freshKey()).stub;
    for (const key of [one, other]) {
      await shared.reset("shared", key);
      expect(readAnswer(await shared.limit("shared", key, 5))).toMatchObject({ rules: [{ success: true }] });
    }
    const [prefix, single] = [freshKey(), objectOf];
    await single("slow", prefix + one).limit(5);
    expect(await single("slow", prefix + other).remaining()).toBe(5);
    expect(await single("slow", prefix + one).remaining()).toBe(0);
  });
});

describe("a message of a protocol that the object does not know", () => {
  const NEWER = { protocol: KNOWN_PROTOCOL + 1 };
  const refused = { unsupported: { protocol: KNOWN_PROTOCOL } };
  const asked = (key: string) => ({ ...NEWER, policy: "slow", key, cost: 1, ttlMs: 1_000 });
  const reserving = { holder: "holder", turn: 1, isShort: false, rules: {} };
  const leasing = { policy: "export", waitMs: 0, id: "id" };

  test("is refused, and nothing has changed", async () => {
    const [key, object] = [freshKey(), objectOf];
    const [rate, leased] = [object("slow", key), object("export", key)];
    expect(JSON.parse(await rate.stub.reserve({ ...asked(key), ...reserving }))).toEqual(refused);
    expect(JSON.parse(await rate.stub.hold(asked(key)))).toEqual(refused);
    expect(JSON.parse((await leased.stub.acquire({ ...asked(key), ...leasing })).answer)).toEqual(refused);
    // A call of a kind that is not known is refused whatever version it names.
    for (const path of ["acquire", "idle", "limit", "unheard-of"]) {
      const version = path === "unheard-of" ? { protocol: 1 } : NEWER;
      const body = JSON.stringify({ ...asked(key), ...leasing, ...version });
      const response = await leased.stub.fetch(`https://object/${path}`, { method: "POST", body });
      expect(await response.json()).toEqual(refused);
    }
    expect(await rate.stored()).toEqual({ tables: {}, alarmAtMs: null });
    expect(await leased.stored()).toEqual({ tables: {}, alarmAtMs: null });
    expect(await rate.remaining()).toBe(5);
  });
});
