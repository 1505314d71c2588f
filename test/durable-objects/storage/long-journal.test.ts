/** A long journal: it begins again with what it came to, and writes rows of tables only if that is long too. */
import { expect, test } from "vitest";
import { journalRoom, MemoryBudget } from "../../../durable-objects/keys/key-cache.ts";
import type { Claim } from "../../../durable-objects/storage/records.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { Database, Died } from "../../simulation/database.ts";

const KEYS = ["a", "b"];
const CLAIM: Claim = { id: "c", kind: "lease", units: { p: 1 }, ttlMs: 1_000, expiresAtMs: 2_000 };
const ANSWER = { request: "r", answer: "x".repeat(500), atMs: 1 };
const recordOf = (key: string, ahead = 0) => ({
  key,
  policy: "p",
  rules: { p: { algorithm: "token-bucket", ahead } },
});
const lost = (error: unknown): never => {
  throw error;
};

test("a turn is a row, whatever it changes; what begins and ends before a fold is in no other", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.write(recordOf("0"), 1);
  storage.claims.write("0", CLAIM, true);
  const before = database.rowsWritten;
  for (let turn = 0; turn < 100; turn += 1) {
    storage.turn(() => {
      for (let key = 0; key < 32; key += 1) {
        storage.write(recordOf(`${key}`, turn), turn);
        storage.claims.write(`${key}`, { ...CLAIM, id: `${turn}` }, true);
      }
    }, lost);
    for (let key = 0; key < 32; key += 1) storage.turn(() => undefined, lost);
    storage.turn(() => {
      for (let key = 0; key < 32; key += 1) storage.claims.remove(`${key}`, { id: `${turn}` });
    }, lost);
  }
  expect(database.rowsWritten - before).toBe(200);
  storage.fold();
  // 32 records, one claim that had ended, the table of claims, and the row that says where it begins.
  expect(database.rowsWritten - before).toBeLessThanOrEqual(200 + 32 + 3);
});

test("keys that are called again and again write no row but those of their turns, beside some for answers", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  const call = (turn: number, key: number) => {
    storage.write(recordOf(`${key}`, turn), turn);
    if (turn % 2 === 0) storage.claims.write(`${key}`, CLAIM, true);
    else storage.claims.remove(`${key}`, CLAIM);
  };
  const rowsOf = (turns: number, work: (turn: number) => void) => {
    const before = database.rowsWritten;
    for (let turn = 0; turn < turns; turn += 1) storage.turn(() => work(turn), lost);
    return database.rowsWritten - before;
  };
  expect(rowsOf(2_000, (turn) => call(turn >> 1, turn % 100))).toBe(2_000);
  const remember = (turn: number) => {
    call(turn, turn % 10);
    storage.answers.write(`${turn % 10}`, `id ${turn}`, ANSWER);
  };
  // Some 800 answers are 512 KiB: then each key's go to a segment.
  expect(rowsOf(8_000, remember)).toBeLessThan(8_000 * (1 + 10 / 512));
  expect(storage.claims.read("1")).toEqual([]);
});

test("a journal has 256 rows at most, and 512 KiB", () => {
  const database = new Database();
  let storage = new Storage(database.storage);
  for (let turn = 0; turn < 3_000; turn += 1) {
    const isLarge = turn > 1_000;
    storage.claims.write(`${turn % 9}`, { ...CLAIM, id: isLarge ? "c".repeat(9_000) : "c" }, turn === 0);
    if (turn % 100 !== 0) continue;
    storage = new Storage(database.storage);
    const rows = database.storage.sql
      .exec<{ changes: string; turn: number; first: number }>("SELECT * FROM journal ORDER BY turn")
      .toArray();
    expect(rows.length).toBeLessThanOrEqual(256);
    const { first = 0 } = rows.at(-1) ?? {};
    const read = rows.filter((row) => row.turn >= first);
    expect(read[0]?.turn).toBe(first);
    expect(read.reduce((sum, { changes }) => sum + changes.length, 0)).toBeLessThanOrEqual(2 ** 19);
  }
});

test("a journal has 1,000 keys at most: others, and those with them, go to their tables", () => {
  const database = new Database();
  let most = 0;
  for (let turn = 0; turn < 300; turn += 1) {
    const storage = new Storage(database.storage);
    const keys = Array.from({ length: 10 }, (_, index) => `${turn} ${index}`);
    storage.turn(() => keys.forEach((key) => storage.write(recordOf(key), 1)), lost);
    const [{ count } = { count: 0 }] = database.storage.sql
      .exec<{ count: number }>("SELECT count(*) AS count FROM keys")
      .toArray();
    most = Math.max(most, 10 * (turn + 1) - count);
  }
  expect(most).toBe(1_000);
});

/** What was changed in a long journal, and how often the turn writes with which it begins again. */
const CHANGES: Record<string, readonly [change: (storage: Storage, turn: number) => void, rows: number]> = {
  "records that were replaced": [changeRecords, 1],
  // The table, two segments and the row.
  answers: [
    (storage, turn) => {
      changeRecords(storage, turn);
      for (const key of KEYS) storage.answers.write(key, `id ${turn}`, ANSWER);
    },
    4,
  ],
  claims: [(storage, turn) => storage.claims.write("a", { ...CLAIM, id: `${turn}` }, true), 15],
};

function changeRecords(storage: Storage, turn: number): void {
  for (const key of KEYS) storage.write(recordOf(key, turn), turn);
}

const stateOf = (storage: Storage) =>
  KEYS.map((key) => ({
    record: storage.read(key),
    claims: storage.claims.read(key).toSorted((a, b) => (a.id < b.id ? -1 : 1)),
    answers: storage.answers.all(key, 99).toSorted((a, b) => (a.idempotencyKey < b.idempotencyKey ? -1 : 1)),
  }));

test.each(Object.entries(CHANGES))(
  "a turn after many with %s begins the journal again, and if it cannot write all of that, all is as before",
  (_, [change, rows]) => {
    for (let writes = 0; writes <= rows; writes += 1) {
      const database = new Database();
      let isShort = false;
      const room = { add: () => undefined, isShort: () => isShort };
      const storage = new Storage(database.storage, undefined, room);
      for (let turn = 0; turn < 12; turn += 1) storage.turn(() => change(storage, turn), lost);
      const before = stateOf(storage);
      [database.writesLeft, isShort] = [writes, true];
      const turn = () => storage.turn(() => storage.claims.write("b", CLAIM, true), lost);
      if (writes < rows) expect(turn).toThrow(Died);
      else turn();
      database.writesLeft = Infinity;
      const after = writes < rows ? before : stateOf(storage);
      if (writes === rows) expect(after).toEqual([before[0], { ...before[1], claims: [CLAIM] }]);
      const started = new Storage(database.storage);
      expect(stateOf(started)).toEqual(after);
      started.fold();
      expect(stateOf(new Storage(database.storage))).toEqual(after);
    }
  },
);

test("an object's journal goes to its tables sooner while those of others take the room", () => {
  const memory = new MemoryBudget(Infinity, 10_000);
  const [one, other] = [0, 1].map(() => {
    const database = new Database();
    return { database, storage: new Storage(database.storage, undefined, journalRoom(memory)) };
  }) as [Kept, Kept];
  const write = ({ storage }: Kept, id: number) =>
    storage.claims.write("a", { ...CLAIM, id: `${id}`.padEnd(900, "x") }, true);
  const foldedIn = ({ database }: Kept) =>
    database.storage.sql
      .exec<{ turn: number; first: number }>("SELECT turn, first FROM journal ORDER BY turn")
      .toArray()
      .filter(({ turn, first }) => turn > 1 && turn === first).length;
  for (let id = 0; id < 8; id += 1) write(one, id);
  expect(foldedIn(one)).toBe(0);
  for (let id = 0; id < 4; id += 1) write(other, id);
  expect([foldedIn(one), foldedIn(other)]).toEqual([0, 0]);
  write(one, 8);
  expect([foldedIn(one), foldedIn(other)]).toEqual([1, 0]);
  expect(new Storage(one.database.storage).claims.read("a")).toHaveLength(9);
  for (let id = 4; id < 8; id += 1) write(other, id);
  expect(foldedIn(other)).toBe(0);
});

interface Kept {
  readonly database: Database;
  readonly storage: Storage;
}
