/** What an object sheds: by the leases of a key, for a bounded number of keys, and again after it has lost its memory. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { SheddingLevel } from "../../../core/protocol/answers.ts";
import type { KeyState } from "../../../durable-objects/keys/key-state.ts";
import {
  MAX_SHEDDERS_OF_CALLER,
  MAX_SHEDDERS,
  Shedders,
} from "../../../durable-objects/operations/shedders.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";

const shed = { good: 0.5, bad: 0.6, after: "1s", over: "80s" };
const policies = parsePolicies({
  fleet: { algorithm: "unlimited", shed },
  slots: { algorithm: "concurrency", limit: 4, ttl: "10m", shed },
  plain: { algorithm: "unlimited" },
});

function start() {
  const clock = { ms: 1_000_000 };
  const object = new SimulatedObject(new Database(), policies, () => clock.ms);
  const open = (policy: string, key = "key"): KeyState => object.open({ name: policy }, key);
  const reports = (utilization: number) => ({ reports: { sum: utilization, count: 1 } });
  return { clock, object, open, reports, shedders: new Shedders() };
}

test("the part of a key's leases that is taken is its utilization", () => {
  const { clock, object, open, reports, shedders } = start();
  const acquire = (id: string) =>
    object.ask("slots", "key", (operations, keyState, nowMs) =>
      operations.acquire(keyState, { id, cost: 1, ttlMs: 600_000, waitMs: 0 }, nowMs),
    );
  const utilization = () => shedders.report(open("slots"), clock.ms)?.utilization;
  for (const [index, id] of ["a", "b", "c"].entries()) {
    void acquire(id);
    shedders.note(open("slots"), clock.ms);
    clock.ms += 60_000;
    // What callers report does not count here.
    shedders.tell(open("slots"), reports(0), clock.ms);
    expect(utilization()).toBeCloseTo((index + 1) / 4, 3);
  }
  for (let second = 0; second < 9; second += 1) shedders.tell(open("slots"), reports(0), (clock.ms += 1_000));
  const { low, ...others } = shedders.report(open("slots"), clock.ms)?.chances ?? {};
  expect(low).toBeGreaterThan(0.7);
  expect(low).toBeLessThan((60 + 9 - 1) / 80);
  expect(others).toEqual({ critical: 0, high: 0, normal: 0 });
});

const KNOWN = { level: 1.5, troubleMs: 30_000, utilization: 0.55, reportedAgoMs: 0, sinceMs: 1, agoMs: 900 };

test("an object that knows nothing goes on from the latest of what clients were told", () => {
  const { clock, open, reports, shedders } = start();
  const tell = (key: string, known?: Partial<typeof KNOWN>) =>
    shedders.tell(
      open("fleet", key),
      { ...reports(0.55), ...(known && { known: { ...KNOWN, ...known } }) },
      clock.ms,
    );
  expect(tell("new", {}).level).toBe(1.5);
  // One that knows nothing comes first, then one that knows little, then the one that knows most, then an old one.
  const { sinceMs } = tell("many");
  expect(tell("many", { level: 0.2, agoMs: 55_000 }).level).toBeLessThan(0.2);
  expect(tell("many", {}).level).toBe(1.5);
  expect(tell("many", { level: 0.7, agoMs: 2_000 }).level).toBe(1.5);
  // What this object told itself it need not be told.
  expect(tell("many", { level: 0, agoMs: 1, sinceMs }).level).toBe(1.5);
  expect(tell("old", { agoMs: 61_000 }).level).toBe(0);
  shedders.reset(open("fleet", "reset"), clock.ms);
  expect(tell("reset", {}).level).toBe(0);
  expect(shedders.tell(open("plain", "any"), { ...reports(1), known: KNOWN }, clock.ms).level).toBe(0);
  expect(shedders.report(open("plain", "any"), clock.ms)).toBeUndefined();
  expect(tell("late").level).toBe(0);
  clock.ms += 6_000;
  expect(tell("late", {}).level).toBe(0);
});

test("who calls once in a while finds that what was shed comes back, though the object forgets in between", () => {
  const { clock, open } = start();
  let told: SheddingLevel = { ...KNOWN, utilization: null };
  for (let call = 0; call < 20; call += 1) {
    clock.ms += 15_000;
    const known = Object.assign(told, { agoMs: 15_000 });
    const { level } = told;
    told = new Shedders().tell(open("fleet"), { reports: { sum: 0, count: 1 }, known }, clock.ms);
    expect(told.level).toBeCloseTo(Math.max(0, level - 15 / 80), 6);
  }
  expect(told.level).toBe(0);
});

test("who reports once in a while is heard, though the object forgets in between", () => {
  const { clock, open, reports } = start();
  let told: SheddingLevel = { ...KNOWN, level: 0, troubleMs: 0, utilization: null };
  for (let call = 0; call < 10; call += 1) {
    clock.ms += 12_000;
    const known = Object.assign(told, { agoMs: 12_000 });
    told = new Shedders().tell(open("fleet"), { ...reports(1), known }, clock.ms);
  }
  expect(told.level).toBeGreaterThan(1);
});

test("so many keys have a shedder; further ones take the place of those that shed nothing, and of no others", () => {
  const { clock, open, reports, shedders } = start();
  const tell = (key: string, known?: typeof KNOWN) =>
    shedders.tell(open("fleet", key), { ...reports(0.55), ...(known && { known }) }, clock.ms).level;
  for (let key = 0; key < MAX_SHEDDERS; key += 1) tell(`healthy-${key}`);
  for (let key = 0; key < MAX_SHEDDERS; key += 1) expect(tell(`key-${key}`, KNOWN)).toBe(1.5);
  expect(tell("one-more", KNOWN)).toBe(0);
  expect(tell("key-0")).toBe(1.5);
  clock.ms += 15_000 + 200_000;
  expect(tell("key-0")).toBe(0);
  expect(tell("one-more", KNOWN)).toBe(1.5);
});

test("one caller has half of the places, and others shed beside it", () => {
  const { clock, open, shedders } = start();
  const busy = { sum: 0.9, count: 1 };
  const tell = (caller: string, key: string) => {
    for (let second = 0; second < 3; second += 1)
      shedders.tell(open("fleet", key), { reports: busy, caller }, clock.ms + 1_000 * second);
    return shedders.tell(open("fleet", key), { reports: busy, caller }, clock.ms + 20_000).level;
  };
  let shedding = 0;
  for (let index = 0; index < MAX_SHEDDERS + 100; index += 1)
    if (tell("greedy", `greedy ${index}`) > 0) shedding += 1;
  expect(shedding).toBe(MAX_SHEDDERS_OF_CALLER);
  expect(tell("other", "another")).toBeGreaterThan(0);
});
