import fc from "fast-check";
import { expect, test } from "vitest";
import { CallGate, newCaller, ObjectStartLimit } from "../../client/call-gate.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";

const DEADLINE_MS = 500;
const caller = newCaller();
const FULL = { full: { bound: "object-starts", most: 2 } };

function twoAtOnce(inMemory = 100): ObjectStartLimit {
  return new ObjectStartLimit({ startsAtOnce: 2, inMemory });
}

function leaving(entered: unknown): void {
  if (typeof entered === "function") entered();
}

test("a call that would start one object too many is refused, and nothing is remembered of it", () => {
  const starts = twoAtOnce();
  for (const object of ["a", "b"])
    expect(starts.enter(object, DEADLINE_MS, 0, caller)).toBeTypeOf("function");
  for (let call = 0; call < 3; call += 1) expect(starts.enter("c", DEADLINE_MS, 0, caller)).toEqual(FULL);
});

test("calls to an object that starts, or is there, are let through, however many start", () => {
  const starts = twoAtOnce();
  const first = starts.enter("a", DEADLINE_MS, 0, caller);
  starts.enter("b", DEADLINE_MS, 0, caller);
  for (let call = 0; call < 3_000; call += 1)
    expect(starts.enter("a", DEADLINE_MS, 0, caller)).toBeTypeOf("function");
  leaving(first);
  expect(starts.enter("a", DEADLINE_MS, 9_000, caller)).toBeTypeOf("function");
});

test("once so many start at once as may, the next start half a second later, if those have been answered", () => {
  const starts = twoAtOnce();
  const entered = ["a", "b"].map((object) => starts.enter(object, DEADLINE_MS, 0, caller));
  entered.map(leaving);
  expect(starts.enter("c", DEADLINE_MS, 499, caller)).toEqual(FULL);
  expect(starts.enter("c", DEADLINE_MS, 500, caller)).toBeTypeOf("function");
});

test("calls to objects that are there are no starts", () => {
  const starts = twoAtOnce();
  for (const object of ["a", "b"]) leaving(starts.enter(object, DEADLINE_MS, 0, caller));
  for (const object of ["a", "b"]) starts.enter(object, DEADLINE_MS, 1_000, caller);
  expect(starts.enter("c", DEADLINE_MS, 1_000, caller)).toBeTypeOf("function");
});

test("one call after the other is never refused, until as many are in memory as may; an eighth is for what ends", () => {
  const starts = new ObjectStartLimit({ startsAtOnce: 2, inMemory: 10_000 });
  const enter = (key: number, lane: "ask" | "end") => {
    const entered = starts.enter(String(key), DEADLINE_MS, 0, caller, lane);
    leaving(entered);
    return entered;
  };
  for (let key = 0; key < 8_750; key += 1) expect(enter(key, "ask")).toBeTypeOf("function");
  const most = { full: { bound: "objects-in-memory", most: 8_750 } };
  expect(enter(8_750, "ask")).toEqual(most);
  for (let key = 8_750; key < 10_000; key += 1) expect(enter(key, "end")).toBeTypeOf("function");
  expect(enter(10_000, "end")).toEqual({ full: { bound: "objects-in-memory", most: 10_000 } });
});

test("who has started nothing lately starts, and has room, whatever another does", () => {
  const starts = new ObjectStartLimit({ startsAtOnce: 16, inMemory: 80 });
  const [flood, neighbour] = [newCaller(), newCaller()];
  const entered: unknown[] = [];
  for (let key = 0; key < 1_000; key += 1) {
    const nowMs = 100 * Math.floor(key / 20);
    entered.push(starts.enter(`flood ${key}`, DEADLINE_MS, nowMs, flood));
    if (key % 20 === 10) entered.splice(0).forEach(leaving);
    // At half of the instants of the flood.
    if (key % 200 === 15)
      expect(starts.enter(`own ${key / 200}`, DEADLINE_MS, nowMs, neighbour)).toBeTypeOf("function");
  }
});

test("a start whose request has gone does not count for ever, and neither does an object that was dropped", () => {
  const starts = twoAtOnce();
  for (const object of ["a", "b"]) starts.enter(object, DEADLINE_MS, 0, caller);
  expect(starts.enter("c", DEADLINE_MS, DEADLINE_MS + 999, caller)).toEqual(FULL);
  expect(starts.enter("c", DEADLINE_MS, DEADLINE_MS + 1_000, caller)).toBeTypeOf("function");
  const few = twoAtOnce(1);
  leaving(few.enter("a", DEADLINE_MS, 0, caller));
  expect(few.enter("b", DEADLINE_MS, 11_999, caller)).toEqual({
    full: { bound: "objects-in-memory", most: 1 },
  });
  expect(few.enter("a", DEADLINE_MS, 11_999, caller)).toBeTypeOf("function");
  expect(few.enter("b", DEADLINE_MS, 23_999, caller)).toBeTypeOf("function");
});

test("never do more objects start, or are in memory, than may, in any order of calls, with a clock that is set", () => {
  const call = fc.record({
    object: fc.nat(12),
    byMs: fc.integer({ min: -300, max: 3_000 }),
    ends: fc.nat(3),
  });
  fc.assert(
    fc.property(fc.array(call, { maxLength: 60 }), (calls) => {
      const starts = new ObjectStartLimit({ startsAtOnce: 2, inMemory: 5 });
      const under = new Map<() => void, number>();
      const known = new Map<number, number>();
      let nowMs = 0;
      for (const { object, byMs, ends } of calls) {
        nowMs += byMs;
        for (const [leave] of [...under].slice(0, ends)) {
          leave();
          under.delete(leave);
        }
        const before = known.has(object);
        const entered = starts.enter(String(object), DEADLINE_MS, nowMs, caller);
        if (typeof entered !== "function") continue;
        if (!before || nowMs - (known.get(object) ?? 0) >= 12_000) under.set(entered, nowMs);
        known.set(object, nowMs);
        const alive = [...under.values()].filter((at) => nowMs - at < DEADLINE_MS + 1_000 && at <= nowMs);
        expect(alive.length).toBeLessThanOrEqual(2);
      }
    }),
  );
});

test("all callers count, and so do calls that end something, which have a lane of their own", () => {
  const policies = parsePolicies({ api: { algorithm: "token-bucket", limit: 1, window: "1s" } });
  const api = policies.get("api") as Policy;
  const starts = twoAtOnce();
  const bounds = { maxCallsAtOnce: 100, maxNewKeysPerSecond: 100 };
  const gates = [new CallGate(bounds, starts), new CallGate(bounds, starts)] as const;
  for (const [index, gate] of gates.entries())
    expect(gate.enter(api, `key ${index}`, 0, "ask")).toBeTypeOf("function");
  for (const gate of gates) {
    expect(gate.enter(api, "another", 0, "ask")).toEqual(FULL);
    expect(gate.enter(api, "another", 0, "wait")).toEqual(FULL);
    expect(gate.enter(api, "another", 0, "return")).toEqual(FULL);
  }
  expect(gates[0].enter(api, "one more", 0, "end")).toBeTypeOf("function");
  expect(gates[1].enter(api, "two more", 0, "end")).toBeTypeOf("function");
  for (const gate of gates) expect(gate.enter(api, "three more", 0, "end")).toEqual(FULL);
});
