import { afterEach, describe, expect, test, vi } from "vitest";
import { readAnswer } from "../../../client/transports/send-batch.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { KNOWN_PROTOCOL } from "../../../core/protocol/messages.ts";
import { chargeOf, takenOf } from "../../../durable-objects/keys/idempotency.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { freshKey } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";
import { ruleOf } from "../../support/rules.ts";

const DAY_MS = 86_400_000;
const LATER_MS = Date.now() + DAY_MS;
const MISSING = { missing: true };

function at(nowMs: number): void {
  vi.useFakeTimers({ toFake: ["Date"], now: nowMs });
}

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

describe.each(["slow", "log"])("a charge under the policy %s", (policy) => {
  test("is given back once: under another idempotency key there is nothing left of it", async () => {
    const object = objectOf(policy, freshKey());
    await object.limit(3, "order");
    expect(await object.refundCharge("order", 3, "back")).toMatchObject({ remaining: 5 });
    await object.limit(3);
    expect(await object.refundCharge("order", 3, "again")).toEqual(MISSING);
    expect(await object.remaining()).toBe(2);
  });

  test("gives back at most what it took, whatever is missing", async () => {
    const object = objectOf(policy, freshKey());
    await object.limit(2);
    await object.limit(2, "order");
    expect(await object.refundCharge("order", 100, "back")).toMatchObject({ remaining: 3 });
  });

  test("gives back a part, and then nothing more", async () => {
    const object = objectOf(policy, freshKey());
    await object.limit(4, "order");
    expect(await object.refundCharge("order", 1, "back")).toMatchObject({ remaining: 2 });
    expect(await object.refundCharge("order", 3, "more")).toEqual(MISSING);
    expect(await object.remaining()).toBe(2);
  });

  test("of which a part is given back goes on answering its call, which takes nothing again", async () => {
    const object = objectOf(policy, freshKey());
    const first = await object.limit(3, "order");
    await object.refundCharge("order", 2, "back");
    expect(await object.limit(3, "order")).toEqual(first);
    expect(await object.remaining()).toBe(4);
  });

  test("that is given back whole leaves nothing of its call, which is decided anew", async () => {
    const object = objectOf(policy, freshKey());
    await object.limit(3, "order");
    await object.refundCharge("order", 3, "back");
    await object.crash();
    expect(await object.limit(4, "order")).toMatchObject({ remaining: 1 });
    expect(await object.refundCharge("order", 3, "back")).toMatchObject({ remaining: 5 });
    expect(await object.remaining()).toBe(1);
  });

  test("survives a crash, and so does it that it was given back", async () => {
    const object = objectOf(policy, freshKey());
    await object.limit(1, "other");
    await object.limit(3, "order");
    await object.crash();
    const back = await object.refundCharge("order", 2, "back");
    expect(back).toMatchObject({ remaining: 3 });
    await object.crash();
    expect(await object.refundCharge("order", 2, "back")).toEqual(back);
    expect(await object.refundCharge("order", 2, "again")).toEqual(MISSING);
    expect(await object.remaining()).toBe(3);
  });
});

test("what was denied, is not known, was forgotten by a reset or taken without a name cannot be given back", async () => {
  const object = objectOf("slow", freshKey());
  await object.limit(4, "order");
  expect(await object.limit(2, "denied")).toMatchObject({ success: false });
  for (const charge of ["denied", "unknown", ""])
    expect(await object.refundCharge(charge, 1, `back of ${charge}`)).toEqual(MISSING);
  await object.reset();
  await object.limit(4);
  expect(await object.refundCharge("order", 4, "back")).toEqual(MISSING);
  expect(await object.remaining()).toBe(1);
});

test("a denial that counts is no charge", async () => {
  const object = objectOf("hammered", freshKey());
  await object.limit(2);
  expect(await object.limit(1, "denied")).toMatchObject({ success: false });
  expect(await object.refundCharge("denied", 1, "back")).toEqual(MISSING);
});

test("a refund names itself by its idempotency key: the same is answered alike, another one is a conflict", async () => {
  const object = objectOf("slow", freshKey());
  await object.limit(2, "order");
  await object.limit(2, "order 2");
  const first = await object.refundCharge("order", 1, "back");
  await object.limit(2);
  expect(await object.refundCharge("order", 1, "back")).toEqual(first);
  const conflict = { conflict: { request: 'refund of 1 of the charge "order"' } };
  expect(await object.refundCharge("order", 2, "back")).toEqual(conflict);
  expect(await object.refundCharge("order 2", 1, "back")).toEqual(conflict);
  expect(await object.refund(1, "back")).toEqual(conflict);
  expect(await object.refundCharge("order 2", 1, "order 2")).toEqual({ conflict: { request: "limit of 2" } });
  expect(await object.remaining()).toBe(0);
});

test("a bucket gives back only what it has not refilled: the units of a window ago are not taken twice", async () => {
  const object = objectOf("brief", freshKey());
  at(LATER_MS);
  await object.limit(1_000, "first");
  at(LATER_MS + 1_000);
  await object.limit(1_000, "second");
  expect(await object.refundCharge("first", 1_000, "back")).toMatchObject({ remaining: 0 });
  at(LATER_MS + 1_400);
  expect(await object.refundCharge("second", 1_000, "back 2")).toMatchObject({ remaining: 1_000 });
});

test("the charge, its end and the answer are written together or not at all", async () => {
  const object = objectOf("slow", freshKey());
  await object.limit(3, "order");
  // The charge has ended and the refund is remembered by then; only the record is missing.
  vi.spyOn(Storage.prototype, "write").mockImplementation(() => {
    throw new Error("the disk is full");
  });
  await expect(object.refundCharge("order", 3, "back")).rejects.toThrow("the disk is full");
  vi.restoreAllMocks();
  expect(await object.remaining()).toBe(2);
  await object.crash();
  expect(await object.refundCharge("order", 3, "back")).toMatchObject({ remaining: 5 });
});

test("each rule gives back what was taken of it, in its own units", async () => {
  const key = freshKey();
  const object = objectOf("several", key);
  await object.stub.limit("several", key, { tokens: 60 }, "order");
  const call = { policy: "several", key, idempotencyKey: "back", charge: "order" };
  const answer = readAnswer(await object.stub.refundCharge({ ...call, units: { tokens: 20, requests: 9 } }));
  expect(answer).toMatchObject({
    rules: [
      { name: "requests", remaining: 5 },
      { name: "tokens", remaining: 60 },
    ],
  });
});

test("a message of a higher protocol is refused and gives nothing back", async () => {
  const key = freshKey();
  const object = objectOf("slow", key);
  await object.limit(3, "order");
  const call = {
    protocol: KNOWN_PROTOCOL + 1,
    policy: "slow",
    key,
    units: 3,
    idempotencyKey: "back",
    charge: "order",
  };
  expect(JSON.parse(await object.stub.refundCharge(call))).toEqual({
    unsupported: { protocol: KNOWN_PROTOCOL },
  });
  expect(await object.remaining()).toBe(2);
});

test("under other terms than those of the charge nothing is given back, since nobody knows what was refilled", () => {
  const terms = { algorithm: "token-bucket", limit: 10, window: 1_000 };
  const rule = ruleOf(terms);
  const charge = chargeOf({ policy: { rules: [rule] }, ruleStates: [] }, [], 4, 0) ?? {};
  const taken = (from: Rule, units: number) => takenOf(from, { charge, atMs: 0, rules: [from] }, units);
  expect(taken(rule, 3)).toBe(3);
  expect(taken(rule, 9)).toBe(4);
  const others = [{ limit: 11 }, { window: 999 }, { burst: 11 }, { algorithm: "sliding-log" }];
  for (const other of others) expect(taken(ruleOf({ ...terms, ...other }), 3)).toBe(0);
});
