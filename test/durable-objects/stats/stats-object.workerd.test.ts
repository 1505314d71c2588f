import { evictDurableObject, runInDurableObject } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { describe, expect, test } from "vitest";
import type { Time } from "../../../core/clock.ts";
import type { Counts } from "../../../core/stats/counts.ts";
import type { StatsMessage } from "../../../core/stats/messages.ts";
import { Recorder, type StatsObject } from "../../../durable-objects/stats/stats-object.ts";
import { StatsStorage, STEPS_KEPT } from "../../../durable-objects/stats/stats-storage.ts";

const { STATS } = env as unknown as { STATS: DurableObjectNamespace<StatsObject> };
const ADMITTED = "decisions api admitted ok isolate";
const DENIED = "decisions api denied quota object";
const MINUTE_MS = 60_000;
/** The beginning of a day, by the clock of these tests. */
const DAY_MS = 86_400_000 * 20_000;

/** A stub for each use: one whose object has crashed stays broken. */
const freshStats = () => {
  const name = crypto.randomUUID();
  return () => STATS.getByName(name);
};
const messageOf = (sender: string, number: number, counts: Counts, keys: StatsMessage["keys"] = []) => ({
  sender,
  number,
  counts,
  keys,
});

/** A clock that is set, and whose timers run when they are told to. */
class Clock implements Time {
  atMs = DAY_MS;
  timers: (() => void)[] = [];
  nowMs(): number {
    return this.atMs;
  }
  after(_ms: number, work: () => void): () => void {
    this.timers.push(work);
    return () => undefined;
  }
  run(): void {
    for (const work of this.timers.splice(0)) work();
  }
}

/** Runs with a recorder on the storage of an object. `open` makes a new one, as after a crash. */
function withRecorder(
  work: (open: () => Recorder, clock: Clock, storage: DurableObjectStorage, told: Counts[]) => Promise<void>,
): Promise<void> {
  return runInDurableObject(freshStats()(), async (_object, { storage }) => {
    const [clock, told] = [new Clock(), [] as Counts[]];
    await work(
      () => new Recorder(new StatsStorage(storage), clock, (counts) => told.push(counts)),
      clock,
      storage,
      told,
    );
  });
}

describe("a message that was answered", () => {
  test("is there after an eviction, and counts once if it comes again", async () => {
    const stats = freshStats();
    await stats().push(messageOf("a", 1, { [ADMITTED]: 3 }));
    await stats().push(messageOf("a", 1, { [ADMITTED]: 3 }));
    await evictDurableObject(stats());
    await stats().push(messageOf("a", 1, { [ADMITTED]: 3 }));
    await stats().push(messageOf("a", 2, { [ADMITTED]: 4 }));
    const { counts } = await stats().totals();
    expect(counts[ADMITTED]).toBe(7);
    expect([counts["stats_messages counted"], counts["stats_messages repeated"]]).toEqual([2, 2]);
  });

  test("is there after a crash at any moment between minutes and hours", () =>
    withRecorder(async (open, clock) => {
      let recorder = open();
      let [number, counted] = [0, 0];
      for (const minutes of [0, 1, 1, 58, 1, 60, 200, 3_000]) {
        clock.atMs += minutes * MINUTE_MS;
        number += 1;
        counted += number;
        await recorder.push(messageOf("a", number, { [ADMITTED]: number }));
        recorder = open();
        const again = recorder.push(messageOf("a", number, { [ADMITTED]: number }));
        clock.run();
        await again;
        expect(recorder.totals().counts[ADMITTED]).toBe(counted);
      }
    }));

  test("is written together with others that come at the same time: one row for all", () =>
    withRecorder(async (open, clock, storage) => {
      const recorder = open();
      await recorder.push(messageOf("first", 1, { [ADMITTED]: 1 }));
      const before = storage.sql.exec("SELECT total_changes() AS n").one()["n"] as number;
      const pushed = Array.from({ length: 50 }, (_, index) =>
        recorder.push(messageOf(`s${index}`, 1, { [ADMITTED]: 1 })),
      );
      expect(recorder.totals().counts[ADMITTED]).toBe(1);
      clock.run();
      await Promise.all(pushed);
      expect(recorder.totals().counts[ADMITTED]).toBe(51);
      expect((storage.sql.exec("SELECT total_changes() AS n").one()["n"] as number) - before).toBe(1);
    }));
});

describe("a message that could not be stored", () => {
  test("is refused and not counted, and counts when it comes again", () =>
    withRecorder(async (open, clock, storage, told) => {
      const recorder = open();
      await recorder.push(messageOf("a", 1, { [ADMITTED]: 1 }));
      clock.atMs += MINUTE_MS;
      // What runs when the storage is full: a statement throws, and the transaction is rolled back.
      storage.sql.exec("ALTER TABLE documents RENAME TO elsewhere");
      await expect(recorder.push(messageOf("a", 2, { [ADMITTED]: 2 }))).rejects.toThrow();
      expect(recorder.totals().counts[ADMITTED]).toBe(1);
      storage.sql.exec("ALTER TABLE elsewhere RENAME TO documents");
      expect(recorder.history({ policy: "api", step: "minute", sinceMs: DAY_MS })).toHaveLength(1);
      clock.atMs += MINUTE_MS;
      await recorder.push(messageOf("a", 2, { [ADMITTED]: 2 }));
      expect(recorder.totals().counts[ADMITTED]).toBe(3);
      expect(told.map((counts) => counts[ADMITTED])).toEqual([1, 2]);
    }));

  test("is refused when too many wait, so that memory has a bound", () =>
    withRecorder(async (open, clock) => {
      const recorder = open();
      await recorder.push(messageOf("a", 1, {}));
      const waiting = Array.from({ length: 1_000 }, (_, index) =>
        recorder.push(messageOf(`s${index}`, 1, {})),
      );
      await expect(recorder.push(messageOf("late", 1, {}))).rejects.toThrow("wait to be counted");
      clock.run();
      await Promise.all(waiting);
    }));
});

describe("the history", () => {
  test("has each minute with traffic, the open one included, and nothing before it was asked for", () =>
    withRecorder(async (open, clock) => {
      const recorder = open();
      await recorder.push(messageOf("a", 1, { [ADMITTED]: 1, [DENIED]: 2 }));
      clock.atMs += 5 * MINUTE_MS;
      await recorder.push(messageOf("a", 2, { [DENIED]: 3, "decisions other denied quota object": 1 }));
      const of = (sinceMs: number, policy = "api") => recorder.history({ policy, step: "minute", sinceMs });
      expect(of(DAY_MS)).toEqual([
        { atMs: DAY_MS, counts: { "admitted ok": 1, "denied quota": 2 } },
        { atMs: DAY_MS + 5 * MINUTE_MS, counts: { "denied quota": 3 } },
      ]);
      expect(of(DAY_MS + MINUTE_MS)).toHaveLength(1);
      expect(of(DAY_MS, "other")).toHaveLength(1);
      expect(of(DAY_MS, "nobody")).toEqual([]);
    }));

  test("has each hour with traffic, also the one that is not over, and after a start", () =>
    withRecorder(async (open, clock) => {
      let [recorder, number] = [open(), 0];
      for (const minutes of [0, 10, 55, 30, 600]) {
        clock.atMs += minutes * MINUTE_MS;
        number += 1;
        await recorder.push(messageOf("a", number, { [ADMITTED]: number }));
        recorder = open();
      }
      const points = recorder.history({ policy: "api", step: "hour", sinceMs: DAY_MS });
      expect(points.map(({ atMs, counts }) => [(atMs - DAY_MS) / 3_600_000, counts["admitted ok"]])).toEqual([
        [0, 3],
        [1, 7],
        [11, 5],
      ]);
    }));

  test("has a row for each minute of a day at most, and each is written once", () =>
    withRecorder(async (open, clock, storage) => {
      const recorder = open();
      let number = 0;
      const minutes = STEPS_KEPT.minute + 100;
      for (let minute = 0; minute <= minutes; minute += 1) {
        number += 1;
        await recorder.push(messageOf("a", number, { [ADMITTED]: 1 }));
        clock.atMs += MINUTE_MS;
      }
      const rows = storage.sql
        .exec("SELECT step, count(*) AS rows FROM history GROUP BY step ORDER BY step")
        .toArray();
      expect(rows).toEqual([
        { step: "hour", rows: Math.floor(minutes / 60) },
        { step: "minute", rows: STEPS_KEPT.minute },
      ]);
      const sinceMs = clock.atMs - STEPS_KEPT.minute * MINUTE_MS;
      expect(recorder.history({ policy: "api", step: "minute", sinceMs })).toHaveLength(STEPS_KEPT.minute);
      expect(recorder.totals().counts[ADMITTED]).toBe(minutes + 1);
    }));
});

describe("top keys", () => {
  const keysOf = (key: string, count: number) => [
    { policy: "api", denied: { keys: [[key, count, 0]] as const, least: 0 }, active: { keys: [], least: 0 } },
  ];

  test("are those of this hour and of the last one", () =>
    withRecorder(async (open, clock) => {
      const recorder = open();
      await recorder.push(messageOf("a", 1, {}, keysOf("x", 5)));
      clock.atMs += 60 * MINUTE_MS;
      await recorder.push(messageOf("a", 2, {}, keysOf("x", 2)));
      clock.atMs += MINUTE_MS;
      await recorder.push(messageOf("b", 1, {}, keysOf("y", 4)));
      expect(recorder.topKeys({ policy: "api", by: "denied" })).toEqual({
        sinceMs: DAY_MS,
        keys: [
          ["x", 7, 0],
          ["y", 4, 0],
        ],
      });
      clock.atMs += 60 * MINUTE_MS;
      expect(recorder.topKeys({ policy: "api", by: "denied" }).keys).toEqual([
        ["y", 4, 0],
        ["x", 2, 0],
      ]);
      expect(recorder.topKeys({ policy: "api", by: "active" }).keys).toEqual([]);
      clock.atMs += 60 * MINUTE_MS;
      expect(recorder.topKeys({ policy: "api", by: "denied" }).keys).toEqual([]);
    }));

  const topOf = (recorder: Recorder, policy = "api") => recorder.topKeys({ policy, by: "denied" }).keys;

  test("are there after each start, in the row that is written anyway", () =>
    withRecorder(async (open, clock, storage) => {
      await open().push(messageOf("a", 1, {}, keysOf("x", 5)));
      expect(topOf(open())).toEqual([["x", 5, 0]]);
      // Of a policy that came before the rows of single policies were written, and of one that comes after.
      clock.atMs += 10 * MINUTE_MS;
      await open().push(messageOf("a", 2, {}, keysOf("y", 1)));
      clock.atMs += MINUTE_MS;
      const before = storage.sql.exec("SELECT count(*) AS rows FROM documents").one()["rows"];
      await open().push(
        messageOf("a", 3, {}, [{ policy: "login", denied: { keys: [["z", 2, 0]], least: 0 } }]),
      );
      expect(storage.sql.exec("SELECT count(*) AS rows FROM documents").one()["rows"]).toBe(before);
      expect(topOf(open())).toEqual([
        ["x", 5, 0],
        ["y", 1, 0],
      ]);
      clock.atMs += 10 * MINUTE_MS;
      await open().push(messageOf("a", 4, {}));
      expect(topOf(open(), "login")).toEqual([["z", 2, 0]]);
    }));

  test("that would make the row long are there after a start when ten minutes have passed", () =>
    withRecorder(async (open, clock) => {
      const long = Array.from({ length: 64 }, (_, index) => [`${index}${"k".repeat(500)}`, 1, 0] as const);
      const keys = Array.from({ length: 12 }, (_, index) => ({
        policy: `p${index}`,
        denied: { keys: long, least: 0 },
      }));
      await open().push(messageOf("a", 1, {}, keys));
      expect(topOf(open(), "p3")).toEqual([]);
      const recorder = open();
      await recorder.push(messageOf("a", 2, {}, keys));
      clock.atMs += 10 * MINUTE_MS;
      await recorder.push(messageOf("a", 3, {}));
      expect(topOf(open(), "p3")).toHaveLength(64);
    }));

  test("of a message that comes twice count once", () =>
    withRecorder(async (open, clock) => {
      const recorder = open();
      const message = messageOf("a", 1, {}, keysOf("x", 5));
      await recorder.push(message);
      clock.atMs += MINUTE_MS;
      await recorder.push(message);
      expect(recorder.topKeys({ policy: "api", by: "denied" }).keys).toEqual([["x", 5, 0]]);
    }));
});
