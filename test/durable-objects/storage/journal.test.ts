/** The journal: whatever is changed, and whenever the machine dies, what is read is what turns have left. */
import { expect, test } from "vitest";
import type { Claim, DueKey, StoredAnswer } from "../../../durable-objects/storage/records.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { Database, Died } from "../../simulation/database.ts";
import { depth } from "../../support/depth.ts";
import { announcedSeed, seededRandoms } from "../../support/random.ts";

/** What is stored of a key, as maps tell it. */
class Model {
  readonly records = new Map<string, DueKey>();
  readonly claims = new Map<string, Claim>();
  readonly answers = new Map<string, StoredAnswer>();

  copy(): Model {
    const copy = new Model();
    for (const part of ["records", "claims", "answers"] as const)
      for (const [name, value] of this[part]) copy[part].set(name, value as never);
    return copy;
  }
}

const KEYS = ["a", "b", "c", "d", "e"];
const IDS = Array.from({ length: 12 }, (_, id) => `id ${id}`);
const CALLERS = ["one", "two"];

function stateOf(storage: Storage) {
  const part = <Value>(of: (key: string) => readonly (readonly [string, Value])[]) =>
    new Map(KEYS.flatMap(of).toSorted(([a], [b]) => (a < b ? -1 : 1)));
  return {
    records: part((key) => {
      const record = storage.read(key);
      return record === undefined ? [] : [[key, record]];
    }),
    claims: part((key) => storage.claims.read(key).map((claim) => [`${key} ${claim.id}`, claim])),
    answers: part((key) =>
      IDS.flatMap((id): [string, StoredAnswer][] => {
        const answer = storage.answers.read(key, id);
        return answer === undefined ? [] : [[`${key} ${id}`, answer]];
      }),
    ),
    counts: CALLERS.map((caller) => storage.claims.counts.of(caller)),
    all: KEYS.map((key) =>
      storage.answers
        .all(key, 99)
        .map(({ idempotencyKey }) => idempotencyKey)
        .toSorted(),
    ),
  };
}

function expected({ records, claims, answers }: Model): ReturnType<typeof stateOf> {
  const sorted = <Value>(map: ReadonlyMap<string, Value>) =>
    new Map([...map].toSorted(([a], [b]) => (a < b ? -1 : 1)));
  return {
    records: sorted(records),
    claims: sorted(claims),
    answers: sorted(answers),
    counts: CALLERS.map((caller) => [...claims.values()].filter((claim) => claim.caller === caller).length),
    all: KEYS.map((key) => IDS.filter((id) => answers.has(`${key} ${id}`)).toSorted()),
  };
}

type Step = (storage: Storage, model: Model) => void;

/** A change of a key, as operations make it: to storage, and to the model. */
function stepOf(random: () => number, number: number): Step {
  const one = <Value>(values: readonly Value[]) => values[Math.floor(random() * values.length)] as Value;
  const [key, id] = [one(KEYS), one(IDS)];
  const name = `${key} ${id}`;
  const record = { key, policy: "p", rules: { p: { algorithm: "token-bucket", ahead: number } } };
  const draw = random();
  if (draw < 0.3)
    return (storage, model) => {
      storage.write(record, number);
      model.records.set(key, { ...record, wholeAtMs: number });
    };
  if (draw < 0.55) {
    const claim: Claim = {
      id,
      kind: "lease",
      units: { p: number },
      ttlMs: 1_000,
      expiresAtMs: number,
      caller: id < "id 5" ? "one" : "two",
    };
    return (storage, model) => {
      storage.claims.write(key, claim, !model.claims.has(name));
      model.claims.set(name, claim);
    };
  }
  if (draw < 0.75)
    return (storage, model) => {
      const claim = model.claims.get(name);
      if (claim !== undefined) storage.claims.remove(key, claim);
      model.claims.delete(name);
    };
  if (draw < 0.92) {
    const answer = {
      request: "limit of 1",
      answer: "x".repeat(1 + Math.floor(random() * 2_000)),
      atMs: number,
    };
    return (storage, model) => {
      storage.answers.write(key, id, answer);
      model.answers.set(name, answer);
    };
  }
  if (draw < 0.96)
    return (storage, model) => {
      storage.answers.remove(key, id);
      model.answers.delete(name);
    };
  const isReset = draw < 0.98;
  return (storage, model) => {
    if (isReset) storage.answers.removeAll(key);
    storage.remove(key);
    model.records.delete(key);
    for (const each of model.claims.keys()) if (each.startsWith(`${key} `)) model.claims.delete(each);
    for (const each of isReset ? model.answers.keys() : [])
      if (each.startsWith(`${key} `)) model.answers.delete(each);
  };
}

/** A key that has answers says so. One whose answers were removed may say so for a day. */
function check(storage: Storage, model: Model): void {
  const expectedState = expected(model);
  expect(stateOf(storage)).toEqual(expectedState);
  for (const [index, key] of KEYS.entries())
    if (expectedState.all[index]?.length !== 0) expect(storage.answers.has(key)).toBe(true);
}

class Failed extends Error {}
const lost = (error: unknown): never => {
  throw error;
};

test("in random histories with deaths and failures, storage has what the turns that ended have left, and no part of another", () => {
  const random = seededRandoms(announcedSeed("journal"))(0);
  for (let history = 0; history < depth(1, 60); history += 1) {
    const database = new Database();
    // As if other objects took the room, so it begins again in each of its ways.
    const room = { add: () => undefined, isShort: () => random() < 0.02 };
    const start = () => new Storage(database.storage, undefined, room);
    let [storage, model, number] = [start(), new Model(), 0];
    for (let turn = 0; turn < 700; turn += 1) {
      const after = model.copy();
      const parts = Array.from({ length: 1 + Math.floor(random() * 4) }, () => {
        const steps = Array.from({ length: 1 + Math.floor(random() * 3) }, () =>
          stepOf(random, (number += 1)),
        );
        return { steps, fails: random() < 0.1 };
      });
      const isTurn = random() < 0.7;
      if (random() < 0.1) database.writesLeft = Math.floor(random() * 30);
      const partOf =
        ({ steps, fails }: (typeof parts)[number]) =>
        () => {
          const before = after.copy();
          try {
            storage.atomically(() => {
              for (const step of steps) step(storage, after);
              // A part that was written at once cannot be undone alone: see the next test.
              if (fails && !isTurn) throw new Failed();
            });
          } catch (error) {
            if (!(error instanceof Failed)) throw error;
            for (const name of ["records", "claims", "answers"] as const) {
              after[name].clear();
              for (const [each, value] of before[name]) after[name].set(each, value as never);
            }
          }
        };
      const all = () => {
        for (const part of parts) partOf(part)();
      };
      try {
        // The runtime commits what a turn writes together.
        database.storage.transactionSync(() => (isTurn ? storage.turn(all, lost) : all()));
        model = after;
        if (random() < 0.03) storage.fold();
      } catch (error) {
        if (database.writesLeft >= 0) throw error;
        database.writesLeft = Infinity;
        storage = start();
      }
      database.writesLeft = Infinity;
      if (random() < 0.1) storage = start();
      if (random() < 0.2) check(storage, model);
    }
    check(new Storage(database.storage), model);
    storage.fold();
    for (const each of [storage, new Storage(database.storage)])
      expect(stateOf(each)).toEqual(expected(model));
  }
});

const CLAIM: Claim = { id: "c", kind: "lease", units: { p: 1 }, ttlMs: 1_000, expiresAtMs: 2_000 };
const recordOf = (key: string, ahead = 0) => ({
  key,
  policy: "p",
  rules: { p: { algorithm: "token-bucket", ahead } },
});

test("a part of a turn that throws leaves nothing, and the others are written", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.turn(() => {
    storage.write(recordOf("a", 1), 1);
    const fails = () =>
      storage.atomically(() => {
        storage.write(recordOf("a", 2), 2);
        storage.claims.write("a", CLAIM, true);
        throw new Failed();
      });
    expect(fails).toThrow(Failed);
    storage.claims.write("b", CLAIM, true);
  }, lost);
  for (const each of [storage, new Storage(database.storage)]) {
    expect(each.read("a")).toEqual({ ...recordOf("a", 1), wholeAtMs: 1 });
    expect(each.claims.read("a")).toEqual([]);
    expect(each.claims.read("b")).toEqual([CLAIM]);
  }
});

test("a turn whose part throws after a key was deleted is lost as a whole", () => {
  const storage = new Storage(new Database().storage);
  storage.write(recordOf("a"), 1);
  storage.claims.write("a", CLAIM, true);
  const turn = () =>
    storage.turn(() => {
      const fails = () =>
        storage.atomically(() => {
          storage.remove("a");
          throw new Failed();
        });
      expect(fails).toThrow(Failed);
    }, lost);
  expect(turn).toThrow("a part of a turn was written, and failed");
});

test("a fold that dies at any of its writes has changed nothing, and the next one is whole", () => {
  for (let writes = 0, isDone = false; !isDone; writes += 1) {
    const database = new Database();
    const storage = new Storage(database.storage);
    for (const key of ["a", "b"]) {
      storage.write(recordOf(key, 7), 1);
      storage.claims.write(key, CLAIM, true);
      storage.answers.write(key, "order", { request: "r", answer: "{}", atMs: 1 });
    }
    const state = stateOf(storage);
    database.writesLeft = writes;
    try {
      storage.fold();
      isDone = true;
    } catch (error) {
      expect(error).toBeInstanceOf(Died);
    }
    database.writesLeft = Infinity;
    // The object goes on, or another starts.
    expect(stateOf(storage)).toEqual(state);
    storage.claims.write("a", { ...CLAIM, id: "more" }, true);
    storage.claims.remove("a", { id: "more" });
    const started = new Storage(database.storage);
    expect(stateOf(started)).toEqual(state);
    // What a record becomes after the fold is not undone by the journal.
    started.fold();
    started.write(recordOf("a", 8), 2);
    expect(new Storage(database.storage).read("a")).toEqual({ ...recordOf("a", 8), wholeAtMs: 2 });
  }
});

test("a row of the journal that was cut is not taken for less: the object does not start", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.claims.write("a", CLAIM, true);
  database.storage.sql.exec("UPDATE journal SET changes = substr(changes, 1, length(changes) - 9)");
  expect(() => new Storage(database.storage)).toThrow(SyntaxError);
});

test("an instant that never comes, or was always, is kept", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  for (const [key, wholeAtMs] of [
    ["a", Infinity],
    ["b", -Infinity],
  ] as const) {
    storage.claims.write(key, CLAIM, true);
    storage.write(recordOf(key), wholeAtMs);
    expect(new Storage(database.storage).read(key)).toMatchObject({ wholeAtMs });
    new Storage(database.storage).fold();
    expect(new Storage(database.storage).read(key)).toMatchObject({ wholeAtMs });
  }
});

test.each([false, true])(
  "after a rollback, records that the earlier version wrote count, and what only the journal has is added (it had begun again: %s)",
  (beginsAgain) => {
    const database = new Database();
    let isShort = false;
    const room = { add: () => undefined, isShort: () => isShort };
    const storage = new Storage(database.storage, undefined, room);
    for (const key of ["a", "b", "c"]) {
      storage.write(recordOf(key, 1), 1);
      storage.claims.write(key, CLAIM, true);
    }
    storage.fold();
    for (const key of ["a", "b", "c"]) {
      storage.claims.write(key, { ...CLAIM, id: "later" }, true);
      for (const version of [9, 9, 9, 9, 2]) storage.write(recordOf(key, version), version);
      storage.write(recordOf(key, 3), 3);
    }
    storage.remove("c");
    storage.write(recordOf("c", 4), 4);
    const { sql } = database.storage;
    isShort = beginsAgain;
    if (beginsAgain) storage.write(recordOf("b", 3), 3);
    const rows = sql.exec<{ changes: string }>("SELECT changes FROM journal ORDER BY turn").toArray();
    expect(rows.at(-1)?.changes.includes('"a"')).toBe(beginsAgain);
    sql.exec("UPDATE keys SET rules = '{}' WHERE key = 'a'");
    const started = new Storage(database.storage);
    expect(started.read("a")).toEqual({ key: "a", policy: "p", rules: {}, wholeAtMs: 1 });
    expect(started.read("b")).toEqual({ ...recordOf("b", 3), wholeAtMs: 3 });
    expect(started.read("c")).toEqual({ ...recordOf("c", 4), wholeAtMs: 4 });
    expect(started.claims.read("a").map(({ id }) => id)).toEqual(["c", "later"]);
    // It goes on from there, also in the same journal.
    started.claims.remove("a", CLAIM);
    started.write(recordOf("a", 5), 5);
    expect(new Storage(database.storage).read("a")).toEqual({ ...recordOf("a", 5), wholeAtMs: 5 });
    sql.exec("UPDATE keys SET rules = '{}' WHERE key = 'a'");
    sql.exec("UPDATE keys SET whole_at_ms = 9 WHERE key = 'a'");
    new Storage(database.storage).fold();
    expect(new Storage(database.storage).read("a")).toMatchObject({ rules: {} });
  },
);

test("what is stored is for ever", () => {
  const database = new Database();
  const storage = new Storage(database.storage);
  storage.turn(() => {
    storage.write(recordOf("a", 7), 1);
    storage.claims.write("a", CLAIM, true);
    storage.claims.write("a", { ...CLAIM, id: "renewed" }, false);
    storage.claims.remove("a", { id: "ended" });
    storage.answers.write("a", "order", { request: "r", answer: "{}", atMs: 1 });
    storage.answers.remove("a", "gone");
  }, lost);
  const rows = database.storage.sql.exec("SELECT * FROM journal").toArray();
  const { key: _, ...record } = { ...recordOf("a", 7), wholeAtMs: 1 };
  const changes = {
    record,
    begun: [CLAIM],
    renewed: [{ ...CLAIM, id: "renewed" }],
    ended: ["ended"],
    answers: [["order", { request: "r", answer: "{}", atMs: 1 }], ["gone"]],
    // There was none.
    base: 0x811c9dc5,
  };
  expect(rows).toEqual([{ place: 1, turn: 1, first: 1, changes: JSON.stringify([["a", changes]]) }]);
});
