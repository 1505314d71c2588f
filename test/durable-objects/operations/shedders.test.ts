/** What an object sheds: by the leases of a key, for a bounded number of keys, and again after it has lost its memory. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { KeyState } from "../../../durable-objects/keys/key-state.ts";
import { MOST_SHEDDERS, Shedders } from "../../../durable-objects/operations/shedders.ts";
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
    clock.ms += 60_000;
    // What callers report does not count here.
    shedders.tell(open("slots"), reports(0), clock.ms);
    expect(utilization()).toBeCloseTo((index + 1) / 4, 3);
  }
  for (let second = 0; second < 9; second += 1) shedders.tell(open("slots"), reports(0), (clock.ms += 1_000));
  const { low, ...others } = shedders.report(open("slots"), clock.ms)?.chances ?? {};
  expect(low).toBeCloseTo(0.1, 6);
  expect(others).toEqual({ critical: 0, high: 0, normal: 0 });
});

test("an object that knows nothing goes on from what a client was told, unless that is old or there was a reset", () => {
  const { clock, open, reports, shedders } = start();
  const known = { level: 1.5, troubleMs: 30_000, agoMs: 900 };
  const tell = (state: KeyState, agoMs: number) =>
    shedders.tell(state, { ...reports(0.55), known: { ...known, agoMs } }, clock.ms).level;
  expect(tell(open("fleet", "new"), 900)).toBe(1.5);
  expect(tell(open("fleet", "old"), 61_000)).toBe(0);
  shedders.reset(open("fleet", "reset"), clock.ms);
  expect(tell(open("fleet", "reset"), 900)).toBe(0);
  expect(tell(open("plain", "any"), 900)).toBe(0);
  expect(shedders.report(open("plain", "any"), clock.ms)).toBeUndefined();
});

test("so many keys have a shedder, and those of which nothing is known any more make room", () => {
  const { clock, open, reports, shedders } = start();
  const state = (key: number) => open("fleet", `key-${key}`);
  const known = { level: 1, troubleMs: 0, agoMs: 0 };
  for (let key = 0; key < MOST_SHEDDERS; key += 1)
    expect(shedders.tell(state(key), { ...reports(0.55), known }, clock.ms).level).toBe(1);
  expect(shedders.tell(state(MOST_SHEDDERS), { ...reports(0.55), known }, clock.ms).level).toBe(0);
  clock.ms += 15_000 + 80_000;
  expect(shedders.tell(state(MOST_SHEDDERS), { ...reports(0.55), known }, clock.ms).level).toBe(1);
});
