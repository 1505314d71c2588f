/** In which answers an object says its epoch, and what begins another one. */
import { expect, test, vi } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import type { LimitCall } from "../../../core/protocol/calls.ts";
import { MOVE_PROTOCOL, type ObjectStub } from "../../../core/protocol/object-methods.ts";
import { MemoryNamespace } from "../../../durable-objects/memory-namespace.ts";
import type { KeyMoves } from "../../../durable-objects/moves/key-moves.ts";
import { Epochs } from "../../../durable-objects/operations/limits.ts";
import { OwnerRouting } from "../../../durable-objects/wire-methods.ts";

const RARE = { algorithm: "token-bucket", limit: 2, window: "600s", objects: 4 };
const policies = parsePolicies({
  rare: RARE,
  "per-key": { ...RARE, objects: "per-key" },
  counted: { ...RARE, algorithm: "sliding-log", countDenied: true },
});

function start(policy = "rare") {
  const object = new MemoryNamespace(policies).getByName(`${policy}/shared/0`) as ObjectStub;
  const epochOf = async (call: Partial<LimitCall> = {}) => {
    const answer = await object.limitCall({ policy, key: "key", cost: 1, ...call });
    return (JSON.parse(answer) as Decided).epoch;
  };
  return { object, epochOf };
}

test("admissions and denials of all keys are in one epoch, and another start begins another", async () => {
  const [one, other] = [start(), start()];
  const first = await one.epochOf();
  expect(first).toMatch(/^[\w-]{22}$/);
  for (const key of ["key", "key", "other"]) expect(await one.epochOf({ key })).toBe(first);
  const rules = { rare: { used: 0, kept: 0, wanted: 1 } };
  const reserve = {
    policy: "rare",
    key: "third",
    cost: 1,
    holder: "a",
    turn: 1,
    ttlMs: 1_000,
    isShort: false,
  };
  expect(JSON.parse(await one.object.reserve({ ...reserve, rules }))).toMatchObject({ epoch: first });
  expect(await other.epochOf()).not.toBe(first);
});

test.each<[string, (object: ObjectStub) => Promise<unknown>]>([
  ["a refund", (object) => object.refund("rare", "other", 1, "once")],
  ["a reset", (object) => object.reset("rare", "other")],
  ["setting what is used", (object) => object.setUsed({ policy: "rare", key: "other", used: 1 })],
  ["a debit", (object) => object.limitCall({ policy: "rare", key: "other", cost: 1, force: true })],
])("%s of any key begins another epoch", async (_, lift) => {
  const { object, epochOf } = start();
  const before = await epochOf();
  await lift(object);
  const after = await epochOf();
  expect(after).toBeDefined();
  expect(after).not.toBe(before);
});

test("another version of a policy begins another epoch, and who asks with an earlier one is told none", async () => {
  const { epochOf } = start();
  const ofFile = await epochOf();
  const [second, third] = [{ version: 2 }, { version: 3 }];
  const ofSecond = await epochOf({ key: "a", inForce: second });
  expect(ofSecond).not.toBe(ofFile);
  expect(await epochOf({ key: "b", inForce: second })).toBe(ofSecond);
  expect(await epochOf({ key: "b" })).toBeUndefined();
  expect(await epochOf({ key: "c", inForce: third })).not.toBe(ofSecond);
  expect(await epochOf({ key: "c", inForce: second })).toBeUndefined();
});

test("while callers send other rules there is no epoch: an object's own may admit more when they have gone", async () => {
  const { epochOf } = start();
  const other = parsePolicies({ rare: { ...RARE, limit: 1 } }).get("rare")?.terms;
  expect(await epochOf({ terms: policies.get("rare")?.terms })).toBeDefined();
  expect(await epochOf({ terms: other })).toBeUndefined();
  expect(await epochOf()).toBeUndefined();
});

test("a key that leaves begins another epoch: what lifts its denials is told to another object", async () => {
  const epochs = new Epochs();
  const lift = vi.spyOn(epochs, "lift");
  const departures = { handOver: () => ({ nowMs: 0, layouts: [4], keys: [] }), taken: () => undefined };
  const moves = { departures, arrivals: { isUnderWay: () => false } } as unknown as KeyMoves;
  const elsewhere = { moves, places: {} as never, epochs };
  const routing = new OwnerRouting(() => "here", { time: { nowMs: () => 0 }, elsewhere });
  const handOver = { policy: "rare", layout: 8, keys: [] };
  await routing.call("reserve", [{ protocol: MOVE_PROTOCOL, handOver }]);
  expect(lift).toHaveBeenCalledTimes(1);
  await routing.call("reserve", [{ protocol: MOVE_PROTOCOL, taken: { policy: "rare", keys: [] } }]);
  expect(lift).toHaveBeenCalledTimes(1);
});

test.each(["per-key", "counted"])("no epoch where it saves no message: %s", async (policy) => {
  const { epochOf } = start(policy);
  expect(await epochOf()).toBeUndefined();
});
