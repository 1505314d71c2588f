import fc from "fast-check";
import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import { collectGarbage } from "../../../durable-objects/keys/garbage-collection.ts";
import { REMEMBERED_MS } from "../../../durable-objects/keys/idempotency.ts";
import { KeyCache } from "../../../durable-objects/keys/key-cache.ts";
import { ANSWERS_SWEPT } from "../../../durable-objects/storage/answers.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { APART_MS, FORGET_AFTER_MS, REST_MS } from "../../../durable-objects/storage/sweeps.ts";
import { Database } from "../../simulation/database.ts";

const NOW_MS = 10 * REMEMBERED_MS;
const POLICIES = parsePolicies({ p: { algorithm: "token-bucket", limit: 1, window: "30d" } });

/** Storage with keys of which one unit is spent since this instant, and answers, a row for each. */
function stored(
  keys: readonly { key: string; spentAtMs: number }[],
  answers: readonly { key: string; id: string; atMs: number }[],
) {
  const database = new Database();
  const { sql } = database.storage;
  const storage = new Storage(database.storage);
  const state = (atMs: number) => ({
    spentParts: 30 * REMEMBERED_MS,
    windowMs: 30 * REMEMBERED_MS,
    burst: 1,
    atMs,
  });
  storage.atomically(() => {
    for (const { key, spentAtMs } of keys) {
      const rules = { p: { algorithm: "token-bucket", ahead: 0, state: state(spentAtMs) } };
      storage.write({ key, policy: "p", rules }, spentAtMs + 30 * REMEMBERED_MS);
    }
    storage.answers.write("-", "-", { request: "limit of 1", answer: "{}", atMs: 0 });
  });
  storage.fold();
  sql.exec("DELETE FROM answers");
  for (const { key, id, atMs } of answers)
    sql.exec("INSERT INTO answers VALUES (?, ?, 'limit of 1', '{}', ?)", key, id, atMs);
  return storage;
}

/** Collects garbage to the end. Returns when it comes again, and how often calls could come in between. */
function collect(storage: Storage, between: () => void = () => undefined) {
  const work = collectGarbage({
    storage,
    cache: new KeyCache(storage),
    policies: POLICIES,
    timers: { nowMs: () => NOW_MS },
  });
  let turns = 0;
  let step = work.next();
  for (; step.done !== true; step = work.next()) {
    turns += 1;
    between();
  }
  return { dueMs: step.value, turns };
}

test("of keys without a record, answers of a day ago are forgotten, and the next are waited for", () => {
  const key = fc.constantFrom("a", "b", "c", "d");
  const atMs = fc.oneof(
    fc.constant(NOW_MS - REMEMBERED_MS),
    fc.integer({ min: NOW_MS - 2 * REMEMBERED_MS, max: NOW_MS }),
  );
  // Answers of one key that none of the others has: they fill more than one step.
  const many = fc.constantFrom(0, ANSWERS_SWEPT - 2, ANSWERS_SWEPT, 2 * ANSWERS_SWEPT + 1);
  fc.assert(
    fc.property(
      fc.array(fc.tuple(key, fc.nat(9), atMs)),
      fc.subarray(["a", "b"]),
      many,
      (drawn, recorded, count) => {
        const answers = new Map<string, { key: string; id: string; atMs: number }>();
        for (const [name, id, givenAtMs] of drawn)
          answers.set(`${name} ${id}`, { key: name, id: `${id}`, atMs: givenAtMs });
        for (let id = 0; id < count; id += 1)
          answers.set(`b ${1_000 + id}`, {
            key: "b",
            id: `${1_000 + id}`,
            atMs: NOW_MS - REMEMBERED_MS + (id % 3),
          });
        const keys = ["z", ...recorded].map((each) => ({ key: each, spentAtMs: NOW_MS - 5 }));
        const storage = stored(keys, [...answers.values()]);
        const { dueMs, turns } = collect(storage);
        const isKept = (each: { key: string; atMs: number }) =>
          recorded.includes(each.key) || each.atMs > NOW_MS - REMEMBERED_MS;
        const kept = [...answers.values()].filter(isKept);
        // Each by itself would be looked up among all of its segment, which takes most of the test's time.
        const left = ["a", "b", "c", "d"].flatMap((name) =>
          storage.answers
            .all(name, Infinity)
            .map(({ idempotencyKey, atMs: givenAtMs }) => `${name} ${idempotencyKey} ${givenAtMs}`),
        );
        expect(left.toSorted()).toEqual(kept.map((each) => `${each.key} ${each.id} ${each.atMs}`).toSorted());
        const unrecorded = kept.filter((each) => !recorded.includes(each.key));
        const oldestMs = Math.min(...unrecorded.map((each) => each.atMs));
        const wholeMs = NOW_MS - 5 + 30 * REMEMBERED_MS;
        const nextMs = Math.min(wholeMs + FORGET_AFTER_MS, oldestMs + REMEMBERED_MS);
        const restMs = REST_MS * (keys.length + 2 * kept.length);
        expect(dueMs).toBe(Math.max(nextMs, NOW_MS + APART_MS, NOW_MS + restMs));
        expect(turns).toBe(Math.floor(answers.size / ANSWERS_SWEPT));
      },
    ),
    { numRuns: 60 },
  );
});

test("a segment is forgotten when the newest of its answers is a day old, and none before", () => {
  const storage = stored([{ key: "z", spentAtMs: NOW_MS - 5 }], []);
  const write = (id: string, atMs: number) =>
    storage.answers.write("a", id, { request: "limit of 1", answer: "{}", atMs });
  const isThere = () => ["old", "young"].map((id) => storage.answers.read("a", id) !== undefined);
  const [oldMs, youngMs] = [NOW_MS - REMEMBERED_MS - 1_000, NOW_MS - REMEMBERED_MS];
  write("old", oldMs);
  write("young", youngMs + 1);
  expect(collect(storage).dueMs).toBe(NOW_MS + APART_MS);
  expect(isThere()).toEqual([true, true]);
  const later = stored([], []);
  later.answers.write("a", "old", { request: "limit of 1", answer: "{}", atMs: oldMs });
  later.answers.write("a", "young", { request: "limit of 1", answer: "{}", atMs: youngMs });
  expect(collect(later).dueMs).toBeUndefined();
  expect(later.answers.read("a", "young")).toBeUndefined();
});

test("a key whose answers are looked at later may be used in between: its answers stay", () => {
  const old = Array.from({ length: ANSWERS_SWEPT }, (_, id) => ({ key: "a", id: `${id}`, atMs: 0 }));
  const storage = stored([{ key: "y", spentAtMs: NOW_MS }], [...old, { key: "b", id: "x", atMs: 0 }]);
  const { dueMs } = collect(storage, () => storage.write({ key: "b", policy: "p", rules: {} }, NOW_MS + 7));
  expect(storage.answers.read("a", "1")).toBe(undefined);
  expect(storage.answers.read("b", "x")).not.toBe(undefined);
  expect(dueMs).toBe(NOW_MS + 7 + FORGET_AFTER_MS);
});

test("a thousand keys that are whole are forgotten in steps, and nothing is left", () => {
  const keys = Array.from({ length: 999 }, (_, id) => ({
    key: `${id}`,
    spentAtMs: NOW_MS - 40 * REMEMBERED_MS,
  }));
  const storage = stored(keys, [{ key: "7", id: "x", atMs: 0 }]);
  const { dueMs, turns } = collect(storage);
  expect(dueMs).toBeUndefined();
  expect(turns).toBeGreaterThan(5);
  expect(storage.keysSwept("")).toEqual([]);
});

// Dropped, it would be read again from its record, and what memory was ahead by would be presumed to be used.
test("an only key that is whole stays in memory until its record goes with everything else", () => {
  const policies = parsePolicies({ p: { algorithm: "token-bucket", limit: 100_000, window: "1h" } });
  const policy = policies.get("p");
  const storage = new Storage(new Database().storage);
  const cache = new KeyCache(storage);
  const state = { spentParts: 3_600_000, windowMs: 3_600_000, burst: 100_000, atMs: NOW_MS - 3_600_000 };
  storage.write(
    { key: "a", policy: "p", rules: { p: { algorithm: "token-bucket", ahead: 0, state } } },
    NOW_MS - 1,
  );
  if (policy !== undefined) storage.allowances.renew(policy, NOW_MS, NOW_MS);
  const sweepAt = (nowMs: number) => {
    storage.sweeps.begin();
    const work = collectGarbage({ storage, cache, policies, timers: { nowMs: () => nowMs } });
    let step = work.next();
    while (step.done !== true) step = work.next();
    return step.value;
  };
  const dueMs = sweepAt(NOW_MS);
  expect([dueMs !== undefined, storage.loneKey, cache.known("a") !== undefined]).toEqual([true, "a", true]);
  expect(sweepAt(dueMs ?? 0)).toBeUndefined();
  expect([storage.loneKey, cache.known("a") !== undefined]).toEqual(["a", false]);
});
