import fc from "fast-check";
import { expect, test } from "vitest";
import { CallGate, ObjectStartLimit, through } from "../../client/call-gate.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { depth } from "../support/depth.ts";

const policies = parsePolicies({
  api: { algorithm: "token-bucket", limit: 1, window: "1s" },
  crowd: { algorithm: "token-bucket", limit: 1, window: "1s", objects: 1 },
});
const [API, CROWD] = ["api", "crowd"].map((name) => policies.get(name) as Policy) as [Policy, Policy];

function gateOf(maxCallsAtOnce: number, maxNewKeysPerSecond = 1_000): CallGate {
  return new CallGate({ maxCallsAtOnce, maxNewKeysPerSecond });
}

test("calls at once are counted for each object, and one that has been answered makes room", () => {
  const gate = gateOf(2);
  const first = gate.enter(CROWD, "a", 0, "ask");
  gate.enter(CROWD, "b", 0, "ask");
  expect(gate.enter(CROWD, "c", 0, "ask")).toEqual({ full: { bound: "caller-calls", most: 2 } });
  // Another object has calls of its own.
  expect(gate.enter(API, "a", 0, "ask")).toBeTypeOf("function");
  if (typeof first === "function") first();
  expect(gate.enter(CROWD, "c", 0, "ask")).toBeTypeOf("function");
  expect(gate.enter(CROWD, "d", 0, "ask")).toHaveProperty("full");
});

test("a call about no key counts for its object too, and takes no new key", () => {
  const gate = gateOf(2, 1);
  const leave = gate.enterObject("crowd/shared/0", CROWD, 0);
  gate.enter(CROWD, "a", 0, "ask");
  expect(gate.enterObject("crowd/shared/0", CROWD, 0)).toEqual({ full: { bound: "caller-calls", most: 2 } });
  expect(gate.enter(CROWD, "a", 0, "ask")).toHaveProperty("full");
  if (typeof leave === "function") leave();
  for (let calls = 0; calls < 100; calls += 1) {
    const left = gate.enterObject("crowd/shared/0", CROWD, 0);
    expect(left).toBeTypeOf("function");
    if (typeof left === "function") left();
  }
});

test("a call whose request has ended does not count for ever", () => {
  const gate = gateOf(2);
  for (const key of ["a", "b"]) gate.enter(CROWD, key, 0, "ask");
  expect(gate.enter(CROWD, "c", CROWD.deadlineMs, "ask")).toHaveProperty("full");
  const leave = gate.enter(CROWD, "c", 10 * CROWD.deadlineMs, "ask");
  expect(leave).toBeTypeOf("function");
  expect(gate.enter(CROWD, "d", 10 * CROWD.deadlineMs, "ask")).toBeTypeOf("function");
  expect(gate.enter(CROWD, "e", 10 * CROWD.deadlineMs, "ask")).toHaveProperty("full");
  if (typeof leave === "function") leave();
  expect(gate.enter(CROWD, "e", 10 * CROWD.deadlineMs, "ask")).toBeTypeOf("function");
});

test("what ends something may come twice as often, and calls that wait are not counted", () => {
  const gate = gateOf(2);
  for (let call = 0; call < 100; call += 1) expect(gate.enter(CROWD, "a", 0, "wait")).toBeTypeOf("function");
  for (let call = 0; call < 4; call += 1) expect(gate.enter(CROWD, "a", 0, "end")).toBeTypeOf("function");
  expect(gate.enter(CROWD, "a", 0, "end")).toHaveProperty("full");
});

test("in any ten seconds at most twenty seconds' worth of new keys come, and known keys are free", () => {
  fc.assert(
    fc.property(fc.array(fc.record({ key: fc.nat(400), waitMs: fc.nat(500) })), (calls) => {
      const gate = gateOf(1_000_000, 5);
      let [nowMs, admitted] = [0, 0];
      const known = new Set<string>();
      for (const { key, waitMs } of calls) {
        nowMs += waitMs;
        const name = `key ${key}`;
        const isIn = typeof gate.enter(API, name, nowMs, "ask") === "function";
        if (isIn && !known.has(name)) admitted += 1;
        if (known.has(name)) expect(isIn).toBe(true);
        if (isIn) known.add(name);
      }
      expect(admitted).toBeLessThanOrEqual(50 + (5 * nowMs) / 1_000);
    }),
  );
});

test("a flood of new keys is refused, and a key that was asked for before is not", () => {
  const gate = gateOf(1_000_000, 1);
  expect(gate.enter(API, "mine", 0, "ask")).toBeTypeOf("function");
  for (let key = 0; key < 9; key += 1) expect(gate.enter(API, `new ${key}`, 0, "ask")).toBeTypeOf("function");
  expect(gate.enter(API, "one more", 0, "ask")).toEqual({ full: { bound: "caller-new-keys", most: 1 } });
  expect(gate.enter(API, "mine", 0, "ask")).toBeTypeOf("function");
  expect(gate.enter(API, "one more", 1_000, "ask")).toBeTypeOf("function");
});

test("a call that fails leaves its place", async () => {
  const gate = gateOf(1);
  const failing = () => Promise.reject(new Error("no answer"));
  for (let call = 0; call < 3; call += 1)
    await expect(through(gate.enter(API, "a", 0, "ask"), failing)).rejects.toThrow("no answer");
  expect(await through(gate.enter(API, "a", 0, "ask"), () => Promise.resolve("answered"))).toBe("answered");
});

test("where there is room, a call that ends something is let in and counted as one that does not", () => {
  const makeGate = () =>
    new CallGate(
      { maxCallsAtOnce: 2, maxNewKeysPerSecond: 2 },
      new ObjectStartLimit({ startsAtOnce: 2, inMemory: 4 }),
    );
  const event = fc.record({
    policy: fc.constantFrom(API, CROWD),
    key: fc.constantFrom("a", "b", "c", "d", "e", "f"),
    afterMs: fc.constantFrom(0, 0, 1, 600, 20_000),
    isEnd: fc.boolean(),
    leaves: fc.option(fc.nat(20), { nil: undefined }),
  });
  let withRoom = 0;
  fc.assert(
    fc.property(fc.array(event, { maxLength: 40 }), (events) => {
      // The same calls at both. The second takes every end where there is room for a mere call.
      const [gate, twin] = [makeGate(), makeGate()];
      const inside: ReturnType<CallGate["enter"]>[][] = [];
      let nowMs = 0;
      for (const { policy, key, afterMs, isEnd, leaves } of events) {
        nowMs += afterMs;
        const hasRoom = gate.hasRoom(policy, key, nowMs);
        expect(twin.hasRoom(policy, key, nowMs)).toBe(hasRoom);
        const kind = isEnd ? "end" : "ask";
        const entered = [
          gate.enter(policy, key, nowMs, kind),
          twin.enter(policy, key, nowMs, hasRoom ? "ask" : kind),
        ];
        expect("full" in (entered[1] ?? {})).toBe("full" in (entered[0] ?? {}));
        if (hasRoom && isEnd) withRoom += 1;
        inside.push(entered);
        for (const left of (leaves !== undefined && inside[leaves]) || [])
          if (typeof left === "function") left();
      }
    }),
    { numRuns: depth(100, 500) },
  );
  expect(withRoom).toBeGreaterThan(0);
});
