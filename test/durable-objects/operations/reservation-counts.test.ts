/** What an object says of its reservations: the counted units, and the holders of a key. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Answer, Decided, Peeked } from "../../../core/protocol/answers.ts";
import type { Reserving } from "../../../core/protocol/calls.ts";
import type { ObjectStub } from "../../../core/protocol/object-methods.ts";
import { MemoryNamespace } from "../../../durable-objects/memory-namespace.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";

const RULE = { algorithm: "token-bucket", limit: 100_000, window: "30d" };
const FAST = { algorithm: "token-bucket", limit: 1_000, window: "1s" };
const POLICIES = known({
  one: RULE,
  two: { rules: { calls: RULE, tokens: { ...RULE, unit: "tokens" } } },
  off: { ...RULE, reservation: "off" },
  fast: { rules: { calls: FAST, tokens: { ...FAST, unit: "tokens" } } },
});
const TTL_MS = 1_000;

function start() {
  const object = new AlarmedObject(POLICIES, 1_000);
  const reserve = (
    policy: string,
    holder: string,
    turn: number,
    rules: Record<string, Reserving>,
    more: { readonly takesBucket?: true } = {},
  ) =>
    object.ask(
      policy,
      (each, keyState, nowMs) =>
        each.reserve(
          keyState,
          { cost: 0, holder, turn, ttlMs: TTL_MS, isShort: false, rules, ...more },
          nowMs,
        ),
      policy,
    ) as Answer;
  const holders = (policy: string) =>
    (object.ask(policy, (each, keyState, nowMs) => each.peek(keyState, nowMs), policy) as Peeked).holders;
  const counted = () =>
    Object.entries(object.tally.take()?.counts ?? {}).filter(([series]) => /^(units|buckets)/.test(series));
  return { object, reserve, holders, counted };
}

const wanting = (wanted: number, kept = 0, used = 0): Reserving => ({ used, kept, wanted });

test("units that are handed out are counted by policy, those of all rules, and kept ones only once", () => {
  const { reserve, counted } = start();
  reserve("one", "a", 1, { one: wanting(20) });
  expect(counted()).toEqual([["units_reserved one", 20]]);
  reserve("one", "a", 2, { one: wanting(25, 15, 5) });
  reserve("two", "a", 1, { calls: wanting(3), tokens: wanting(30) });
  expect(counted()).toEqual([
    ["units_reserved one", 10],
    ["units_reserved two", 33],
  ]);
});

test("an answer with a bucket is counted once for all rules, beside the units that are in it", () => {
  const { reserve, counted } = start();
  const demand = { demand: 50 };
  const rules = { calls: { ...wanting(20), ...demand }, tokens: { ...wanting(20), ...demand } };
  const { reserved } = reserve("fast", "a", 1, rules, { takesBucket: true }) as Decided;
  expect(Object.keys(reserved?.buckets ?? {})).toEqual(["calls", "tokens"]);
  expect(counted()).toContainEqual(["buckets_reserved fast", 1]);
});

test("a message that is granted nothing counts nothing", () => {
  const { reserve, counted } = start();
  reserve("off", "a", 1, { off: wanting(20) });
  reserve("one", "a", 2, { one: wanting(20) });
  counted();
  reserve("one", "a", 1, { one: wanting(20) });
  reserve("one", "a", 3, { one: wanting(0, 0, 20) });
  expect(counted()).toEqual([]);
});

test("a peek says how many isolates and clients have units of the key, or want some", () => {
  const { object, reserve, holders } = start();
  expect(holders("one")).toBe(0);
  reserve("one", "a", 1, { one: wanting(20) });
  reserve("one", "b", 1, { one: wanting(20) });
  expect(holders("one")).toBe(2);
  // It has returned its units.
  object.ask(
    "one",
    (each, keyState, nowMs) => each.giveBack(keyState, { key: "one", holder: "a", turn: 2, used: {} }, nowMs),
    "one",
  );
  expect(holders("one")).toBe(1);
  object.nowMs += 60_000;
  expect(holders("one")).toBe(0);
});

test("a holder counts although all units are taken", () => {
  const { object, reserve, holders } = start();
  object.limit("one", 100_000, "one");
  expect(reserve("one", "a", 1, { one: wanting(20) })).toMatchObject({ reserved: { units: { one: 0 } } });
  expect(holders("one")).toBe(1);
});

test("how long a denial is repeated depends on the holders of its own group", async () => {
  const shared = { algorithm: "token-bucket", limit: 600, window: "60s", burst: 4, fair: true } as const;
  const object = new MemoryNamespace(parsePolicies({ shared })).getByName("shared/key") as ObjectStub;
  const rules = { shared: { used: 0, kept: 0, wanted: 1 } };
  const ask = async (group: string, holder: number, cost = 4) => {
    const to = { policy: "shared", key: "key", group, holder: `${group} ${holder}`, ttlMs: 1_000 } as const;
    return JSON.parse(await object.reserve({ ...to, turn: 1, cost, isShort: false, rules })) as Decided;
  };
  // One of each group is not many, however many groups there are.
  for (let group = 0; group < 20; group += 1) {
    const { rules: decided, quietMs } = await ask(`group ${group}`, 0);
    expect(decided[0]?.success).toBe(group === 0);
    expect(quietMs).toBeUndefined();
  }
  const quiet: number[] = [];
  for (let holder = 0; holder < 10; holder += 1) quiet.push((await ask("many", holder)).quietMs ?? 0);
  expect(Math.min(...quiet.slice(8))).toBeGreaterThan(0);
  expect(quiet[0]).toBe(0);
});

test("what an isolate holds for a group is of that group's part, and a further denial is that group's", async () => {
  const shared = { algorithm: "token-bucket", limit: 1_000, window: "100s", fair: true } as const;
  const object = new MemoryNamespace(parsePolicies({ shared })).getByName("shared/key") as ObjectStub;
  const about = { policy: "shared", key: "key" } as const;
  const left = async (group: string) => {
    const answer = JSON.parse(await object.limitCall({ ...about, group, cost: 0 })) as Decided;
    return answer.rules[0]?.share?.remaining ?? 0;
  };
  // Both are active: each has a part of 250.
  for (const group of ["one", "two"]) await object.limitCall({ ...about, group, cost: 1 });
  const [one, two] = [await left("one"), await left("two")];
  const rules = { shared: { used: 0, kept: 0, wanted: 100 } };
  const to = { ...about, holder: "a", ttlMs: 1_000, isShort: false, rules } as const;
  const { reserved } = JSON.parse(await object.reserve({ ...to, turn: 1, group: "one", cost: 0 })) as Decided;
  // A sixteenth of the part.
  expect(reserved?.units).toEqual({ shared: 15 });
  expect(await left("one")).toBe(one - 15);
  expect(await left("two")).toBe(two);
  // All that its share lets pass, also at once.
  for (const cost of [100, 10, 1])
    for (let admitted = true; admitted;) {
      const { rules: decided } = JSON.parse(
        await object.limitCall({ ...about, group: "one", cost }),
      ) as Decided;
      admitted = decided[0]?.success === true;
    }
  const more = { ...to, holder: "b", turn: 1, group: "one", cost: 500 };
  const { next } = JSON.parse(await object.reserve(more)) as Decided;
  expect(next?.[0]).toMatchObject({ success: false, share: { group: "one" } });
});
