/** Several calls in one message to a real object. */
import { env } from "cloudflare:workers";
import { expect, test } from "vitest";
import { type LimiterNamespace, type LimiterStub, sendTogether } from "../../client/transports/send-batch.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import {
  type BatchedCall,
  KNOWN_PROTOCOL,
  MAX_BATCH_LENGTH,
  MAX_BATCHED,
} from "../../core/protocol/messages.ts";
import { objectName } from "../../core/protocol/names.ts";
import { policies } from "../../durable-objects/deployment.ts";
import { freshKey, report } from "../support/limiter.ts";
import { keyBeside, objectOf } from "../support/objects.ts";

const [name, policy] = [...policies.entries()].find(
  ([, each]) => each.objects !== "per-key" && each.lease === undefined,
) as [string, NonNullable<ReturnType<typeof policies.get>>];
const object = () =>
  (env as unknown as { OBJECTS: LimiterNamespace }).OBJECTS.getByName(objectName(policy, "any"));
const limit = (key: string, cost = 1): BatchedCall => ({ limit: { policy: name, key, cost } });
const send = (calls: readonly unknown[]) =>
  sendTogether(
    object(),
    calls.map((call) => ({ call: call as BatchedCall, text: JSON.stringify(call) })),
  );
const remaining = (answer: unknown) => (answer as Decided).rules[0]?.remaining;

test("each call is answered as it would be alone, in the order of the calls", async () => {
  const [a, b] = [freshKey(), freshKey()];
  const answers = (await send([limit(a), limit(b, 2), limit(a), limit(b, 0)])) as readonly unknown[];
  const whole = (remaining(answers[0]) ?? 0) + 1;
  expect(answers.map(remaining)).toEqual([whole - 1, whole - 2, whole - 2, whole - 2]);
});

test("operations on holds, leases and charges are answered as they would be alone, in one message", async () => {
  // An object that does not have the key passes on other calls, and no operation.
  const key = keyBeside(name, "any");
  const of = { policy: name, key };
  const answers = (await send([
    { operation: { op: "hold", ...of, id: "h1", cost: 2, ttlMs: 9_000 } },
    { operation: { op: "hold", ...of, id: "h2", cost: 3, ttlMs: 9_000 } },
    { operation: { op: "settle", ...of, id: "h1", used: 1 } },
    { operation: { op: "cancel", ...of, id: "h2" } },
    { operation: { op: "settle", ...of, id: "h1", used: 9 } },
    { operation: { op: "settle", ...of, id: "never", used: 1 } },
    { limit: { ...of, cost: 2, idempotencyKey: "charge" } },
    { operation: { op: "refund", ...of, units: 2, idempotencyKey: "back", charge: "charge" } },
    { limit: { ...of, cost: 0 } },
  ])) as readonly unknown[];
  const whole = (remaining(answers[0]) ?? 0) + 2;
  const left = [
    whole - 2,
    whole - 5,
    whole - 4,
    whole - 1,
    whole - 4,
    undefined,
    whole - 3,
    whole - 1,
    whole - 1,
  ];
  // A repeated settle has the answer of the first.
  expect(answers.map((answer) => ("rules" in (answer as object) ? remaining(answer) : undefined))).toEqual(
    left,
  );
  expect(answers[5]).toEqual({ missing: true });
});

test("a lease is granted, renewed and released in one message, and one that may wait is made alone", async () => {
  const key = freshKey();
  const leases = objectOf("export", key);
  const of = { policy: "export", key };
  const lease = (id: string, more = {}) => ({
    operation: { op: "lease", ...of, id, cost: 1, ttlMs: 60_000, waitMs: 0, ...more },
  });
  const ended = { operation: { op: "release", ...of, id: "a" } };
  const messages = [
    lease("a"),
    // Its message came again after the object had lost its memory: it is the same lease.
    lease("a"),
    lease("b"),
    lease("c"),
    { operation: { op: "renew", ...of, id: "b", ttlMs: 90_000 } },
    ended,
    ended,
    lease("d"),
    lease("e", { waitMs: 5 }),
  ];
  const answers = await sendTogether(
    leases.stub as unknown as LimiterStub,
    messages.map((call) => ({ call: call as BatchedCall, text: JSON.stringify(call) })),
  );
  const granted = (id: string) => ({ rules: [{ success: true }], lease: { id } });
  expect(answers).toMatchObject([
    granted("a"),
    granted("a"),
    granted("b"),
    { rules: [{ success: false }] },
    { id: "b", expiresAfterMs: 90_000 },
    { released: true },
    { missing: true },
    granted("d"),
    { full: { bound: "batch-waits" } },
  ]);
  expect((await report("export", key)).body).toMatchObject({ leases: 2, outstanding: 2 });
});

test("calls that cannot be read, are unknown, or of an unknown policy fail alone", async () => {
  const key = freshKey();
  const unknown = { limit: { policy: "nobody knows it", key, cost: 1 } };
  const answers = await send([
    limit(key),
    null,
    unknown,
    { newer: 1 },
    { limit: { ...limit(key).limit, waitMs: 5 } },
    limit(key),
  ]);
  expect(answers).toMatchObject([
    { rules: [{ success: true }] },
    { failed: expect.any(String) as string },
    { failed: expect.stringContaining("nobody knows it") as string },
    { unsupported: {} },
    { full: { bound: "batch-waits" } },
    { rules: [{ success: true }] },
  ]);
});

test("a batch that is too long, too large or newer is refused by value, and takes nothing", async () => {
  const key = freshKey();
  const many = Array.from({ length: MAX_BATCHED + 1 }, () => limit(key));
  expect(await send(many)).toMatchObject({ full: { bound: "batch-calls" } });
  expect(await send([limit(key), limit("k".repeat(MAX_BATCH_LENGTH))])).toMatchObject({
    full: { bound: "batch-length" },
  });
  const newer = { protocol: KNOWN_PROTOCOL + 1, calls: JSON.stringify([limit(key)]) };
  expect(JSON.parse(await object().reserve(newer))).toMatchObject({ unsupported: {} });
  const [look, taken] = (await send([limit(key, 0), limit(key)])) as readonly unknown[];
  expect(remaining(taken)).toBe((remaining(look) ?? 0) - 1);
});

test("units that a holder gives back are there for the call that comes with them", async () => {
  const key = freshKey();
  const reserve = {
    reserve: { policy: name, key, cost: 0, holder: key, turn: 1, ttlMs: 1_000, isShort: true, rules: {} },
  };
  const returned = [{ key, holder: key, turn: 2, used: {} }];
  const answers = await send([
    reserve,
    { giveBack: { policy: name, returned }, ...limit(key) },
    { giveBack: { policy: name, returned } },
  ]);
  expect(answers).toMatchObject([{ rules: [{ success: true }] }, { rules: [{ success: true }] }, null]);
});
