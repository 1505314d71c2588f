/** The runtime gives up an alarm that has failed six times. So nothing that fails may stop it, or the next one. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { cleaned } from "../../../durable-objects/keys/garbage-collection.ts";
import { FAILED_AGAIN_MS } from "../../../durable-objects/storage/sweeps.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";

const NOW_MS = 1_760_000_000_000;
const BUCKET = known({ p: { algorithm: "token-bucket", limit: 10, window: "1m" } });

/** What is told of failures is looked at here. */
const told = vi.spyOn(console, "error");
beforeEach(() => void told.mockReset().mockImplementation(() => undefined));
afterEach(() => void told.mockReset());

/** An object with keys of which one has a record that cannot be read. */
async function withBroken(): Promise<AlarmedObject> {
  const object = new AlarmedObject(BUCKET, NOW_MS);
  for (const key of ["a", "broken", "c"]) object.limit(key, 5);
  object.database.rewrite((rules) => rules);
  const { storage } = object.database;
  storage.sql.exec("UPDATE keys SET rules = ? WHERE key = ?", "{", "broken");
  await object.restart(BUCKET);
  return object;
}

test("a key that cannot be swept does not stop the others, and is looked at again", async () => {
  const object = await withBroken();
  await object.pass(5 * 60_000);
  expect(object.storage.keysSwept("").map(({ key }) => key)).toEqual(["broken"]);
  expect(told).toHaveBeenCalledWith(expect.stringContaining("a key could not be swept"));
  const { alarmAtMs } = object;
  expect(alarmAtMs).toBeGreaterThan(object.nowMs);
  expect(alarmAtMs).toBeLessThanOrEqual(object.nowMs + FAILED_AGAIN_MS + 60_000);
  const alarms = object.alarms;
  await object.pass(24 * FAILED_AGAIN_MS);
  expect(object.alarms - alarms).toBeGreaterThan(20);
  expect(object.alarms - alarms).toBeLessThan(27);
});

test("an alarm that fails as a whole sets the next, and does not fail", async () => {
  const object = new AlarmedObject(BUCKET, NOW_MS);
  object.limit("a", 5);
  const broken = vi.spyOn(object.storage.answers, "sweep").mockImplementation(() => {
    throw new Error("disk I/O error");
  });
  await object.pass(5 * 60_000);
  expect(told).toHaveBeenCalledWith(expect.stringContaining("disk I/O error"));
  expect(object.alarmAtMs).toBeGreaterThan(object.nowMs);
  broken.mockRestore();
  await object.pass(3 * FAILED_AGAIN_MS);
  expect([object.storage.isEmpty, object.alarmAtMs]).toEqual([true, null]);
});

test("sockets that cannot be renewed do not keep keys from being swept", async () => {
  const object = new AlarmedObject(BUCKET, NOW_MS);
  object.limit("a", 5);
  object.nowMs += 5 * 60_000;
  object.alarmAtMs = null;
  await cleaned(object.parts, () => Promise.reject(new Error("no sockets")));
  expect(object.storage.keysSwept("")).toEqual([]);
  expect(object.alarmAtMs).toBe(object.nowMs + FAILED_AGAIN_MS);
});

test("one that was cut short before sets the next before it does anything", async () => {
  const object = new AlarmedObject(BUCKET, NOW_MS);
  object.limit("a", 5);
  object.alarmAtMs = null;
  let setFirst: number | null = null;
  const renew = () => {
    setFirst = object.alarmAtMs;
    return Promise.resolve(Infinity);
  };
  await cleaned(object.parts, renew, true);
  expect(setFirst).toBe(NOW_MS + FAILED_AGAIN_MS);
});

test("an object that has something stored and no alarm sets one when it starts", async () => {
  const object = new AlarmedObject(BUCKET, NOW_MS);
  object.limit("a", 5);
  object.alarmAtMs = null;
  await object.restart(BUCKET);
  await object.pass(2 * FAILED_AGAIN_MS);
  expect([object.storage.isEmpty, object.alarmAtMs]).toEqual([true, null]);
});
