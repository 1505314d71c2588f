/** Answers under idempotency keys, in segments: how many a key bears, what is found, and what earlier versions wrote. */
import { expect, test } from "vitest";
import { ownKey } from "../../../core/protocol/names.ts";
import { KeyAnswers } from "../../../durable-objects/keys/idempotency.ts";
import type { KeyState } from "../../../durable-objects/keys/key-state.ts";
import { FirstLook, rowOf, segmentIn } from "../../../durable-objects/storage/answer-segments.ts";
import { MAX_ANSWERS } from "../../../durable-objects/storage/answers.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { Database } from "../../simulation/database.ts";

const OF = (caller: string, id: number) => ownKey(JSON.stringify({ token: caller }), `call ${id}`);
const REQUEST = "limit of 1";
const ANSWER = { rules: [] };
/** What `KeyAnswers` needs of a key that is in use. */
const keyNamed = (key: string) =>
  ({ key, answers: new Map(), isWhole: () => false, policy: {} }) as unknown as KeyState;
const lost = (error: unknown): never => {
  throw error;
};
const segmentsIn = (database: Database) =>
  database.storage.sql.exec<{ request: string; at_ms: number }>("SELECT * FROM answers").toArray();

test("a key bears 1,000 idempotent calls a second of one caller, for minutes, and answers those of the last one again", () => {
  const database = new Database();
  let storage = new Storage(database.storage);
  let [answers, key] = [new KeyAnswers(storage), keyNamed("a")];
  const find = (id: number, nowMs: number) =>
    answers.earlier(key, { idempotencyKey: OF("one", id), request: REQUEST }, nowMs);
  const other = { idempotencyKey: OF("other", 0), request: REQUEST };
  answers.remember(key, { ...other, answer: ANSWER }, 0);
  const before = database.rowsWritten;
  const SECONDS = 70;
  for (let second = 0; second < SECONDS; second += 1) {
    for (let turn = 0; turn < 50; turn += 1)
      storage.turn(() => {
        for (let each = 0; each < 20; each += 1) {
          const atMs = 1_000 * second + 20 * turn + each;
          const idempotencyKey = OF("one", atMs);
          if (answers.full(key, idempotencyKey, atMs) !== undefined) throw new Error(`full at ${atMs} ms`);
          answers.remember(key, { idempotencyKey, request: REQUEST, answer: ANSWER }, atMs);
        }
      }, lost);
    const nowMs = 1_000 * second + 999;
    for (const id of [0, nowMs - 59_999, nowMs - 30_000, nowMs]) {
      const isThere = id >= 0 && id > nowMs - 60_000;
      if (isThere) expect(find(id, nowMs)).toEqual(ANSWER);
      expect(find(nowMs + 1 + Math.abs(id), nowMs)).toBeUndefined();
    }
    if (second % 30 !== 29) continue;
    storage = new Storage(database.storage);
    [answers, key] = [new KeyAnswers(storage), keyNamed("a")];
  }
  const written = database.rowsWritten - before;
  // 50 turns a second, and some segments of at least 128 answers, each written and deleted once.
  expect(written).toBeLessThan(SECONDS * (50 + 2 * 8 + 2));
  expect(answers.earlier(key, other, 0)).toEqual(ANSWER);
  expect(find(0, 1_000 * SECONDS)).toBeUndefined();
  expect(storage.answers.count("a", OF("one", 0).slice(0, -"call 0".length)).count).toBeLessThanOrEqual(
    MAX_ANSWERS,
  );
});

test("calls that come one at a time share segments, for an hour each", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  for (let minute = 0; minute < 180; minute += 1) {
    storage.answers.write("a", OF("one", minute), { request: REQUEST, answer: "{}", atMs: minute * 60_000 });
    storage.fold();
  }
  const segments = segmentsIn(database);
  expect(segments.length).toBe(3);
  for (const each of [storage, new Storage(database.storage)])
    for (let minute = 0; minute < 180; minute += 1)
      expect(each.answers.read("a", OF("one", minute))).toMatchObject({ atMs: minute * 60_000 });
});

test("an answer that was removed is not found, one that was written again is found as it is now", () => {
  const storage = new Storage(new Database().storage);
  const write = (answer: string) => storage.answers.write("a", "x", { request: REQUEST, answer, atMs: 1 });
  const [fold, none] = [() => storage.fold(), () => undefined];
  for (const one of [fold, none])
    for (const other of [fold, none]) {
      write("1");
      one();
      write("2");
      other();
      expect(storage.answers.read("a", "x")).toMatchObject({ answer: "2" });
      expect(storage.answers.all("a", 9).length).toBeLessThanOrEqual(1);
      storage.answers.remove("a", "x");
      other();
      expect(storage.answers.read("a", "x")).toBeUndefined();
      storage.fold();
      expect(storage.answers.read("a", "x")).toBeUndefined();
      expect(storage.answers.all("a", 9)).toEqual([]);
    }
});

test("rows of earlier versions become segments when the key's answers are asked for first, and nothing is lost", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.answers.write("-", "-", { request: REQUEST, answer: "{}", atMs: 1 });
  storage.fold();
  const put = (key: string, id: string, request: string, atMs: number) =>
    database.storage.sql.exec(
      "INSERT INTO answers VALUES (?, ?, ?, ?, ?)",
      key,
      id,
      request,
      `"${id}"`,
      atMs,
    );
  const ends = Array.from({ length: 9 }, (_, id) => `AAAA ${id}`);
  for (let id = 0; id < 1_500; id += 1) put("a", OF(id % 3 === 0 ? "one" : "two", id), REQUEST, id);
  for (const id of ends) put("a", id, "end of a hold", 5_000);
  put("b", "x", REQUEST, 1);
  for (const each of [new Storage(database.storage), new Storage(database.storage)]) {
    for (let id = 0; id < 1_500; id += 1) {
      const own = OF(id % 3 === 0 ? "one" : "two", id);
      expect(each.answers.read("a", own)).toEqual({ request: REQUEST, answer: `"${own}"`, atMs: id });
    }
    for (const id of ends) expect(each.answers.read("a", id)).toMatchObject({ atMs: 5_000 });
    expect(each.answers.count("a", OF("one", 0).slice(0, -"call 0".length))).toMatchObject({ count: 500 });
    expect(each.answers.count("a", "AAAA")).toEqual({ count: 9, oldestMs: 5_000 });
  }
  // Two callers with 500 and 1,000, and the ends; the other keys' are as they were.
  const rows = segmentsIn(database);
  expect(rows.filter(({ request }) => request.startsWith("\u0003")).length).toBe(1 + 2 + 1 + 1);
  expect(rows.filter(({ request }) => !request.startsWith("\u0003")).length).toBe(1);
});

test("what is stored of a segment is for ever", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.answers.write("a", "x", { request: REQUEST, answer: "{}", atMs: 7 });
  storage.answers.write("a", "y", { request: REQUEST, answer: "{}", atMs: 9 });
  storage.fold();
  expect(segmentsIn(database)).toEqual([
    {
      key: "a",
      idempotency_key: "\u0003\u0002\u00031",
      request: expect.stringMatching(/^[^ ]7 [a-z0-9]{1,10} [a-z0-9]{14}$/) as string,
      answer: JSON.stringify([
        ["x", REQUEST, "{}", 7],
        ["y", REQUEST, "{}", 9],
      ]),
      at_ms: 9,
    },
  ]);
});

test("a first look misses no answer, and sends few of the new keys to the segments, whatever seeds these have", () => {
  const idOf = (index: number) => `order-${index}`;
  const segmentOf = (number: number, count: number, seed = "seed") => {
    const entries = Array.from(
      { length: count },
      (_, index) => [idOf(512 * number + index), "", "", 1] as const,
    );
    const { idempotency_key: name, request } = rowOf({ from: "", number, seed }, entries);
    return segmentIn(name, request, 1);
  };
  for (const count of [1, 2, 40, 128]) {
    const look = new FirstLook(Array.from({ length: count }, (_, number) => segmentOf(number, 512)));
    const of = (from: number) =>
      Array.from({ length: 10_000 }, (_, index) => look.mayFind(idOf(from + index))).filter(Boolean).length;
    expect(of(0)).toBeGreaterThanOrEqual(Math.min(10_000, 512 * count));
    expect(of(1_000_000)).toBeLessThan(900);
  }
  expect(new FirstLook([segmentOf(0, 1), segmentOf(1, 1, "other")]).mayFind(idOf(512))).toBe(true);
});
