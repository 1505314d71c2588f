/** What sweeps read of real storage, by the runtime's own count. */
import { runInDurableObject } from "cloudflare:test";
import { expect, test } from "vitest";
import { policies } from "../../../durable-objects/deployment.ts";
import { collectGarbage } from "../../../durable-objects/keys/garbage-collection.ts";
import { KeyCache } from "../../../durable-objects/keys/key-cache.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { depth } from "../../support/depth.ts";
import { freshKey } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const HOUR_MS = 3_600_000;
const DAYS_MS = 30 * 24 * HOUR_MS;
const START_MS = Date.UTC(2027, 0, 1);
/** Each is read ten times an hour, or once: the quick test has as many reads as the deep one. */
const KEYS = depth(10_000, 100_000);

/** Runs the sweeps of so many hours, of keys that are whole one after the other within 30 days. */
function swept(state: DurableObjectState, hours: number) {
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
  sql.exec(
    `WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
      INSERT INTO keys SELECT 'key ' || n, 'gone', '{}', ? + n * ? FROM number`,
    KEYS,
    START_MS,
    DAYS_MS / KEYS,
  );
  cursors.length = 0;
  let [atMs, sweeps] = [START_MS, 0];
  while (atMs < START_MS + hours * HOUR_MS) {
    const work = collectGarbage(storage, new KeyCache(storage), policies, () => atMs);
    let step = work.next();
    while (step.done !== true) step = work.next();
    sweeps += 1;
    atMs = step.value ?? Infinity;
  }
  const left = sql.exec<{ number: number }>("SELECT count(*) AS number FROM keys").one().number;
  return { left, sweeps, rowsRead: cursors.reduce((sum, { rowsRead }) => sum + rowsRead, 0) };
}

test("sweeps read 100,000 rows an hour at most, and what is whole goes", async () => {
  const { stub } = objectOf("slow", freshKey());
  const { left, sweeps, rowsRead } = await runInDurableObject(stub, (_, state) => swept(state, 3));
  const due = (KEYS * 3 * HOUR_MS) / DAYS_MS;
  expect(left).toBeGreaterThanOrEqual(KEYS - due);
  expect(left).toBeLessThanOrEqual(KEYS - due + 2 + due / 2);
  expect(sweeps).toBeGreaterThan(1);
  // The rows of the first sweep were written just before, and each that goes is read once more to be deleted.
  expect(rowsRead).toBeLessThanOrEqual(KEYS + 300_000 + due);
  console.log(`${KEYS} keys: ${sweeps} sweeps in 3 hours read ${rowsRead} rows`);
});
