import { evictDurableObject, runDurableObjectAlarm, runInDurableObject } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { describe, expect, test } from "vitest";
import type { Time } from "../../../core/clock.ts";
import type { Counts } from "../../../core/stats/counts.ts";
import { OBJECTS_SENDER, type StatsMessage } from "../../../core/stats/messages.ts";
import { Recorder, type StatsObject } from "../../../durable-objects/stats/stats-object.ts";
import { StatsStorage, STEPS_KEPT } from "../../../durable-objects/stats/stats-storage.ts";

const { STATS } = env as unknown as { STATS: DurableObjectNamespace<StatsObject> };
const ADMITTED = "decisions api admitted ok isolate";
const DENIED = "decisions api denied quota object";
const MINUTE_MS = 60_000;
/** Longer than writes wait. */
const PAUSE_MS = 10_000;
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

/** As isolates send it. */
const keptOf = (sender: string, number: number, counts: Counts, after?: number): StatsMessage => ({
  ...messageOf(sender, number, counts),
  isKept: true,
  ...(after !== undefined && { after }),
});

/** A clock that is set, and the times after which it is to wake. */
class Clock implements Pick<Time, "nowMs"> {
  atMs = DAY_MS;
  readonly wakes: number[] = [];
  nowMs(): number {
    return this.atMs;
  }
}

/** Runs with a recorder on the storage of an object. `open` makes a new one, as after a crash. */
function withRecorder(
  work: (open: () => Recorder, clock: Clock, storage: DurableObjectStorage, told: Counts[]) => unknown,
): Promise<void> {
  return runInDurableObject(freshStats()(), async (_object, { storage }) => {
    const [clock, told] = [new Clock(), [] as Counts[]];
    const onCounted = (counts: Counts) => void told.push(counts);
    const wakeAfter = (ms: number) => void clock.wakes.push(ms);
    await work(
      () => new Recorder(new StatsStorage(storage), clock, { onCounted, wakeAfter }),
      clock,
      storage,
      told,
    );
  });
}

/** Sends messages of other isolates until one is not stored at once. */
function useUpWrites(recorder: Recorder): void {
  while (recorder.push(keptOf(crypto.randomUUID(), 1, {})).stored === 1);
}

describe("a message that was stored", () => {
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
    withRecorder((open, clock) => {
      let recorder = open();
      let [number, counted] = [0, 0];
      for (const minutes of [0, 1, 1, 58, 1, 60, 200, 3_000]) {
        clock.atMs += minutes * MINUTE_MS;
        number += 1;
        counted += number;
        recorder.push(messageOf("a", number, { [ADMITTED]: number }));
        recorder = open();
        recorder.push(messageOf("a", number, { [ADMITTED]: number }));
        expect(recorder.totals().counts[ADMITTED]).toBe(counted);
      }
    }));
});

describe("a message that its sender keeps", () => {
  test("is answered at once, and stored at once after a pause, or else with others in one row", () =>
    withRecorder((open, clock, storage) => {
      const recorder = open();
      expect(recorder.push(keptOf("first", 1, { [ADMITTED]: 1 }))).toEqual({ received: 1, stored: 1 });
      useUpWrites(recorder);
      const changes = () => storage.sql.exec("SELECT total_changes() AS n").one()["n"] as number;
      const before = changes();
      for (let each = 0; each < 50; each += 1)
        expect(recorder.push(keptOf(`s${each}`, 1, { [ADMITTED]: 1 }))).toEqual({ received: 1, stored: 0 });
      expect(changes()).toBe(before);
      clock.atMs += PAUSE_MS;
      expect(recorder.push(keptOf("s0", 2, { [ADMITTED]: 1 }, 1))).toEqual({ received: 2, stored: 2 });
      expect(changes() - before).toBe(1);
      expect(recorder.totals().counts[ADMITTED]).toBe(52);
    }));

  test("is in no total before it is stored, and a reader has it stored when its time has come", () =>
    withRecorder((open, clock) => {
      const recorder = open();
      useUpWrites(recorder);
      recorder.push(keptOf("a", 1, { [ADMITTED]: 4 }));
      expect(recorder.totals().counts[ADMITTED]).toBeUndefined();
      clock.atMs += PAUSE_MS;
      expect(recorder.totals().counts[ADMITTED]).toBe(4);
      expect(open().totals().counts[ADMITTED]).toBe(4);
    }));

  test("is not counted if the one before it is lost, and both are when they come again", () =>
    withRecorder((open, clock) => {
      const recorder = open();
      useUpWrites(recorder);
      recorder.push(keptOf("a", 1, { [ADMITTED]: 1 }));
      const next = open();
      useUpWrites(next);
      const second = keptOf("a", 2, { [ADMITTED]: 2 }, 1);
      expect(next.push(second)).toEqual({ received: 0, stored: 0 });
      expect(next.push(keptOf("a", 1, { [ADMITTED]: 1 }))).toEqual({ received: 1, stored: 0 });
      expect(next.push(second)).toEqual({ received: 2, stored: 0 });
      clock.atMs += PAUSE_MS;
      expect(next.totals().counts[ADMITTED]).toBe(3);
    }));

  test("is stored by an alarm if nothing else comes, while the object still has it", async () => {
    const stats = freshStats();
    for (let number = 1; ; number += 1)
      if ((await stats().push(keptOf("a", number, { [ADMITTED]: 1 }, number - 1))).stored < number) break;
    const { counts } = await stats().totals();
    expect(await runDurableObjectAlarm(stats())).toBe(true);
    await evictDurableObject(stats());
    expect((await stats().totals()).counts[ADMITTED]).toBe((counts[ADMITTED] ?? 0) + 1);
  });

  test("sets one alarm for all that wait, before an idle object leaves memory", () =>
    withRecorder((open, clock) => {
      const recorder = open();
      useUpWrites(recorder);
      for (let each = 0; each < 20; each += 1) recorder.push(keptOf(`s${each}`, 1, {}));
      expect(clock.wakes).toEqual([8_000]);
      clock.atMs += 8_000;
      recorder.write();
      useUpWrites(recorder);
      expect(clock.wakes).toEqual([8_000, 8_000]);
      // After the clock was set back, time stands still until it is where it was.
      clock.atMs -= 3_600_000;
      recorder.write();
      recorder.push(keptOf("late", 1, {}));
      expect(clock.wakes).toHaveLength(3);
    }));

  test("and that of an older isolate, which does not keep it, is stored with it before both are answered", () =>
    withRecorder((open) => {
      const recorder = open();
      useUpWrites(recorder);
      recorder.push(keptOf("a", 1, { [ADMITTED]: 1 }));
      recorder.push(messageOf("old", 1, { [ADMITTED]: 2 }));
      expect(open().totals().counts[ADMITTED]).toBe(3);
    }));

  test("waits only with so many others, so that memory has a bound", () =>
    withRecorder((open) => {
      const recorder = open();
      useUpWrites(recorder);
      for (let each = 0; each < 1_000; each += 1) recorder.push(keptOf(`s${each}`, 1, { [ADMITTED]: 1 }));
      expect(recorder.totals().counts[ADMITTED]).toBeGreaterThan(900);
    }));
});

describe("a message that could not be stored", () => {
  test("is refused and not counted, as all that waited with it, and counts when it comes again", () =>
    withRecorder((open, clock, storage, told) => {
      const recorder = open();
      recorder.push(messageOf("a", 1, { [ADMITTED]: 1 }));
      useUpWrites(recorder);
      recorder.push(keptOf("b", 1, { [ADMITTED]: 4 }));
      clock.atMs += MINUTE_MS;
      // What runs when the storage is full: a statement throws, and the transaction is rolled back.
      storage.sql.exec("ALTER TABLE documents RENAME TO elsewhere");
      expect(() => recorder.push(messageOf("a", 2, { [ADMITTED]: 2 }))).toThrow();
      expect(recorder.totals().counts[ADMITTED]).toBe(1);
      storage.sql.exec("ALTER TABLE elsewhere RENAME TO documents");
      expect(recorder.history({ policy: "api", step: "minute", sinceMs: DAY_MS })).toHaveLength(1);
      clock.atMs += MINUTE_MS;
      expect(recorder.push(messageOf("a", 2, { [ADMITTED]: 2 }))).toEqual({ received: 2, stored: 2 });
      expect(recorder.push(keptOf("b", 2, {}, 1))).toEqual({ received: 0, stored: 0 });
      expect(recorder.totals().counts[ADMITTED]).toBe(3);
      expect(told.flatMap((counts) => counts[ADMITTED] ?? [])).toEqual([1, 2]);
    }));
});

test("of more than a thousand isolates each sends less often, and of those that are gone no more", () =>
  withRecorder((open, clock) => {
    const recorder = open();
    const everyMs = (isolates: number) => {
      for (let each = 0; each < isolates; each += 1) recorder.push(keptOf(`s${each}`, clock.atMs, {}));
      clock.atMs += MINUTE_MS;
      recorder.push(keptOf("last", clock.atMs, {}));
      return recorder.push(keptOf("last", clock.atMs, {})).everyMs;
    };
    expect(everyMs(900)).toBeUndefined();
    expect(everyMs(2_999)).toBe(30_000);
    expect(everyMs(9_000)).toBe(60_000);
    clock.atMs += 10 * MINUTE_MS;
    expect(everyMs(10)).toBeUndefined();
  }));

describe("the history", () => {
  test("has each minute with traffic, the open one included, and nothing before it was asked for", () =>
    withRecorder((open, clock) => {
      const recorder = open();
      recorder.push(messageOf("a", 1, { [ADMITTED]: 1, [DENIED]: 2 }));
      clock.atMs += 5 * MINUTE_MS;
      recorder.push(messageOf("a", 2, { [DENIED]: 3, "decisions other denied quota object": 1 }));
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
    withRecorder((open, clock) => {
      let [recorder, number] = [open(), 0];
      for (const minutes of [0, 10, 55, 30, 600]) {
        clock.atMs += minutes * MINUTE_MS;
        number += 1;
        recorder.push(messageOf("a", number, { [ADMITTED]: number }));
        recorder = open();
      }
      const points = recorder.history({ policy: "api", step: "hour", sinceMs: DAY_MS });
      expect(points.map(({ atMs, counts }) => [(atMs - DAY_MS) / 3_600_000, counts["admitted ok"]])).toEqual([
        [0, 3],
        [1, 7],
        [11, 5],
      ]);
    }));

  test("has decisions by plan beside all of them, by minute and hour, and after a start", () =>
    withRecorder((open, clock) => {
      const [PRO, NOT_PRO] = ["plan_decisions api pro admitted", "plan_decisions api pro denied"];
      let recorder = open();
      recorder.push(messageOf("a", 1, { [ADMITTED]: 3, [DENIED]: 1, [PRO]: 2, [NOT_PRO]: 1 }));
      clock.atMs += MINUTE_MS;
      recorder.push(messageOf("a", 2, { [ADMITTED]: 1 }));
      clock.atMs += MINUTE_MS;
      recorder = open();
      recorder.push(messageOf("a", 3, { [ADMITTED]: 4, [PRO]: 4, "plan_decisions api free admitted": 1 }));
      const plansOf = (step: "minute" | "hour") =>
        recorder.history({ policy: "api", step, sinceMs: DAY_MS }).map(({ plans }) => plans);
      const first = { "pro admitted": 2, "pro denied": 1 };
      expect(plansOf("minute")).toEqual([first, undefined, { "pro admitted": 4, "free admitted": 1 }]);
      expect(plansOf("hour")).toEqual([{ "pro admitted": 6, "pro denied": 1, "free admitted": 1 }]);
      clock.atMs += 60 * MINUTE_MS;
      recorder.push(messageOf("a", 4, { [ADMITTED]: 1 }));
      expect(plansOf("hour")).toEqual([
        { "pro admitted": 6, "pro denied": 1, "free admitted": 1 },
        undefined,
      ]);
      // An older version reads words of outcomes and reasons, so plans are not among them.
      const [minute] = recorder.history({ policy: "api", step: "minute", sinceMs: DAY_MS });
      expect(minute?.counts).toEqual({ "admitted ok": 3, "denied quota": 1 });
    }));

  test("has a row for each minute of a day at most, and each is written once", () =>
    withRecorder((open, clock, storage) => {
      const recorder = open();
      let number = 0;
      const minutes = STEPS_KEPT.minute + 100;
      for (let minute = 0; minute <= minutes; minute += 1) {
        number += 1;
        recorder.push(messageOf("a", number, { [ADMITTED]: 1 }));
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

test("isolates are those with a message in two minutes, by what they run, and after a start too", () =>
  withRecorder((open, clock) => {
    const isolatesOf = ({ counts }: ReturnType<Recorder["totals"]>) =>
      ["worker", "objects"].map((runs) => counts[`isolates ${runs}`]);
    const recorder = open();
    expect(isolatesOf(recorder.totals())).toEqual([0, 0]);
    for (const sender of ["a", "b", `${OBJECTS_SENDER}c`]) recorder.push(messageOf(sender, 1, {}));
    expect(isolatesOf(recorder.totals())).toEqual([2, 1]);
    clock.atMs += 2 * MINUTE_MS - 1;
    recorder.push(messageOf("a", 2, {}));
    expect(isolatesOf(open().totals())).toEqual([2, 1]);
    clock.atMs += 2;
    expect(isolatesOf(open().totals())).toEqual([1, 0]);
  }));

describe("top keys", () => {
  const keysOf = (key: string, count: number) => [
    { policy: "api", denied: { keys: [[key, count, 0]] as const, least: 0 }, active: { keys: [], least: 0 } },
  ];

  test("are those of this hour and of the last one", () =>
    withRecorder((open, clock) => {
      const recorder = open();
      recorder.push(messageOf("a", 1, {}, keysOf("x", 5)));
      clock.atMs += 60 * MINUTE_MS;
      recorder.push(messageOf("a", 2, {}, keysOf("x", 2)));
      clock.atMs += MINUTE_MS;
      recorder.push(messageOf("b", 1, {}, keysOf("y", 4)));
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
    withRecorder((open, clock, storage) => {
      open().push(messageOf("a", 1, {}, keysOf("x", 5)));
      expect(topOf(open())).toEqual([["x", 5, 0]]);
      // Of a policy that came before the rows of single policies were written, and of one that comes after.
      clock.atMs += 10 * MINUTE_MS;
      open().push(messageOf("a", 2, {}, keysOf("y", 1)));
      clock.atMs += MINUTE_MS;
      const before = storage.sql.exec("SELECT count(*) AS rows FROM documents").one()["rows"];
      open().push(messageOf("a", 3, {}, [{ policy: "login", denied: { keys: [["z", 2, 0]], least: 0 } }]));
      expect(storage.sql.exec("SELECT count(*) AS rows FROM documents").one()["rows"]).toBe(before);
      expect(topOf(open())).toEqual([
        ["x", 5, 0],
        ["y", 1, 0],
      ]);
      clock.atMs += 10 * MINUTE_MS;
      open().push(messageOf("a", 4, {}));
      expect(topOf(open(), "login")).toEqual([["z", 2, 0]]);
    }));

  test("that would make the row long are there after a start when ten minutes have passed", () =>
    withRecorder((open, clock) => {
      const long = Array.from({ length: 64 }, (_, index) => [`${index}${"k".repeat(500)}`, 1, 0] as const);
      const keys = Array.from({ length: 12 }, (_, index) => ({
        policy: `p${index}`,
        denied: { keys: long, least: 0 },
      }));
      open().push(messageOf("a", 1, {}, keys));
      expect(topOf(open(), "p3")).toEqual([]);
      const recorder = open();
      recorder.push(messageOf("a", 2, {}, keys));
      clock.atMs += 10 * MINUTE_MS;
      recorder.push(messageOf("a", 3, {}));
      expect(topOf(open(), "p3")).toHaveLength(64);
    }));

  test("of a message that comes twice count once", () =>
    withRecorder((open, clock) => {
      const recorder = open();
      const message = messageOf("a", 1, {}, keysOf("x", 5));
      recorder.push(message);
      clock.atMs += MINUTE_MS;
      recorder.push(message);
      expect(recorder.topKeys({ policy: "api", by: "denied" }).keys).toEqual([["x", 5, 0]]);
    }));
});
