/** When storage is swept: whatever is written, and whenever the object leaves memory, sweeps read little. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { APART_MS, FORGET_AFTER_MS, REST_MS, Sweeps } from "../../../durable-objects/storage/sweeps.ts";
import { Database } from "../../simulation/database.ts";

const HOUR_MS = 3_600_000;
const START_MS = 1_000 * HOUR_MS;

/** An object whose keys are whole at some instant, with its alarm. */
class Swept {
  readonly #storage = new Database().storage;
  #sweeps = new Sweeps(this.#storage);
  #wholeMs = new Map<number, number>();
  #alarmMs = Infinity;
  #nowMs = START_MS;
  rowsRead = 0;
  rowsWritten = 0;

  get size(): number {
    return this.#wholeMs.size;
  }

  write(key: number, lastsMs: number): void {
    const wholeMs = this.#nowMs + lastsMs;
    this.#wholeMs.set(key, wholeMs);
    this.rowsWritten += 1;
    this.#sweeps.wrote(wholeMs);
    this.#alarmMs = Math.min(this.#alarmMs, this.#sweeps.dueMs(wholeMs, this.#nowMs));
  }

  evict(): void {
    this.#sweeps = new Sweeps(this.#storage);
  }

  /** Time passes, and alarms come when they are due. */
  wait(ms: number): void {
    const untilMs = this.#nowMs + ms;
    while (this.#alarmMs <= untilMs) {
      this.#nowMs = Math.max(this.#nowMs, this.#alarmMs);
      this.#alarmMs = this.#sweep() ?? Infinity;
    }
    this.#nowMs = untilMs;
  }

  #sweep(): number | undefined {
    const restsUntilMs = this.#sweeps.restsUntilMs(this.#nowMs);
    if (restsUntilMs !== undefined) return restsUntilMs;
    this.#sweeps.begin();
    this.rowsRead += this.#wholeMs.size;
    for (const [key, wholeMs] of this.#wholeMs) {
      if (wholeMs <= this.#nowMs) this.#wholeMs.delete(key);
      else this.#sweeps.leave(1, wholeMs + FORGET_AFTER_MS);
    }
    return this.#sweeps.end(this.#nowMs);
  }
}

const lasting = fc.constantFrom(100, 100, 1_000, 30_000, 720 * HOUR_MS);
const step = fc.record({
  keys: fc.constantFrom(1, 1, 1, 1, 10, 1_000),
  lastsMs: lasting,
  waitMs: fc.constantFrom(1_000, 20_000, 60_000, 90_000),
});

test("sweeps read 100,000 rows an hour, and two for each row that is written, at most", () => {
  fc.assert(
    fc.property(fc.array(step, { minLength: 5, maxLength: 100 }), fc.boolean(), (steps, evicts) => {
      const object = new Swept();
      let [key, hours] = [0, 0];
      for (; key < 5_000; key += 1) object.write(key, 720 * HOUR_MS);
      for (const { keys, lastsMs, waitMs } of steps) {
        // Some of the keys have come before.
        key -= Math.floor(keys / 3);
        for (let each = 0; each < keys; each += 1) object.write((key += 1), lastsMs);
        object.wait(waitMs);
        hours += waitMs / HOUR_MS;
        // With 1,000 rows and more the next object knows when the last one has swept.
        if (evicts && object.size >= 2_000) object.evict();
      }
      const perHour = HOUR_MS / REST_MS;
      expect(object.rowsRead).toBeLessThanOrEqual(perHour * hours + 2 * object.rowsWritten);
    }),
    { numRuns: 60 },
  );
});

test("of 10,000 keys that last, each is read ten times an hour, of 100,000 once", () => {
  for (const [keys, times] of [
    [10_000, 10],
    [100_000, 1],
  ] as const) {
    const object = new Swept();
    for (let key = 0; key < keys; key += 1) object.write(key, (720 * HOUR_MS * (key + 1)) / keys);
    object.wait(HOUR_MS);
    const before = object.rowsRead;
    object.wait(24 * HOUR_MS);
    const sweepsADay = Math.round((object.rowsRead - before) / keys);
    expect(sweepsADay).toBeLessThanOrEqual(24 * times + 1);
    expect(sweepsADay).toBeGreaterThan(0.8 * 24 * times);
  }
});

test("what is whole goes soon where there are few keys", () => {
  const object = new Swept();
  object.write(1, 720 * HOUR_MS);
  for (let key = 2; key < 100; key += 1) {
    object.write(key, 1_000);
    object.wait(APART_MS + FORGET_AFTER_MS + 1_000);
    expect(object.size).toBe(1);
  }
});

test("of many keys that come once and go soon, no more stay than have come since the last sweep", () => {
  const object = new Swept();
  for (let key = 0; key < 20_000; key += 1) object.write(key, 720 * HOUR_MS);
  object.wait(HOUR_MS);
  let most = 0;
  for (let second = 0; second < 7_200; second += 1) {
    for (let each = 0; each < 100; each += 1) object.write(1_000_000 + second * 100 + each, 1_000);
    object.wait(1_000);
    most = Math.max(most, object.size - 20_000);
  }
  expect(most).toBeLessThanOrEqual(2 * 20_000);
});

test("a clock that ran ahead and was put right delays no sweep by more than a rest", () => {
  const { storage } = new Database();
  const ahead = new Sweeps(storage);
  ahead.begin();
  ahead.leave(10_000, START_MS + 2_000 * HOUR_MS);
  ahead.end(START_MS + 1_000 * HOUR_MS);
  expect(new Sweeps(storage).dueMs(START_MS, START_MS)).toBe(START_MS + 10_000 * REST_MS);
  // Stored for ever.
  const notBeforeMs = START_MS + 1_000 * HOUR_MS + 10_000 * REST_MS;
  expect(storage.kv.get("sweep")).toEqual({ rows: 10_000, notBeforeMs });
});
