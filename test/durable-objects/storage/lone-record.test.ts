/** The record of an object's only key: where it is stored, and that it is never lost on its way to the table. */
import { expect, test } from "vitest";
import type { Claim, StoredKey } from "../../../durable-objects/storage/records.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { Database, Died } from "../../simulation/database.ts";

const WHOLE_MS = 1_000;
const recordOf = (key: string, ahead = 0): StoredKey => ({
  key,
  policy: "p",
  rules: { p: { algorithm: "token-bucket", ahead } },
});
const dueOf = (key: string, ahead: number) => ({ ...recordOf(key, ahead), wholeAtMs: WHOLE_MS });
const CLAIM: Claim = { id: "claim", kind: "hold", units: { p: 1 }, ttlMs: 1_000, expiresAtMs: 2_000 };

/** What needs a table beside the record. */
const NEEDS_TABLE: Readonly<Record<string, (storage: Storage) => void>> = {
  "a second key": (storage) => storage.write(recordOf("b"), WHOLE_MS),
  "a hold": (storage) => storage.claims.write("a", CLAIM, true),
  "an answer": (storage) => storage.answers.write("a", "order", { request: "r", answer: "{}", atMs: 1 }),
  "a segment": (storage) =>
    storage.writeSegment("a", "p", { log: 1, from: 0, toMs: 9, keepFromMs: 0, entries: [1, 2] }),
};

/** The runtime makes its own table without a row; the database of tests has no way to tell. */
function tablesOf(database: Database): string[] {
  return database.storage.sql
    .exec<{ name: string }>(
      "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'kv' ORDER BY name",
    )
    .toArray()
    .map(({ name }) => name);
}

test("an only key has one row and no table, whatever becomes of it", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  expect(storage.isEmpty).toBe(true);
  for (const ahead of [0, 1, 2]) {
    const before = database.rowsWritten;
    storage.write(recordOf("a", ahead), WHOLE_MS);
    expect(database.rowsWritten - before).toBe(1);
    for (const each of [storage, new Storage(database.storage)]) {
      expect(each.read("a")).toEqual(dueOf("a", ahead));
      expect(each.read("b")).toBeUndefined();
      expect(each.isEmpty).toBe(false);
      expect(each.keysSwept("")).toMatchObject([{ key: "a", wholeAtMs: WHOLE_MS }]);
      expect(each.keysSwept("a")).toEqual([]);
    }
  }
  expect(tablesOf(database)).toEqual([]);
  storage.remove("b");
  expect(storage.isEmpty).toBe(false);
  storage.remove("a");
  for (const each of [storage, new Storage(database.storage)]) expect(each.isEmpty).toBe(true);
});

test("it is listed and counted as any key", () => {
  const storage = new Storage(new Database().storage);
  storage.write(recordOf("user:1"), WHOLE_MS);
  const list = () => [
    storage.keysAfter("user:", undefined, 9),
    storage.keysAfter("user:", "user:0", 9),
    storage.keysAfter("user:", "user:1", 9),
    storage.keysAfter("other:", undefined, 9),
    storage.countKeys("user:"),
    storage.countKeys("other:"),
  ];
  const lone = list();
  expect(lone).toEqual([["user:1"], ["user:1"], [], [], 1, 0]);
  storage.answers.write("user:1", "order", { request: "r", answer: "{}", atMs: 1 });
  expect(storage.loneKey).toBeUndefined();
  expect(list()).toEqual(lone);
});

test.each(Object.entries(NEEDS_TABLE))("with %s it moves, and is as before", (_, write) => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.write(recordOf("a", 7), WHOLE_MS);
  write(storage);
  expect(tablesOf(database)).toContain("keys");
  for (const each of [storage, new Storage(database.storage)]) {
    expect(each.read("a")).toEqual(dueOf("a", 7));
    expect(each.keysSwept("")[0]).toMatchObject({ key: "a", wholeAtMs: WHOLE_MS });
  }
  storage.write(recordOf("a", 8), WHOLE_MS);
  expect(new Storage(database.storage).read("a")).toEqual(dueOf("a", 8));
  storage.remove("a");
  expect(new Storage(database.storage).read("a")).toBeUndefined();
});

test.each(Object.entries(NEEDS_TABLE))(
  "nor is it lost when the machine dies on the way, with %s",
  (_, write) => {
    for (let writes = 0, isDone = false; !isDone; writes += 1) {
      const database = new Database();
      const storage = new Storage(database.storage);
      storage.write(recordOf("a", 7), WHOLE_MS);
      database.writesLeft = writes;
      try {
        write(storage);
        isDone = true;
      } catch (error) {
        expect(error).toBeInstanceOf(Died);
      }
      database.writesLeft = Infinity;
      // The object may go on, or another start.
      for (const each of [storage, new Storage(database.storage)])
        expect(each.read("a")).toEqual(dueOf("a", 7));
      write(storage);
      expect(new Storage(database.storage).read("a")).toEqual(dueOf("a", 7));
    }
  },
);

test("a transaction that is rolled back leaves it where it was", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.write(recordOf("a", 7), WHOLE_MS);
  const fails = (work: () => void) => () =>
    storage.atomically(() => {
      work();
      throw new Error("the disk is full");
    });
  expect(fails(() => storage.write(recordOf("a", 8), WHOLE_MS))).toThrow("the disk is full");
  expect(storage.read("a")).toEqual(dueOf("a", 7));
  expect(fails(() => storage.claims.write("a", CLAIM, true))).toThrow("the disk is full");
  expect(tablesOf(database)).toEqual([]);
  expect(storage.loneKey).toBeDefined();
  expect(storage.read("a")).toEqual(dueOf("a", 7));
  expect(fails(() => storage.remove("a"))).toThrow("the disk is full");
  expect(storage.read("a")).toEqual(dueOf("a", 7));
});

test("beside a table it does not count: a version that knows no such record has gone on in the table", () => {
  const database = new Database();
  new Storage(database.storage).write(recordOf("a", 7), WHOLE_MS);
  const { sql } = database.storage;
  sql.exec(
    "CREATE TABLE keys (key TEXT PRIMARY KEY, policy TEXT, rules TEXT, whole_at_ms INTEGER) WITHOUT ROWID",
  );
  const storage = new Storage(database.storage);
  expect(storage.read("a")).toBeUndefined();
  storage.write(recordOf("a", 8), WHOLE_MS);
  expect(new Storage(database.storage).read("a")).toEqual(dueOf("a", 8));
});

test("when everything is deleted it is gone", async () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.write(recordOf("a", 7), WHOLE_MS);
  await storage.removeAll();
  for (const each of [storage, new Storage(database.storage)]) {
    expect(each.isEmpty).toBe(true);
    expect(each.read("a")).toBeUndefined();
  }
});

test("what is stored of it is for ever", () => {
  const { storage } = new Database();
  new Storage(storage).write(recordOf("a", 7), WHOLE_MS);
  const rules = '{"p":{"algorithm":"token-bucket","ahead":7}}';
  expect(storage.kv.get("record")).toEqual({ key: "a", policy: "p", rules, wholeAtMs: WHOLE_MS });
});
