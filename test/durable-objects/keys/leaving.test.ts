/** Clients that leave their calls to their isolates, since they are too many for parts of their own. */
import { afterEach, expect, test } from "vitest";
import { outstandingOf } from "../../../core/accounts/account.ts";
import type { RuleAccount } from "../../../core/accounts/hold.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import type { ReserveCall, Reserving } from "../../../core/protocol/calls.ts";
import { ownKey } from "../../../core/protocol/names.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const LIMIT = 1_000;
const client = (index: number) => ownKey("token", `client-${index}`);
const database = new Database();
afterEach(() => database.clear());

type Said = Partial<ReserveCall> & { readonly rule?: Partial<Reserving> };

function start(
  algorithm: "token-bucket" | "sliding-log" = "token-bucket",
  limit = LIMIT,
  fields: { readonly regions?: "off" } = {},
) {
  const clock = { ms: 1_000_000 };
  const object = new SimulatedObject(
    database,
    parsePolicies({ p: { algorithm, limit, window: "1s", ...fields } }),
    () => clock.ms,
  );
  let turn = 0;
  const reserve = (holder: string, { rule = {}, ...more }: Said = {}) => {
    turn += 1;
    const about = { policy: "p", key: "key", cost: 0, ttlMs: 2_000, isShort: false } as const;
    const rules = { p: { used: 0, kept: 0, wanted: 20, demand: 2, ...rule } };
    const call = { ...about, holder, turn, takesBucket: true, servedBy: `isolate-${holder}`, rules, ...more };
    return (JSON.parse(object.reserve(call)) as Decided).reserved;
  };
  const account = () => (object.open({ name: "p" }, "key").ruleStates[0] as RuleAccount).account;
  return { clock, object, reserve, account };
}

test("clients with parts of a few units have these, and those that are too many leave their calls to isolates", () => {
  const { reserve } = start();
  for (let index = 0; index < 249; index += 1)
    expect(reserve(client(index), { rule: { demand: 1_000 } })?.servedMs).toBeUndefined();
  const said = Array.from({ length: 20 }, (_, index) =>
    reserve(client(500 + index), { rule: { demand: 1_000 } }),
  );
  expect(said.map((reserved) => (reserved?.servedMs ?? 0) > 5_000)).toEqual(
    said.map((_, index) => index > 1),
  );
  expect(said[10]).toMatchObject({ ttlMs: 0, units: { p: 0 } });
});

test("a client that needs more than the others has a part of its own, unless calls need far more than there is", () => {
  const isServed = (demand: number) => {
    const { reserve } = start();
    for (let index = 0; index < 300; index += 1) reserve(client(index), { rule: { demand } });
    const [few, many] = [demand, 10 * demand].map((each, index) =>
      reserve(client(500 + index), { rule: { demand: each } }),
    );
    return [few, many].map((reserved) => reserved?.servedMs !== undefined);
  };
  expect(isServed(6)).toEqual([true, false]);
  expect(isServed(20)).toEqual([true, true]);
});

test("a client's first message says little of its calls: it leaves only if an equal part is too small, and later if its own is", () => {
  const { reserve } = start();
  for (let index = 0; index < 100; index += 1) reserve(client(index), { rule: { demand: 1_000 } });
  const more = { rule: { demand: 1 } };
  expect(reserve(client(500), more)?.servedMs).toBeUndefined();
  expect(reserve(client(500), more)?.servedMs).toBeDefined();
});

test("a few clients with small parts have units, and isolates and older versions hear nothing of it", () => {
  const { reserve } = start();
  reserve(client(0), { rule: { demand: 10_000 } });
  expect(reserve(client(1))?.servedMs).toBeUndefined();
  for (let index = 2; index < 300; index += 1)
    reserve(client(index), { servedBy: undefined, rule: { demand: 10_000 } });
  expect(reserve(client(500))?.servedMs).toBeDefined();
  expect(reserve(client(501), { servedBy: undefined })).not.toHaveProperty("servedMs");
  expect(reserve("isolate", { servedBy: undefined })).not.toHaveProperty("servedMs");
});

test("of a log all clients have units, or all that come leave, whatever they say to need", () => {
  const { reserve } = start("sliding-log", LIMIT, { regions: "off" });
  const isServed = Array.from({ length: 300 }, (_, index) => {
    const demand = index % 2 === 0 ? 8 : 10_000;
    return reserve(client(index), { rule: { demand, wanted: 0 } })?.servedMs !== undefined;
  });
  expect(isServed.indexOf(true)).toBe(251);
  expect(isServed.lastIndexOf(false)).toBe(250);
});

test("of a log clients leave together where others would ask their regions, if they need nearly all of it", () => {
  const leave = (
    needs: number | ((index: number) => number),
    more: object = { mayAskRegion: true, near: "weur" },
  ) => {
    const { clock, reserve } = start("sliding-log");
    return Array.from({ length: 200 }, (_, index) => {
      clock.ms += 2;
      const demand = typeof needs === "number" ? needs : needs(index);
      return reserve(client(index), { rule: { demand, wanted: 0 }, ...more })?.servedMs !== undefined;
    });
  };
  const isServed = leave(7);
  // One object serves 128 holders for less.
  expect([isServed.indexOf(true), isServed.lastIndexOf(false)]).toEqual([128, 127]);
  expect(leave(3)).not.toContain(true);
  // Also those that have no region, or whose isolates ask there already.
  expect(leave(7, {})).toEqual(isServed);
  // One that says to need far more than there is changes nothing.
  expect(leave((index) => (index === 9 ? 1e9 : 3))).not.toContain(true);
});

test("first calls of too many clients at once are decided by their isolates, which ask their regions", () => {
  const { clock, object } = start("token-bucket", 1_000_000);
  const first = (index: number, more: object) => {
    const near = "weur" as const;
    const call = { policy: "p", key: "key", cost: 1, servedBy: `isolate-${index}`, near, ...more };
    return (JSON.parse(object.limitCall(call)) as Decided).reserved;
  };
  const said = Array.from({ length: 600 }, (_, index) => first(index, { mayAskRegion: true }));
  const isServed = said.map((reserved) => (reserved?.servedMs ?? 0) > 5_000 && reserved?.asksRegion === true);
  expect(isServed.indexOf(true)).toBe(499);
  expect(isServed.lastIndexOf(false)).toBe(498);
  // Others that come then, and whose isolates have no region, have parts of their own.
  expect(first(600, {})?.servedMs).toBeUndefined();
  clock.ms += 60_000;
  expect(first(601, { mayAskRegion: true })?.servedMs).toBeUndefined();
});

test("what a client holds when it leaves stays held until it says what it used of it", () => {
  const { object, reserve, account } = start();
  const before = reserve(client(0), { rule: { demand: 100 } });
  const [got, bucket] = [before?.units["p"] ?? 0, before?.buckets?.["p"]];
  expect(got).toBeGreaterThan(4);
  for (let index = 1; index < 400; index += 1) reserve(client(index), { rule: { demand: 1_000 } });
  const kept = bucket?.most ?? 0;
  const rule = { kept, rate: bucket?.rate.units ?? 0, level: got, demand: 1 };
  const others = outstandingOf(account()) - kept;
  const left = reserve(client(0), { rule });
  expect(left).toMatchObject({ ttlMs: 0, units: { p: 0 } });
  expect(left?.servedMs).toBeDefined();
  expect(left?.buckets).toBeUndefined();
  expect(outstandingOf(account())).toBeGreaterThanOrEqual(others + got);
  object.giveBack("p", [{ key: "key", holder: client(0), turn: 10_000, used: { p: 0 }, left: { p: got } }]);
  expect(outstandingOf(account())).toBeLessThanOrEqual(others);
});

test("also a caller's clients leave that are too many to be known", () => {
  const { reserve } = start("token-bucket", 1_000_000);
  for (let index = 0; index < 500; index += 1) expect(reserve(client(index))?.servedMs).toBeUndefined();
  expect(reserve(client(500))?.servedMs).toBeDefined();
});
