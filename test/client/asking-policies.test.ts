/** Acquires under a policy that the client does not know: it asks for the policy, and seldom where nobody answers. */
import { expect, test, vi } from "vitest";
import { Ticks } from "../../bench/scale/ticks.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { ReservationsMessage, ReservationsReply } from "../../core/protocol/reservation-messages.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";
import { parsePolicies } from "../support/milliseconds.ts";
import { transportOf } from "../support/transport.ts";

const SLOTS = { algorithm: "concurrency", limit: 100, ttl: 60_000 };
const policies = parsePolicies({ slots: SLOTS, others: SLOTS });
const DENIED = { success: false, rules: [], reason: "quota", source: "object" } as unknown as Decision;

type Answer = (asked: ReservationsMessage) => Promise<ReservationsReply>;

/** A limiter that knows two policies, and denies each acquire. */
const describing: Answer = async ({ calls }) => {
  const described = Object.fromEntries(
    calls.flatMap(({ limit }) => {
      const policy = policies.get(limit?.policy ?? "");
      return policy === undefined ? [] : [[policy.name, describeForClient(policy)]];
    }),
  );
  return { protocol: 1, answers: calls.map(() => ({ decision: DENIED })), policies: described };
};

/** Makes so many acquires a millisecond for a while. @returns when a policy was asked for, by its name */
async function acquire(answer: Answer, perMs: number, untilMs: number, namesOf: (call: number) => string) {
  const ticks = new Ticks();
  const asked: [policy: string, atMs: number][] = [];
  const reserve: Answer = async (message) => {
    for (const { limit } of message.calls) if (limit !== undefined) asked.push([limit.policy, ticks.nowMs]);
    return await answer(message);
  };
  const limiter = new RemoteLimiter({
    transport: transportOf({ reserve, acquire: async () => DENIED }),
    time: { ...ticks.clock(1_000), isLasting: true },
    inBackground: (work) => void work.catch(() => undefined),
  });
  let calls = 0;
  await ticks.run(
    () => ticks.nowMs >= untilMs,
    (nowMs) => {
      if (perMs < 1 && nowMs % Math.round(1 / perMs) > 0) return;
      for (let call = 0; call < perMs; call += 1)
        void limiter.acquire({ policy: namesOf((calls += 1)), key: "key" });
    },
  );
  return asked;
}

const gapsOf = (asked: readonly (readonly [string, number])[]) =>
  asked.slice(1).map(([, atMs], index) => atMs - (asked[index]?.[1] ?? 0));

test.each<[name: string, answer: Answer, policy?: string]>([
  ["answers nothing", () => new Promise(() => undefined)],
  ["fails at once", () => Promise.reject(new Error("nobody is there"))],
  ["has no such policy", describing, "nowhere"],
])(
  "a thousand acquires at once ask once for their policy if the limiter %s, and seldom again",
  async (_, answer, policy = "slots") => {
    const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
    const asked = await acquire(answer, 1_000, 20, () => policy);
    expect(asked).toHaveLength(1);
    const later = await acquire(answer, 1, 30_000, () => policy);
    warn.mockRestore();
    expect(later.length).toBeGreaterThanOrEqual(3);
    expect(Math.min(...gapsOf(later))).toBeGreaterThanOrEqual(5_000);
  },
);

test("each policy is asked for once from its third acquire on, also beside one that nobody knows", async () => {
  const names = ["slots", "nowhere", "others"] as const;
  const asked = await acquire(describing, 1, 100, (call) => names[call % 3] ?? "slots");
  expect(asked.map(([name]) => name).toSorted()).toEqual(["nowhere", "others", "slots"]);
  expect(await acquire(describing, 1, 2, () => "slots")).toEqual([]);
});

test("names that callers make up do not end the asking for a policy", async () => {
  const asked = await acquire(describing, 3, 2_000, (call) => (call <= 3_000 ? `made-up-${call}` : "slots"));
  expect(asked.map(([name]) => name)).toContain("slots");
});

test("a policy that an older version has described is asked for again within a minute or so, and then has slots", async () => {
  let isOlder = true;
  const answer: Answer = async (message) => {
    const { policies: described, ...reply } = await describing(message);
    const { slots, ...rest } = described["slots"] ?? {};
    const older = { ...rest, version: "older" } as unknown as ReservationsReply["policies"][string];
    return { ...reply, policies: isOlder && slots !== undefined ? { slots: older } : described };
  };
  const said: number[] = [];
  const reserve: Answer = async (message) => {
    if (message.calls.some(({ slots }) => slots !== undefined)) said.push(0);
    return await answer(message);
  };
  const asked = await acquire(reserve, 0.1, 150_000, (call) => {
    isOlder = call < 1_000;
    return "slots";
  });
  expect(asked.length).toBeLessThanOrEqual(4);
  expect(said.length).toBeGreaterThan(0);
});
