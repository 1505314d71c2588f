/** Units that nobody returns count as used when their hold ends: notices of that come without a further call. */
import { describe, expect, test } from "vitest";
import type { Peeked } from "../../../core/protocol/answers.ts";
import type { ReserveCall } from "../../../core/protocol/calls.ts";
import type { Addressed } from "../../../durable-objects/notices/delivery.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";

const START_MS = 1_800_000_000_000;
/** What docs/notices.md promises. */
const WITHIN_MS = 10_000;
const TABLE = { algorithm: "sliding-log", limit: 100, window: "30d", notify: [0.5, 0.8] };
const POLICIES = known({ p: TABLE });

function start(policies = POLICIES) {
  const told: (Addressed & { readonly atMs: number })[] = [];
  const object: AlarmedObject = new AlarmedObject(policies, START_MS, () => async (addressed) => {
    told.push({ ...addressed, atMs: object.nowMs });
  });
  const pass = async (ms: number) => {
    await object.pass(ms);
    for (let turn = 0; turn < 40; turn += 1) await Promise.resolve();
    return told.map(({ notice }) => notice.threshold);
  };
  const reserve = (key: string, units: number, holder = "isolate") => {
    const rules = { p: { used: 0, kept: 0, wanted: units } };
    const call = { cost: 0, holder, turn: 1, ttlMs: 2_000, isShort: true, rules } as const;
    return object.ask(key, (each, keyState, nowMs) =>
      each.reserve(keyState, call as unknown as ReserveCall, nowMs),
    );
  };
  return { object, told, pass, reserve };
}

test("a hold that its caller does not settle is noticed when it ends, also after the object was evicted", async () => {
  for (const isEvicted of [false, true]) {
    const { object, told, pass } = start();
    object.hold("key", 60, 40_000);
    expect(await pass(39_000)).toEqual([]);
    if (isEvicted) await object.restart(POLICIES);
    expect(await pass(1_000 + WITHIN_MS)).toEqual([0.5]);
    expect(told[0]?.notice).toMatchObject({ used: 60, limit: 100 });
    expect((told[0]?.atMs ?? 0) - START_MS).toBeLessThanOrEqual(40_000 + WITHIN_MS);
  }
});

test("units of an isolate that has gone are noticed when their life ends, and not before", async () => {
  const { object, told, pass, reserve } = start(known({ p: { ...TABLE, limit: 10_000 } }));
  object.limit("key", 4_990);
  await reserve("key", 500);
  const outstanding = () =>
    object.ask("key", (each, keyState, nowMs) => (each.peek(keyState, nowMs) as Peeked).outstanding);
  expect(outstanding()).toBeGreaterThanOrEqual(10);
  // The isolate may spend them until then, and return what it has not.
  expect(await pass(2_000)).toEqual([]);
  expect(outstanding()).toBeGreaterThanOrEqual(10);
  expect(await pass(WITHIN_MS - 2_000)).toEqual([0.5]);
  expect(told[0]?.notice.used).toBeGreaterThanOrEqual(5_000);
});

test("of several holds each that reaches a threshold is noticed when it ends, and one that is settled is not", async () => {
  const { object, pass } = start();
  const settled = object.hold("key", 45, 30_000);
  object.hold("key", 50, 10_000);
  object.hold("other", 50, 20_000);
  expect(await pass(15_000)).toEqual([0.5]);
  await object.ask("key", (each, keyState, nowMs) =>
    each.settle(keyState, { id: settled.hold?.id ?? "", used: 0 }, nowMs),
  );
  expect(await pass(60_000)).toEqual([0.5, 0.5]);
});

describe("no alarm comes for it", () => {
  test.each([
    ["units that are held reach no threshold", TABLE, 40],
    ["the policy has no thresholds", { ...TABLE, notify: undefined }, 90],
  ])("while %s", async (_, { notify, ...table }, units) => {
    const set = (with_: object) => {
      const { object } = start(known({ p: with_ }));
      object.hold("key", units, 3_600_000);
      return [object.alarmsSet, object.alarmAtMs, object.database.rowsWritten];
    };
    expect(set({ ...table, ...(notify && { notify }) })).toEqual(set(table));
  });
});
