/** What a notice costs, how long it is sent again, and what there is at most of each. */
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { MAX_UNSENT } from "../../../core/accounts/notices.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import type { Addressed } from "../../../durable-objects/notices/delivery.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";

const START_MS = 1_800_000_000_000;
const DAY_MS = 86_400_000;
const BUCKET = { algorithm: "token-bucket", limit: 10, window: "60s" };

beforeAll(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterAll(() => void vi.restoreAllMocks());

const settle = async () => {
  for (let turn = 0; turn < 40; turn += 1) await Promise.resolve();
};

/** An object, and every attempt to send. */
function objectWith(table: object, isTaken = () => true) {
  const attempts: (Addressed & { readonly atMs: number })[] = [];
  const object = new AlarmedObject(known({ p: table }), START_MS, () => async (addressed) => {
    attempts.push({ ...addressed, atMs: object.nowMs });
    await Promise.resolve();
    if (!isTaken()) throw new Error("it is away");
  });
  const counts = () => object.tally.take()?.counts ?? {};
  return { object, attempts, counts };
}

/** Rows of calls that take all units one by one, alarms included. */
async function rowsOf(table: object, calls: number, cost: number): Promise<number> {
  const { object } = objectWith(table);
  for (let call = 0; call < calls; call += 1) {
    object.limit("key", cost);
    await settle();
  }
  return object.database.rowsWritten + object.alarmsSet;
}

test.each([
  ["a small limit", { ...BUCKET, window: "30d" }, 10, 1],
  ["a large limit", { ...BUCKET, limit: 10_000, window: "1h" }, 1_000, 10],
  ["a log", { algorithm: "sliding-log", limit: 10, window: "1h" }, 10, 1],
])("%s: a notice costs two rows at most", async (_, table, calls, cost) => {
  const without = await rowsOf(table, calls, cost);
  const one = await rowsOf({ ...table, notify: [0.5] }, calls, cost);
  const four = await rowsOf({ ...table, notify: [0.2, 0.5, 0.8, 1] }, calls, cost);
  expect(one).toBeGreaterThan(without);
  expect(one - without).toBeLessThanOrEqual(2);
  expect(four - without).toBeLessThanOrEqual(8);
});

test("what does not arrive is sent for a day with growing waits, with one id, and then counted as dropped", async () => {
  const { object, attempts, counts } = objectWith({ ...BUCKET, notify: [1] }, () => false);
  object.limit("key", 10);
  await settle();
  await object.pass(2 * DAY_MS);
  await settle();
  const waits = attempts.slice(1).map(({ atMs }, index) => atMs - (attempts[index]?.atMs ?? 0));
  expect(attempts.length).toBeGreaterThan(15);
  expect(attempts.length).toBeLessThan(60);
  expect(Math.min(...waits)).toBeGreaterThanOrEqual(5_000);
  expect(waits[0]).toBeLessThan(7_000);
  expect(Math.max(...waits)).toBeGreaterThan(3_600_000);
  expect((attempts.at(-1)?.atMs ?? 0) - START_MS).toBeGreaterThan(DAY_MS - 3 * 3_600_000);
  expect((attempts.at(-1)?.atMs ?? 0) - START_MS).toBeLessThan(DAY_MS);
  expect(new Set(attempts.map(({ notice }) => notice.id)).size).toBe(1);
  expect(counts()).toMatchObject({ "notices p dropped": 1, "notices p failed": attempts.length });
  // Then nothing is kept of the key.
  await object.pass(DAY_MS);
  expect(object.storage.isEmpty).toBe(true);
});

test("a receiver that is back gets the next notice at once, and soon the others", async () => {
  let isTaken = false;
  const { object, attempts } = objectWith({ ...BUCKET, notify: [1] }, () => isTaken);
  object.limit("one", 10);
  await settle();
  await object.pass(3_600_000);
  isTaken = true;
  const before = attempts.length;
  object.limit("two", 10);
  const since = () => attempts.slice(before).map(({ key }) => key);
  // Signing takes threads of its own, which a busy machine has late.
  await vi.waitFor(() => expect(since().toSorted()).toEqual(["one", "two"]), { timeout: 60_000 });
});

test("of one rule of a key 16 are kept: the oldest are dropped, and counted", async () => {
  let isTaken = false;
  const { object, attempts, counts } = objectWith({ ...BUCKET, notify: [1] }, () => isTaken);
  for (let minute = 0; minute < MAX_UNSENT + 5; minute += 1) {
    object.limit("key", 10);
    await settle();
    await object.pass(60_000);
  }
  isTaken = true;
  const before = attempts.length;
  await object.pass(4 * 3_600_000);
  await settle();
  expect(attempts.slice(before)).toHaveLength(MAX_UNSENT);
  expect(counts()).toMatchObject({ "notices p dropped": 5, "notices p sent": MAX_UNSENT });
});

test("of one object 1,000 keys wait: notices of further ones are dropped, and decided as ever", async () => {
  const { object, counts } = objectWith({ ...BUCKET, notify: [1], objects: 1 }, () => false);
  for (let key = 0; key < 1_200; key += 1)
    expect(object.limit(`key ${key}`, 10).rules[0]?.success).toBe(true);
  await settle();
  expect(counts()).toMatchObject({ "notices p dropped": 200 });
});

test("another list of thresholds counts from the next call on", async () => {
  const { object, attempts } = objectWith({ ...BUCKET, window: "30d", notify: [0.5] });
  object.limit("key", 7);
  await settle();
  await object.restart(known({ p: { ...BUCKET, window: "30d", notify: [0.5, 0.6, 0.8] } }));
  object.limit("key", 1);
  await settle();
  expect(attempts.map(({ notice }) => notice.threshold)).toEqual([0.5, 0.6, 0.8]);
  await object.restart(known({ p: { ...BUCKET, window: "30d" } }));
  object.limit("key", 2);
  await settle();
  expect(attempts).toHaveLength(3);
});

test("the first denial is told when less than a tenth is left, and not when a large cost does not fit", async () => {
  const { object, attempts } = objectWith({ ...BUCKET, limit: 100, window: "30d", notify: [1] });
  object.limit("key", 50);
  object.limit("key", 60);
  await settle();
  expect(attempts).toEqual([]);
  object.limit("key", 45);
  object.limit("key", 10);
  object.limit("key", 10);
  await settle();
  expect(attempts.map(({ notice: { threshold, used } }) => [threshold, used])).toEqual([[1, 95]]);
});

test("units that an isolate holds are not used before it says so", async () => {
  const { object, attempts } = objectWith({ ...BUCKET, limit: 100_000, window: "10s", notify: [0.5, 1] });
  const report = async (turn: number, used: number, kept: number, wanted: number) => {
    const rules = { p: { used, kept, wanted } };
    const call = { holder: "isolate", turn, ttlMs: 5_000, cost: 0, rules };
    const answer = object.ask("key", (each, keyState, nowMs) => each.reserve(keyState, call as never, nowMs));
    await settle();
    return (answer as Decided).reserved?.units["p"] ?? 0;
  };
  // An isolate gets only some of a burst at once.
  let [used, held, turn] = [0, 0, 0];
  while (used + held < 50_000) {
    turn += 1;
    held += await report(turn, used, held, 100_000);
    if (used + held >= 50_000) break;
    used += held;
    held = 0;
  }
  expect(attempts).toEqual([]);
  await report(turn + 1, used + held, 0, 0);
  expect(attempts.map(({ notice }) => notice.threshold)).toEqual([0.5]);
  expect(attempts[0]?.notice.used).toBe(used + held);
});

test("of slots that an isolate has, those are used that it has leased", async () => {
  const table = { algorithm: "concurrency", limit: 20, ttl: "60s", notify: [0.5], order: "relaxed" };
  const { object, attempts } = objectWith(table);
  let memory: string | undefined;
  const say = async (turn: number, leased: number) => {
    const call = { holder: "mark.1", turn, heard: turn - 1, memory, kept: turn === 1 ? 0 : 15, leased };
    const rest = {
      wanted: 15,
      ttlMs: 5_000,
      handed: [],
      granted: leased,
      released: 0,
      policy: "p",
      key: "key",
    };
    const { slots } = object.parts.local.slots.take(
      ...([
        object.parts.ask("p", "key", (_, keyState) => keyState),
        { ...call, ...rest },
        object.nowMs,
      ] as never as [never, never, number]),
    );
    memory = slots.memory;
    await settle();
    await object.pass(400);
  };
  await say(1, 0);
  await say(2, 5);
  expect(attempts).toEqual([]);
  await say(3, 12);
  await say(4, 12);
  expect(attempts.map(({ notice }) => [notice.threshold, notice.used])).toEqual([[0.5, 12]]);
  await say(5, 3);
  await say(6, 11);
  expect(attempts.map(({ notice }) => notice.used)).toEqual([12, 11]);
});

test("after a crash of a memory that was ahead no notice is lost", async () => {
  for (let at = 0; at < 40; at += 1) {
    const { object, attempts } = objectWith({ ...BUCKET, limit: 10_000, window: "100s", notify: [0.8] });
    object.limit("key", 8_000);
    await settle();
    // It falls to a tenth below the threshold, and rises again: somewhere on that way the machine dies.
    await object.pass(10_000);
    for (let step = 0; step < 40; step += 1) {
      if (step === at)
        await object.restart(known({ p: { ...BUCKET, limit: 10_000, window: "100s", notify: [0.8] } }));
      object.limit("key", 50);
    }
    await settle();
    expect(attempts.length).toBeGreaterThanOrEqual(2);
    expect(attempts.length).toBeLessThanOrEqual(3);
  }
});
