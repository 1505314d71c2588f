/** Calls under a policy that the client does not know: it asks for the policy, and seldom where nobody answers. */
import { expect, test, vi } from "vitest";
import { Ticks } from "../../bench/scale/ticks.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { ReservationsMessage, ReservationsReply } from "../../core/protocol/reservation-messages.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";
import { parsePolicies } from "../support/milliseconds.ts";
import { transportOf } from "../support/transport.ts";

const SLOTS = { algorithm: "concurrency", limit: 100, ttl: 60_000 };
const OPEN = { algorithm: "token-bucket", limit: 100, window: 1_000, onFailure: "open" };
const policies = parsePolicies({ slots: SLOTS, others: SLOTS, open: OPEN, groups: { ...OPEN, fair: true } });
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

test("each policy is asked for once, at its first acquire, also beside one that nobody knows", async () => {
  const names = ["slots", "nowhere", "others"] as const;
  const asked = await acquire(describing, 1, 100, (call) => names[call % 3] ?? "slots");
  expect(asked.map(([name]) => name).toSorted()).toEqual(["nowhere", "others", "slots"]);
  expect(await acquire(describing, 1, 1, () => "slots")).toEqual([["slots", 0]]);
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

const [open, groups] = [
  { policy: "open", key: "a" },
  { policy: "groups", key: "a", group: "g" },
];

/** Calls that are sent alone, so that their answers do not bring the policy. */
const ALONE: Readonly<Record<string, (limiter: RemoteLimiter) => Promise<{ readonly success: boolean }>>> = {
  hold: (limiter) => limiter.hold({ ...open, units: 1 }),
  acquire: (limiter) => limiter.acquire(open),
  "limit with waitMs": (limiter) => limiter.limit({ ...open, waitMs: 5 }),
  "limit with idempotencyKey": (limiter) => limiter.limit({ ...open, idempotencyKey: "i" }),
  limitAll: (limiter) => limiter.limitAll({ checks: [open, groups] }),
  limitAny: (limiter) => limiter.limitAny({ checks: [open, groups] }),
  "hold of a group": (limiter) => limiter.hold({ ...groups, units: 1 }),
};

test.each(Object.entries(ALONE))(
  "a program whose only call is %s knows the policy's onFailure when the limiter is away",
  async (_, call) => {
    const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
    let isAway = true;
    const answer = (given: unknown) => async () =>
      isAway ? Promise.reject(new Error("nobody is there")) : (given as never);
    const one = answer(DENIED);
    const asked: ReservationsMessage[] = [];
    const limiter = new RemoteLimiter({
      transport: transportOf({
        limit: one,
        hold: one,
        acquire: one,
        limitAll: answer({ success: false, decisions: [DENIED, DENIED] }),
        limitAny: answer({ success: false, chosen: null, decisions: [DENIED, DENIED] }),
        reserve: async (message) => {
          asked.push(message);
          return isAway ? await Promise.reject(new Error("nobody is there")) : await describing(message);
        },
      }),
      time: new Ticks().clock(1_000),
      inBackground: (work) => void work.catch(() => undefined),
    });
    isAway = false;
    expect(await call(limiter)).toMatchObject({ success: false });
    await vi.waitFor(() => expect(asked).toHaveLength(1));
    isAway = true;
    await vi.waitFor(async () => expect(await call(limiter)).toMatchObject({ success: true }));
    warn.mockRestore();
  },
);

test("a process that starts while the limiter is away does as its option says, and later as the policy does", async () => {
  const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
  for (const onFailure of [undefined, "closed", "open"] as const) {
    let isAway = true;
    const away = () => Promise.reject(new Error("nobody is there"));
    const limiter = new RemoteLimiter(
      {
        transport: transportOf({
          hold: () => (isAway ? away() : Promise.resolve(DENIED)),
          reserve: (message) => (isAway ? away() : describing(message)),
        }),
        time: new Ticks().clock(1_000),
        inBackground: (work) => void work.catch(() => undefined),
      },
      onFailure && { onFailure },
    );
    const isOpen = { success: onFailure === "open", reason: "degraded", source: "fallback" };
    expect(await limiter.limit(open)).toMatchObject(isOpen);
    expect(await limiter.hold({ ...open, units: 1 })).toMatchObject(isOpen);
    isAway = false;
    expect(await limiter.limit(open)).toMatchObject({ success: false, reason: "quota" });
    isAway = true;
    expect(await limiter.hold({ ...open, units: 1 })).toMatchObject({ success: true, reason: "degraded" });
  }
  warn.mockRestore();
});
