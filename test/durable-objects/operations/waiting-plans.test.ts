/** Laws of calls that wait and name plans: each is decided by its own, whatever others name meanwhile. */
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { depth } from "../../support/depth.ts";
import { isAdmitted, limitOf, passMs, type Waiting, WaitingKey as Key } from "../../support/waiting-key.ts";

const START_MS = 1_000_000;

beforeEach(() => void vi.useFakeTimers({ now: START_MS }));
afterEach(() => void vi.useRealTimers());

const BUCKET = {
  algorithm: "token-bucket",
  limit: 10,
  window: 1_000,
  maxWait: 60_000,
  plans: { pro: { limit: 20, burst: 40 }, slow: { limit: 10, window: 10_000 } },
};
const SLOTS = {
  algorithm: "concurrency",
  limit: 5,
  ttl: 600_000,
  maxWait: 60_000,
  plans: { pro: { limit: 8 } },
};

/** What others may do beside a call that waits, without taking anything. */
const BESIDES: readonly (readonly [string, (key: Key) => void])[] = [
  ["nobody else calls", () => undefined],
  ["a call of cost 0 names a slower plan", (key) => void key.limit("slow", 0)],
  ["a peek names a slower plan", (key) => void key.peek("slow")],
  ["a denied call names a slower plan", (key) => expect(key.limit("slow", 1).rules[0]?.success).toBe(false)],
  ["a call that waits behind names a slower plan", (key) => void key.wait("slow", 10, 20_000)],
];

describe.each(BESIDES)("a call waits for its own plan when %s", (_, beside) => {
  test("units come at the rate of its plan", async () => {
    const key = new Key(BUCKET);
    key.limit("pro", 40);
    const waiting = key.wait("pro", 10);
    await passMs(100);
    beside(key);
    await passMs(399);
    expect(waiting.answer).toBeUndefined();
    await passMs(1);
    expect(isAdmitted(waiting)).toBe(true);
    expect(waiting.atMs).toBe(START_MS + 500);
    expect(limitOf(waiting)).toBe(40);
    expect(waiting.answer?.waitedMs).toBe(500);
  });
});

test("a slower plan's call is not admitted sooner when a faster plan is named", async () => {
  const key = new Key(BUCKET);
  key.limit("slow", 10);
  const waiting = key.wait("slow", 10);
  await passMs(1_000);
  key.limit("pro", 0);
  key.peek("pro");
  const behind = key.wait("pro", 1, 20_000);
  await passMs(8_999);
  expect([waiting.answer, behind.answer]).toEqual([undefined, undefined]);
  await passMs(1);
  expect(isAdmitted(waiting)).toBe(true);
  expect(limitOf(waiting)).toBe(10);
  expect(isAdmitted(behind)).toBe(true);
  expect(limitOf(behind)).toBe(40);
});

test("a call with limits of its own waits for those", async () => {
  const key = new Key({
    algorithm: "token-bucket",
    limit: 10,
    window: 1_000,
    maxWait: 60_000,
    limitInCall: { max: 100 },
  });
  key.limit('{"requests":100}', 100);
  const waiting = key.wait('{"requests":100}', 50);
  key.limit("", 1);
  await passMs(500);
  expect(isAdmitted(waiting)).toBe(true);
  expect(limitOf(waiting)).toBe(100);
});

test("a change of the policy meanwhile counts, by the plan of the call", async () => {
  const key = new Key(BUCKET);
  key.limit("pro", 40);
  const waiting = key.wait("pro", 10);
  const fields = {
    ...BUCKET,
    window: "1s",
    maxWait: "1m",
    plans: { pro: { limit: 40 }, slow: { limit: 1 } },
  };
  const inForce = { version: 1, fields: JSON.stringify(fields), plan: "slow" };
  key.ask(undefined, { op: "limit", cost: 1, inForce });
  await passMs(250);
  expect(isAdmitted(waiting)).toBe(true);
});

test("a look that names a plan is answered by it, and leaves the key its plan", () => {
  const key = new Key(BUCKET);
  key.limit("pro", 5);
  expect(key.peek("slow")).toMatchObject({ plan: "slow", rules: [{ limit: 10, remaining: 5 }] });
  expect(key.limit("slow", 0)).toMatchObject({ rules: [{ limit: 10, remaining: 5 }] });
  expect(key.peek()).toMatchObject({ plan: "pro", rules: [{ limit: 40, remaining: 35 }] });
});

test("what waiting calls are told of the wait counts those before them by their own plans", () => {
  const key = new Key(BUCKET);
  key.limit("slow", 10);
  void key.wait("slow", 10);
  // The first one waits for 10 s. The bucket of `pro` is full by then, and has 30 units left.
  expect(key.limit("pro", 31).rules[0]).toMatchObject({ success: false, limit: 40, retryAfterMs: 10_050 });
  expect(key.limit("pro", 30).rules[0]).toMatchObject({ success: false, limit: 40, retryAfterMs: 10_000 });
  expect(key.peek("pro").rules[0]).toMatchObject({ success: false, limit: 40, retryAfterMs: 10_000 });
});

describe.each(["strict", "relaxed"])("slots in %s order", (order) => {
  const table = { ...SLOTS, order };

  test("a waiting call gets a slot of its plan when one is free, whatever plan was named since", async () => {
    const key = new Key(table);
    const held = Array.from({ length: 8 }, () => key.lease("pro"));
    expect(held.every(isAdmitted)).toBe(true);
    const waiting = key.lease("pro");
    expect(isAdmitted(key.lease("", 0))).toBe(false);
    key.peek("");
    expect(waiting.answer).toBeUndefined();
    key.release(held[0]?.id ?? "");
    await passMs(0);
    expect(isAdmitted(waiting)).toBe(true);
    expect(limitOf(waiting)).toBe(8);
  });

  test("a waiting call gets no slot beyond its plan when a larger plan is named", async () => {
    const key = new Key(table);
    const held = Array.from({ length: 5 }, () => key.lease(""));
    const waiting = key.lease("");
    const larger = key.lease("pro");
    await passMs(5_000);
    // Those before it in line come first.
    expect([waiting.answer, larger.answer]).toEqual([undefined, undefined]);
    key.release(held[0]?.id ?? "");
    await passMs(0);
    expect(isAdmitted(waiting)).toBe(true);
    expect(limitOf(waiting)).toBe(5);
    expect(isAdmitted(larger)).toBe(true);
    expect(limitOf(larger)).toBe(8);
  });
});

test("a call that waited is answered again by its own plan, and given back by it, whatever plan was named since", async () => {
  const once = { idempotencyKey: "order" };
  const key = new Key(BUCKET);
  key.limit("pro", 40);
  const waiting = key.wait("pro", 10, 30_000, once);
  key.limit("slow", 1);
  await passMs(500);
  expect(isAdmitted(waiting)).toBe(true);
  expect(key.limit("pro", 10, once)).toMatchObject({ plan: "pro", rules: [{ limit: 40 }] });
  const before = key.peek("pro").rules[0]?.remaining ?? 0;
  key.ask(undefined, { op: "refund", units: 10, charge: "order", idempotencyKey: "back" });
  expect(key.peek("pro").rules[0]?.remaining).toBe(before + 10);
  const slots = new Key(SLOTS);
  const [first] = Array.from({ length: 8 }, () => slots.lease("pro"));
  const lease = slots.lease("pro", 30_000, once);
  slots.lease("", 0);
  slots.release(first?.id ?? "");
  await passMs(0);
  expect(isAdmitted(lease)).toBe(true);
  expect(slots.lease("pro", 0, once).answer).toMatchObject({ plan: "pro", rules: [{ limit: 8 }] });
});

test("groups that share slots get those of their calls' plans", async () => {
  const key = new Key({ ...SLOTS, fair: true });
  const held = Array.from({ length: 8 }, (_, at) => key.lease("pro", 0, { group: at % 2 === 0 ? "a" : "b" }));
  const waiting = ["a", "b"].map((group) => key.lease("pro", 30_000, { group }));
  expect(isAdmitted(key.lease("", 0, { group: "a" }))).toBe(false);
  for (const { id } of held.slice(0, 2)) key.release(id);
  await passMs(0);
  expect(waiting.map(isAdmitted)).toEqual([true, true]);
  expect(waiting.map(limitOf)).toEqual([8, 8]);
});

test("groups that share a rate get units of their calls' plans", async () => {
  const key = new Key({ ...BUCKET, fair: true });
  key.ask("pro", { op: "limit", cost: 40, group: "a" });
  const waiting = key.wait("pro", 10, 30_000, { group: "a" });
  key.ask("slow", { op: "limit", cost: 0, group: "b" });
  key.ask("slow", { op: "limit", cost: 1, group: "b" });
  await passMs(500);
  expect(isAdmitted(waiting)).toBe(true);
  expect(limitOf(waiting)).toBe(40);
});

test("after a crash nothing is minted that a waiting call got of a larger plan", async () => {
  const key = new Key(BUCKET);
  key.limit("pro", 40);
  const waiting = key.wait("pro", 20);
  key.limit("slow", 1);
  await passMs(1_000);
  expect(isAdmitted(waiting)).toBe(true);
  key.crash();
  expect(isAdmitted(key.wait("pro", 1, 0))).toBe(false);
});

test("what a waiting call took by another plan than that in force is stored exactly", async () => {
  const tokens = { algorithm: "token-bucket", unit: "tokens", limit: 10, window: 10_000, burst: 40 };
  const slots = { algorithm: "concurrency", limit: 1, ttl: 600_000, maxWait: 60_000 };
  const plans = { pro: { rules: { tokens: { limit: 20, window: 1_000 } } } };
  const key = new Key({ rules: { tokens, slots }, plans });
  const cost = (units: number) => ({ cost: { requests: 1, tokens: units } });
  const first = key.lease("pro", 0, cost(40));
  // It ends first, so that nothing else makes the object write its record.
  const waiting = key.lease("pro", 30_000, { ...cost(5), ttlMs: 10_000 });
  expect([isAdmitted(first), isAdmitted(key.lease("", 0, cost(1)))]).toEqual([true, false]);
  await passMs(1_000);
  key.release(first.id);
  await passMs(0);
  expect(isAdmitted(waiting)).toBe(true);
  key.crash();
  expect(key.peek("pro").rules[0]).toMatchObject({ limit: 40, remaining: 15 });
});

const OTHERS = {
  "token-bucket": BUCKET,
  gcra: { ...BUCKET, algorithm: "gcra" },
  "sliding-log": {
    ...BUCKET,
    algorithm: "sliding-log",
    plans: { pro: { limit: 40 }, slow: { window: 5_000 } },
  },
  "fixed-window": { ...BUCKET, algorithm: "fixed-window", plans: { pro: { limit: 40 }, slow: { limit: 3 } } },
};

describe("in random histories", () => {
  const step = fc.record({
    do: fc.constantFrom("wait" as const, "wait" as const, "limit" as const, "look" as const, "peek" as const),
    plan: fc.constantFrom("", "pro", "slow"),
    cost: fc.integer({ min: 1, max: 10 }),
    afterMs: fc.nat(800),
    crashes: fc.boolean(),
  });

  test.each(Object.entries(OTHERS))("of a %s looks change the instant of no answer", async (_, table) => {
    const run = async (steps: readonly (typeof step extends fc.Arbitrary<infer Step> ? Step : never)[]) => {
      vi.setSystemTime(START_MS);
      const key = new Key(table);
      const waits: Waiting[] = [];
      for (const { do: kind, plan, cost, afterMs } of steps) {
        await passMs(afterMs);
        if (kind === "wait") waits.push(key.wait(plan, cost, 20_000));
        else if (kind === "limit") key.limit(plan, cost);
        else if (kind === "look") key.limit(plan, 0);
        else if (kind === "peek") key.peek(plan);
      }
      await passMs(40_000);
      return waits.map((waiting) => [waiting.atMs, isAdmitted(waiting), limitOf(waiting)]);
    };
    const property = fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 20 }), async (steps) => {
      const isLook = ({ do: kind }: (typeof steps)[number]) => kind === "look" || kind === "peek";
      const silent = steps.map((each) => (isLook(each) ? { ...each, do: "nothing" as never } : each));
      expect(await run(steps)).toEqual(await run(silent));
    });
    await fc.assert(property, { numRuns: depth(13, 300) });
  });

  test("each waiting call is admitted by its own limit, and no more than the loosest plan allows", async () => {
    const property = fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 25 }), async (steps) => {
      vi.setSystemTime(START_MS);
      const key = new Key(BUCKET);
      const waits: { readonly plan: string; readonly cost: number; readonly waiting: Waiting }[] = [];
      for (const { do: kind, plan, cost, afterMs, crashes } of steps) {
        await passMs(afterMs);
        if (kind === "look") key.limit(plan, 0);
        else if (kind === "peek") key.peek(plan);
        else waits.push({ plan, cost, waiting: key.wait(plan, cost, kind === "wait" ? 20_000 : 0) });
        if (crashes && waits.every(({ waiting }) => waiting.answer !== undefined)) key.crash();
      }
      await passMs(40_000);
      for (const { plan, waiting } of waits) expect(limitOf(waiting)).toBe(plan === "pro" ? 40 : 10);
      const taken = waits.filter(({ waiting }) => isAdmitted(waiting));
      for (const { waiting: from } of taken) {
        const later = taken.filter(({ waiting: { atMs } }) => atMs >= from.atMs);
        for (const { waiting: to } of later) {
          const within = later.filter(({ waiting: { atMs } }) => atMs <= to.atMs);
          const units = within.reduce((sum, { cost }) => sum + cost, 0);
          expect(units).toBeLessThanOrEqual(40 + (20 * (to.atMs - from.atMs)) / 1_000);
        }
      }
    });
    await fc.assert(property, { numRuns: depth(20, 600) });
  });
});
