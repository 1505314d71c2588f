/** How many rows a key with an object of its own writes, until it is forgotten. */
import { runInDurableObject } from "cloudflare:test";
import { expect, test } from "vitest";
import { countRows, rowsWrittenBy } from "../../../bench/rows-written.ts";
import { acquire, freshKey, idIn, release } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";
import { at } from "../../support/virtual-date.ts";

const START_MS = Date.UTC(2027, 0, 1);
const FORGOTTEN_MS = START_MS + 100 * 24 * 3_600_000;

type KeyObject = ReturnType<typeof objectOf>;

/** The rows that this object has written. */
function rowsOf({ stub }: KeyObject): Promise<number> {
  return runInDurableObject(stub, (_, { storage }) => rowsWrittenBy(storage));
}

/** The rows that some work on a fresh object writes. */
async function rowsFor(policy: string, work: (object: KeyObject) => Promise<unknown>) {
  const object = objectOf(policy, freshKey());
  await runInDurableObject(object.stub, (_, { storage }) => countRows(storage));
  at(START_MS);
  await work(object);
  const written = await rowsOf(object);
  const { tables } = await object.stored();
  return { written, tables: Object.keys(tables), object };
}

test.each([
  ["slow", "each decision is written", ["record"]],
  ["ahead", "memory may be ahead of what is stored", []],
  ["log", "a log is kept", ["record"]],
])("%s, where %s: two rows for a call, and none when it is forgotten", async (policy, _, stored) => {
  const { written, tables, object } = await rowsFor(policy, (each) => each.limit());
  expect({ written, tables }).toEqual({ written: 2, tables: stored });
  at(FORGOTTEN_MS);
  expect(await object.runAlarm()).toBe(true);
  expect(await rowsOf(object)).toBe(2);
  expect(await object.stored()).toEqual({ tables: {}, alarmAtMs: null });
});

test("each further call of a small, slow limit writes a row", async () => {
  const { written } = await rowsFor("slow", async (object) => {
    for (let call = 0; call < 5; call += 1) await object.limit();
  });
  expect(written).toBe(6);
});

test("a call with an idempotency key makes the tables", async () => {
  const { written, tables } = await rowsFor("slow", (object) => object.limit(1, "order-1"));
  // Two tables with two rows each, a row of the journal and the alarm.
  expect({ written, tables }).toEqual({ written: 6, tables: ["keys", "journal"] });
});

test("a lease writes a row when it is granted, and one when it ends", async () => {
  const rowsOfPairs = async (pairs: number) => {
    const key = freshKey();
    const object = objectOf("export", key);
    await runInDurableObject(object.stub, (_, { storage }) => countRows(storage));
    at(START_MS);
    for (let pair = 0; pair < pairs; pair += 1) await release(idIn(await acquire("export", key)));
    return await rowsOf(object);
  };
  expect((await rowsOfPairs(6)) - (await rowsOfPairs(1))).toBe(2 * 5);
});
