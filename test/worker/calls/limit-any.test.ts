/** Random histories of `limitAny` on real objects in SQLite, and faults that these must find. */
import { expect, test } from "vitest";
import { algorithms } from "../../../core/policies/algorithms.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";
import { ANY_POLICIES, type Met, type Plant, runAnyHistory } from "../../support/any-history.ts";
import { depth } from "../../support/depth.ts";
import { seedOr } from "../../support/random.ts";

const SEED = seedOr(1);
const RUNS = depth(12, 500);

test("every algorithm that counts a rate is in the histories", () => {
  const rates = [...algorithms.values()].filter(({ leasing }) => leasing === undefined);
  expect(Object.keys(ANY_POLICIES).toSorted()).toEqual(rates.map(({ name }) => name).toSorted());
});

test("a call charges one check or none, denied checks do not change, and its repetitions find the charged one", async () => {
  const all: Met = { charged: 0, second: 0, retried: 0, lost: 0, denied: 0 };
  for (let seed = SEED; seed < SEED + RUNS; seed += 1) {
    const met = await runAnyHistory(seed).catch((error: unknown) => {
      throw new Error(`SEED=${seed}`, { cause: error });
    });
    for (const name of Object.keys(all) as (keyof Met)[]) all[name] += met[name];
  }
  // What was met, in a history on average.
  expect(all.charged).toBeGreaterThan(RUNS);
  expect(all.second).toBeGreaterThan(RUNS / 2);
  expect(all.retried).toBeGreaterThan(RUNS / 2);
  expect(all.lost).toBeGreaterThan(RUNS);
  expect(all.denied).toBeGreaterThan(RUNS);
});

test.each([
  ["an override blocks it", { isBlocked: true }, {}],
  ["it was shed", {}, { shed: { restoredInMs: 5 } }],
] as const)("a denial is stored though no rule was asked: %s", (_, blocked, shed) => {
  const object = new AlarmedObject(known({ p: { algorithm: "token-bucket", limit: 2, window: "1h" } }), 0);
  const attempt = (round: number, how: object = {}, beside: object = {}) =>
    object.ask("k", (each, keyState, nowMs) => {
      const of = { request: "a call", round, ...how };
      return each.limit(keyState, { cost: 1, idempotencyKey: "once", attempt: of, ...beside }, nowMs);
    });
  const left = () => object.limit("k", 0).rules[0]?.remaining;
  void attempt(1, blocked, shed);
  expect(attempt(1)).toMatchObject({ rules: [{ success: false }], deniedIn: { round: 1, isEarlier: true } });
  expect(left()).toBe(2);
  const admitted = attempt(2);
  expect(admitted).toMatchObject({ rules: [{ success: true, remaining: 1 }] });
  for (const round of [1, 2, 3]) expect(attempt(round, blocked, shed)).toEqual(admitted);
  expect(left()).toBe(1);
});

test.each([
  [" of groups (0123456789abcdef)", "", true],
  ["", " of groups (0123456789abcdef)", true],
  [" of groups (0123456789abcdef)", " of groups (0123456789abcdef)", true],
  [" of groups (0123456789abcdef)", " of groups (fedcba9876543210)", false],
])("of groups an earlier build stored nothing, and sends nothing: %j after %j", (sent, stored, isSame) => {
  const object = new AlarmedObject(known({ p: { algorithm: "token-bucket", limit: 2, window: "1h" } }), 0);
  const attempt = (groups: string) =>
    object.ask("k", (each, keyState, nowMs) => {
      const of = { request: `call on the first of 2 checks (00112233445566aa)${groups}`, round: 1 };
      return each.limit(keyState, { cost: 1, idempotencyKey: "once", attempt: of }, nowMs);
    });
  const first = attempt(stored);
  const conflict = { conflict: { request: "call on the first of 2 checks" } };
  expect(attempt(sent)).toEqual(isSame ? first : conflict);
});

const isDenied = (text: string) => text.includes('"success":false');

let later = 100;
const PLANTED: Readonly<Record<string, [plant: Plant, law: RegExp]>> = {
  "two checks are charged": [
    async (call, send) => {
      const text = await send(call);
      return call.cost === 2 ? text.replaceAll('"success":true', '"success":false') : text;
    },
    /a denied check has changed|two checks were charged/,
  ],
  "a denied check changes": [
    async (call, send) => {
      const text = await send(call);
      if (isDenied(text)) await send({ ...call, force: true, cost: 1, idempotencyKey: undefined });
      return text;
    },
    /a denied check has changed/,
  ],
  "a denial is forgotten: a retry charges another check": [
    async ({ attempt, ...call }, send) => {
      later += 1;
      return await send({ ...call, ...(attempt && { attempt: { ...attempt, round: later } }) });
    },
    /two checks were charged/,
  ],
};

test.each(Object.entries(PLANTED))("planted and found: %s", async (_, [plant, law]) => {
  const broken: string[] = [];
  for (let seed = SEED; seed < SEED + 200 && broken.length === 0; seed += 1)
    await runAnyHistory(seed, plant).catch((error: unknown) => broken.push(String(error)));
  expect(broken.join()).toMatch(law);
});
