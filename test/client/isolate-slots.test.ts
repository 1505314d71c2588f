/** Slots of an isolate, whose object answers what it may not. */
import { randomUUID } from "node:crypto";
import { expect, test } from "vitest";
import { Ticks } from "../../bench/scale/ticks.ts";
import type { ClientContext } from "../../client/call-gate.ts";
import { IsolateKeySlots } from "../../client/isolate-key-slots.ts";
import { IsolateSlots } from "../../client/isolate-slots.ts";
import { ClaimClient } from "../../client/objects/claim-client.ts";
import type { GivenSlots, Slots } from "../../core/protocol/answers.ts";
import type { SlotsCall } from "../../core/protocol/calls.ts";
import { sentNow } from "../../core/reservations/said-figures.ts";
import { Tally } from "../../core/stats/tally.ts";
import { parseDeployment } from "../support/milliseconds.ts";

const SECONDS = 20;
const GIVEN = {
  more: 5,
  isNew: false,
  lifeMs: 2_500,
  paceMs: 500,
  ttlMs: 10_000,
  tokens: [1, 1_001] as const,
  ended: [],
  isHome: false,
  most: 10,
  remaining: 5,
};
const SLOTS = { algorithm: "concurrency", limit: 100, ttl: 10_000, order: "relaxed" };
const { policies } = parseDeployment({ policies: { slots: { ...SLOTS, plans: { pro: { limit: 200 } } } } });

/** Whose object answers as it is told, at once: as one in the same process does. */
function callerOf(
  ticks: Ticks,
  answer: (call: SlotsCall) => Slots | Promise<Slots>,
  counter?: object,
): ClientContext {
  const objects = {
    mostAtOnce: 32,
    call: async (...[, , { operation }]: [unknown, unknown, { operation: SlotsCall }]) => {
      await Promise.resolve();
      return { answer: await answer(operation) };
    },
  };
  const inBackground = (work: Promise<unknown>) => void work;
  return {
    time: ticks.clock(0),
    objects,
    inBackground,
    ...(counter && { counter }),
  } as unknown as ClientContext;
}

test("a holder sends a few messages a second, whatever memory the object has", async () => {
  const policy = policies.get("slots");
  if (policy === undefined) throw new Error("there is no policy");
  for (const isGiven of [() => false, (count: number) => count === 1, (count: number) => count % 3 === 0]) {
    const ticks = new Ticks();
    let messages = 0;
    const answer = ({ turn }: SlotsCall): Slots => {
      messages += 1;
      return { slots: { memory: `memory ${turn}`, ...(isGiven(messages) && { given: GIVEN }) } };
    };
    const caller = callerOf(ticks, (call) =>
      messages > 10_000 ? new Promise<never>(() => undefined) : answer(call),
    );
    const holder = new IsolateSlots();
    const call = { cost: 1, ttlMs: 10_000, waitMs: 0, makeId: () => "lease" };
    await ticks.run(
      () => ticks.nowMs >= SECONDS * 1_000,
      (nowMs) => {
        if (nowMs % 100 === 0) holder.acquire(caller, policy, "key", call as never);
      },
    );
    expect(messages).toBeGreaterThan(SECONDS / 8);
    expect(messages).toBeLessThan(SECONDS * 20);
  }
});

/** A holder that gets two slots with its first message, which it sends in the first milliseconds. */
function start() {
  const policy = policies.get("slots");
  if (policy === undefined) throw new Error("there is no policy");
  const ticks = new Ticks();
  const tally = new Tally();
  const sent: SlotsCall[] = [];
  const given: Partial<GivenSlots> = {};
  const caller = callerOf(
    ticks,
    (call) => {
      sent.push(call);
      return { slots: { memory: "memory", given: { ...GIVEN, ...given, more: sent.length === 1 ? 2 : 0 } } };
    },
    tally,
  );
  const holder = new IsolateSlots();
  const call = (ttlMs: number, cost = 1) =>
    ({ cost, ttlMs, waitMs: 9_000, makeId: () => randomUUID() }) as never;
  const acquire = (ttlMs: number) => holder.acquire(caller, policy, "key", call(ttlMs))?.lease?.id;
  return { ticks, tally, sent, caller, holder, policy, call, acquire, given };
}

test.each([false, true])(
  "a call whose wait is over waits no further for slots that its isolate gives back, granted then: %s",
  async (isGranted) => {
    const { ticks, caller, holder, policy, acquire, sent } = start();
    const asked: number[] = [];
    const of = {
      name: "slots",
      limit: 100,
      remaining: 5,
      resetAfterMs: 10,
      retryAfterMs: 10,
      reason: "quota",
    };
    const answer = async (waitMs: number, success: boolean) => {
      asked.push(waitMs);
      await Promise.resolve();
      const lease = success && { lease: { id: "lease", fencingToken: 7, expiresAfterMs: 1_000 } };
      return { rules: [{ ...of, success }], ...(waitMs > 0 && { waitedMs: waitMs }), ...lease };
    };
    const objects = {
      shed: () => Promise.resolve({}),
      message: (...[, , call]: [unknown, unknown, object]) => call,
      wait: (...[, , , { waitMs }]: [unknown, unknown, unknown, { waitMs: number }]) => answer(waitMs, false),
      operate: (...[, , { waitMs }]: [unknown, unknown, { waitMs: number }]) => answer(waitMs, isGranted),
    };
    const client = new ClaimClient(caller, objects as never, holder, () => randomUUID());
    const call = { cost: 3, ttlMs: 1_000, waitMs: 200, id: "lease" };
    let decided: ReturnType<typeof client.acquire> | undefined;
    await ticks.run(
      () => ticks.nowMs >= 20,
      (nowMs) => {
        if (nowMs <= 5) acquire(0);
        if (nowMs === 10) decided = client.acquire(policy, "key", call);
      },
    );
    expect(asked).toEqual([200, 0]);
    expect(sent.at(-1)).toMatchObject({ kept: 0, wanted: 0 });
    expect(await decided).toMatchObject({ success: isGranted, waitedMs: 200 });
  },
);

test("waits that end are denied with the time at which enough of the isolate's own leases end", async () => {
  const { ticks, caller, holder, policy, call, acquire } = start();
  const enter = (cost: number) => holder.enter(caller, policy, "key", call(1_000, cost));
  let waiting: readonly ReturnType<typeof enter>[] = [];
  await ticks.run(
    () => ticks.nowMs >= 20,
    (nowMs) => {
      if (nowMs <= 5) acquire(0);
      if (nowMs === 10) expect([acquire(3_000), acquire(7_000)]).not.toContain(undefined);
      if (nowMs === 12) waiting = [enter(1), enter(2)];
      if (nowMs === 19) holder.endWaits(caller, policy, "key");
    },
  );
  const [one, both] = waiting;
  expect([one?.latch.isOpen, both?.latch.isOpen]).toEqual([true, true]);
  const denied = { success: false, remaining: 0, resetAfterMs: 6_991, reason: "quota" };
  const said = { reason: "wait-timeout", waitedMs: 7 };
  expect(one?.answer).toMatchObject({ ...said, rules: [{ ...denied, retryAfterMs: 2_991 }] });
  expect(both?.answer).toMatchObject({ ...said, rules: [{ ...denied, retryAfterMs: 6_991 }] });
});

test("a lease's answer says when the last of the isolate's leases, and of those at the object, ends", async () => {
  const { ticks, caller, holder, policy, call, given } = start();
  Object.assign(given, { resetAfterMs: 1_200 });
  const acquire = (ttlMs: number) => {
    const { lease, rules } = holder.acquire(caller, policy, "key", call(ttlMs)) ?? {};
    return { id: lease?.id ?? "", resetAfterMs: rules?.[0]?.resetAfterMs };
  };
  const release = ({ id }: { readonly id: string }) => holder.release(caller, policy, "key", id);
  const said: unknown[] = [];
  await ticks.run(
    () => ticks.nowMs >= 20,
    (nowMs) => {
      if (nowMs <= 5) acquire(0);
      if (nowMs !== 10) return;
      // The object's other leases end 1,200 ms after it has answered, in the first milliseconds.
      const first = acquire(1_000);
      const long = acquire(7_000);
      release(first);
      const second = acquire(1_500);
      release(long);
      const third = acquire(1_500);
      release(second);
      release(third);
      const rule = { name: "slots", limit: 100, success: true, retryAfterMs: 0, reason: "ok" } as const;
      const ofObject = { rules: [{ ...rule, remaining: 19, resetAfterMs: 60_000 }] };
      holder.heard(caller, policy, "key", ofObject, sentNow());
      said.push(first.resetAfterMs, long.resetAfterMs, second.resetAfterMs, third.resetAfterMs);
      said.push(acquire(1_000).resetAfterMs);
      holder.renewed(caller, policy, "key", { id: "other", fencingToken: 1, expiresAfterMs: 90_000 });
      said.push(acquire(1_000).resetAfterMs);
    },
  );
  const [first, ...others] = said;
  expect(first).toBeGreaterThan(1_190);
  expect(first).toBeLessThanOrEqual(1_200);
  expect(others).toEqual([7_000, 7_000, 1_500, 60_000, 90_000]);
});

test("a lease that is handed over counts until the object's answer says what it has", () => {
  const policy = policies.get("slots");
  if (policy === undefined) throw new Error("there is no policy");
  const slots = new IsolateKeySlots(policy, "key", 0);
  slots.grant(policy.rules[0], { id: "a", units: 1, ttlMs: 7_000, caller: undefined }, 0, 0);
  for (const lease of slots.young.values()) slots.hand(lease, 1_000);
  expect(slots.wholeAfterMs(1_000)).toBe(6_000);
  const call = slots.message(0, 1_000);
  const given = { ...GIVEN, resetAfterMs: 3_000 };
  slots.answered(call, { slots: { memory: "memory", given } }, 1_000, 1_001);
  expect(slots.wholeAfterMs(1_001)).toBe(3_000);
});

test("waits that a call in another isolate ended end here with the next answer, and later ones go on", async () => {
  const { ticks, caller, holder, policy, call, acquire, given } = start();
  const enter = () => holder.enter(caller, policy, "key", call(1_000));
  const waiting: ReturnType<typeof enter>[] = [];
  await ticks.run(
    () => ticks.nowMs >= 1_200,
    (nowMs) => {
      if (nowMs <= 5) acquire(0);
      if (nowMs === 10) expect([acquire(3_000), acquire(7_000)]).not.toContain(undefined);
      if (nowMs === 100 || nowMs === 400) waiting.push(enter());
      // The next message comes at its pace.
      if (nowMs === 300)
        Object.defineProperty(given, "waitsEndedAgoMs", { enumerable: true, get: () => ticks.nowMs - 300 });
      if (nowMs > 300 && nowMs % 100 === 0) acquire(0);
    },
  );
  const [ended, later] = waiting;
  expect([ended?.latch.isOpen, later?.latch.isOpen]).toEqual([true, false]);
  expect(ended?.answer).toMatchObject({ reason: "wait-timeout", rules: [{ success: false }] });
});

test("a lease is counted where it ends: here until its release or its end, or handed over with its age", async () => {
  const { ticks, tally, sent, caller, holder, policy, acquire } = start();
  let released: string | undefined;
  await ticks.run(
    () => ticks.nowMs >= 1_600,
    (nowMs) => {
      if (nowMs <= 5) acquire(0);
      if (nowMs === 10) released = acquire(9_000);
      if (nowMs === 30) expect(holder.release(caller, policy, "key", released ?? "")).toBe(true);
      // It ends by itself, unseen for a while.
      if (nowMs === 31) acquire(70);
      if (nowMs === 32) acquire(8_000);
      // Calls send what is due.
      if (nowMs > 32 && nowMs % 200 === 0) acquire(0);
    },
  );
  const counts = tally.take()?.counts ?? {};
  const young = counts["lease_held_seconds slots 1"] ?? 0;
  expect(counts).toEqual({
    ...(young > 0 && { "lease_held_seconds slots 1": young }),
    "lease_held_seconds slots 25": 1,
    "lease_held_seconds slots 100": 1,
    "lease_held_seconds slots sum": 90,
  });
  const [handed] = sent.flatMap((each) => each.handed);
  expect((handed?.heldMs ?? 0) + (handed?.leftMs ?? 0)).toBe(8_000);
  expect(handed?.heldMs).toBeGreaterThan(500);
});

test("a holder names a plan when its calls do, and not when it only keeps its slots", async () => {
  const policy = policies.get("slots")?.plans?.get("pro");
  if (policy === undefined) throw new Error("there is no plan");
  const ticks = new Ticks();
  const named: [atMs: number, plan: string | undefined][] = [];
  const caller = callerOf(ticks, ({ inForce }) => {
    named.push([ticks.nowMs, inForce?.plan]);
    return { slots: { memory: "memory", given: GIVEN } };
  });
  const holder = new IsolateSlots();
  const call = { cost: 1, ttlMs: 10_000, waitMs: 0, makeId: () => "lease" };
  await ticks.run(
    () => ticks.nowMs >= 8_000,
    (nowMs) => {
      if (nowMs < 3_000 && nowMs % 100 === 0) holder.acquire(caller, policy, "key", call as never);
    },
  );
  const plansFrom = (fromMs: number, untilMs: number) =>
    new Set(named.flatMap(([atMs, plan]) => (atMs >= fromMs && atMs < untilMs ? [plan] : [])));
  expect(plansFrom(0, 3_000)).toContain("pro");
  // Its leases last, so it goes on to say what it has.
  expect(plansFrom(3_600, 8_000)).toEqual(new Set([undefined]));
});

test("no lease is granted from slots of another version before the object has answered by the new one", async () => {
  const before = policies.get("slots")?.plans?.get("pro");
  if (before === undefined) throw new Error("there is no plan");
  const ticks = new Ticks();
  let isAnswered = true;
  const caller = callerOf(ticks, () =>
    isAnswered ? { slots: { memory: "memory", given: GIVEN } } : new Promise<never>(() => undefined),
  );
  const holder = new IsolateSlots();
  const call = { cost: 1, ttlMs: 1_000, waitMs: 0, makeId: () => `lease-${ticks.nowMs}` };
  const after = { ...before, inForce: { version: 2, fields: { limit: 7 } } } as unknown as typeof before;
  const granted: (boolean | undefined)[] = [];
  await ticks.run(
    () => ticks.nowMs >= 3_000,
    (nowMs) => {
      if (nowMs % 100 > 0) return;
      if (nowMs === 2_000) isAnswered = false;
      const isGranted =
        holder.acquire(caller, nowMs < 2_000 ? before : after, "key", call as never) !== undefined;
      if (nowMs === 1_900 || nowMs >= 2_000) granted.push(isGranted);
    },
  );
  expect(granted[0]).toBe(true);
  expect(new Set(granted.slice(1))).toEqual(new Set([false]));
});

test("slots of a version that leased them are not said to be free under one that does not, and go back at once", async () => {
  const { ticks, caller, holder, policy, acquire, call, sent } = start();
  const strict = parseDeployment({ policies: { slots: { ...SLOTS, order: "strict" } } }).policies.get(
    "slots",
  );
  if (strict === undefined) throw new Error("there is no policy");
  const free: number[] = [];
  await ticks.run(
    () => ticks.nowMs >= 15,
    (nowMs) => {
      if (nowMs <= 5) acquire(0);
      if (nowMs !== 10) return;
      free.push(holder.remainingOf(policy, "key", 5), holder.remainingOf(strict, "key", 5));
      expect(holder.acquire(caller, strict, "key", call(1_000))).toBe(undefined);
    },
  );
  expect(free).toEqual([6, 5]);
  expect(sent.at(-1)).toMatchObject({ kept: 0, wanted: 0 });
});

test("a busy holder asks for further fencing tokens while it has some, so that no lease is a message for want of them", async () => {
  const policy = policies.get("slots");
  if (policy === undefined) throw new Error("there is no policy");
  const ticks = new Ticks();
  let end = 0;
  const caller: ClientContext = callerOf(ticks, () => {
    const tokens = [end + 1, end + 1_001] as const;
    end += 1_000;
    const answer = { slots: { memory: "memory", given: { ...GIVEN, more: end === 1_000 ? 2 : 0, tokens } } };
    return new Promise((done) => void caller.time.after(20, () => done(answer)));
  });
  const holder = new IsolateSlots();
  let refused = 0;
  await ticks.run(
    () => ticks.nowMs >= 2_000,
    (nowMs) => {
      for (let each = 0; each < 5; each += 1) {
        const call = { cost: 1, ttlMs: 1_000, waitMs: 0, makeId: () => `${nowMs}-${each}` };
        const id = holder.acquire(caller, policy, "key", call as never)?.lease?.id;
        if (id !== undefined) holder.release(caller, policy, "key", id);
        else if (nowMs > 100) refused += 1;
      }
    },
  );
  expect(refused).toBe(0);
});
