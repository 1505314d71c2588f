/** Slots of an isolate, whose object answers what it may not. */
import { randomUUID } from "node:crypto";
import { expect, test } from "vitest";
import { Ticks } from "../../bench/scale/ticks.ts";
import type { ClientContext } from "../../client/call-gate.ts";
import { SlotHolder } from "../../client/slot-holder.ts";
import type { Slots } from "../../core/protocol/answers.ts";
import type { SlotsCall } from "../../core/protocol/calls.ts";
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
const { policies } = parseDeployment({
  policies: { slots: { algorithm: "concurrency", limit: 100, ttl: 10_000, order: "relaxed" } },
});

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
    const caller = {
      time: ticks.clock(0),
      objects: {
        call: async (...[, , { operation }]: [unknown, unknown, { operation: SlotsCall }]) => {
          // As an object in the same process: without a message, an answer takes no time.
          await Promise.resolve();
          if (messages > 10_000) return await new Promise<never>(() => undefined);
          return { answer: answer(operation) };
        },
      },
      inBackground: (work: Promise<unknown>) => void work,
    } as unknown as ClientContext;
    const holder = new SlotHolder();
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

test("waits that end are denied with the time at which enough of the isolate's own leases end", async () => {
  const policy = policies.get("slots");
  if (policy === undefined) throw new Error("there is no policy");
  const ticks = new Ticks();
  let turns = 0;
  const caller = {
    time: ticks.clock(0),
    objects: {
      call: async () => {
        await Promise.resolve();
        turns += 1;
        return { answer: { slots: { memory: "memory", given: { ...GIVEN, more: turns === 1 ? 2 : 0 } } } };
      },
    },
    inBackground: (work: Promise<unknown>) => void work,
  } as unknown as ClientContext;
  const holder = new SlotHolder();
  const call = (ttlMs: number, cost = 1) => ({ cost, ttlMs, waitMs: 9_000, makeId: randomUUID }) as never;
  let waiting: readonly ReturnType<SlotHolder["enter"]>[] = [];
  await ticks.run(
    () => ticks.nowMs >= 600,
    (nowMs) => {
      if (nowMs <= 5) holder.acquire(caller, policy, "key", call(0));
      if (nowMs === 590)
        for (const ttlMs of [3_000, 7_000]) holder.acquire(caller, policy, "key", call(ttlMs));
      if (nowMs === 592)
        waiting = [
          holder.enter(caller, policy, "key", call(1_000)),
          holder.enter(caller, policy, "key", call(1_000, 2)),
        ];
      if (nowMs === 599) holder.endWaits(caller, policy, "key");
    },
  );
  const [one, both] = waiting;
  expect([one?.latch.isOpen, both?.latch.isOpen]).toEqual([true, true]);
  const denied = { success: false, remaining: 0, resetAfterMs: 6_991, reason: "quota" };
  const said = { reason: "wait-timeout", waitedMs: 7 };
  expect(one?.answer).toMatchObject({ ...said, rules: [{ ...denied, retryAfterMs: 2_991 }] });
  expect(both?.answer).toMatchObject({ ...said, rules: [{ ...denied, retryAfterMs: 6_991 }] });
});
