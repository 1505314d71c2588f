/** What sweeps read of real storage, by the runtime's own count. */
import { runInDurableObject } from "cloudflare:test";
import { expect, test } from "vitest";
import { policies } from "../../../durable-objects/deployment.ts";
import { collectGarbage } from "../../../durable-objects/keys/garbage-collection.ts";
import { KeyCache } from "../../../durable-objects/keys/key-cache.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { UNKNOWN_KEPT_MS } from "../../../durable-objects/storage/sweeps.ts";
import { depth } from "../../support/depth.ts";
import { freshKey } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const HOUR_MS = 3_600_000;
const DAYS_MS = 30 * 24 * HOUR_MS;
const START_MS = Date.UTC(2027, 0, 1);
/** With fewer each is read more often, so the quick test has as many reads as the deep one. */
const ROWS = depth(10_000, 100_000);

/** The rows to sweep: keys that are forgotten one after the other within 30 days, or answers that end within a day. */
const FILLINGS = {
  keys: `INSERT INTO keys SELECT 'key ' || n, 'gone', '{}', ?2 - ${UNKNOWN_KEPT_MS} + n * (?3 / ?1) FROM number`,
  answers: `INSERT INTO answers SELECT 'key ' || n, 'order', '', '{}', ?2 - (?3 / 30) + n * (?3 / 30 / ?1) FROM number`,
};

/** Runs the sweeps of so many hours. */
function swept(state: DurableObjectState, table: keyof typeof FILLINGS, hours: number) {
  const { sql } = state.storage;
  const cursors: SqlStorageCursor<Record<string, SqlStorageValue>>[] = [];
  const counted = Object.create(state.storage, {
    sql: {
      value: {
        exec: (query: string, ...bindings: SqlStorageValue[]) => {
          const cursor = sql.exec(query, ...bindings);
          cursors.push(cursor);
          return cursor;
        },
      },
    },
    kv: { value: state.storage.kv },
    transactionSync: { value: <Result>(work: () => Result) => state.storage.transactionSync(work) },
  }) as DurableObjectStorage;
  const storage = new Storage(counted);
  const rules = {
    slow: {
      algorithm: "token-bucket",
      ahead: 0,
      state: { spentParts: 5 * DAYS_MS, windowMs: DAYS_MS, burst: 5, atMs: START_MS },
    },
  };
  for (const key of ["first", "second"]) storage.write({ key, policy: "slow", rules }, START_MS + DAYS_MS);
  storage.answers.write("first", "order", { request: "", answer: "{}", atMs: START_MS });
  storage.fold();
  const numbers = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?1)";
  sql.exec(`${numbers} ${FILLINGS[table]}`, ROWS, START_MS, DAYS_MS);
  cursors.length = 0;
  let [atMs, sweeps] = [START_MS, 0];
  while (atMs < START_MS + hours * HOUR_MS) {
    const work = collectGarbage({
      storage,
      cache: new KeyCache(storage),
      policies,
      timers: { nowMs: () => atMs },
    });
    let step = work.next();
    while (step.done !== true) step = work.next();
    sweeps += 1;
    atMs = step.value ?? Infinity;
  }
  const left = sql.exec<{ number: number }>(`SELECT count(*) AS number FROM ${table}`).one().number;
  return { left, sweeps, rowsRead: cursors.reduce((sum, { rowsRead }) => sum + rowsRead, 0) };
}

test.each([
  ["keys", 30 * 24],
  ["answers", 24],
] as const)(
  "of many %s sweeps read 100,000 rows an hour at most, and what is over goes",
  async (table, lastHours) => {
    const { stub } = objectOf("slow", freshKey());
    const { left, sweeps, rowsRead } = await runInDurableObject(stub, (_, state) => swept(state, table, 3));
    const due = (ROWS * 3) / lastHours;
    expect(left).toBeGreaterThanOrEqual(ROWS - due);
    expect(left).toBeLessThanOrEqual(ROWS - due / 3 + 2);
    expect(sweeps).toBeGreaterThan(1);
    // The rows of the first sweep were written just before, and what goes is read with its claims and answers.
    expect(rowsRead).toBeLessThanOrEqual(2 * ROWS + 300_000 + 3 * due);
  },
);
